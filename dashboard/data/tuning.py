"""The history of a tuning session, from the tuner's journal."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ringtune import layout
from ringtune.dashboard.data.files import integer, mapping, real, text
from ringtune.dashboard.data.jsonlines import read_rows
from ringtune.dashboard.data.runs import RunInfo
from ringtune.dashboard.units import duration, percent, plain, size
from ringtune.errors import InvalidArgument
from ringtune.knobs import Knobs
from ringtune.timeline.runs import records
from ringtune.timeline.runs.records import Estimate, Trial, TuningResult
from ringtune.timeline.units import several
from ringtune.tuner import messages

Parsed = TypeVar("Parsed")

SOURCES = {
    "default": "default",
    "stored": "from the last session",
    "near": "from a job like it",
    "model": "cost model",
    "start-point": "start point",
    "sampler": "sampler",
    "switch": "switch",
    "confirm": "confirmation",
}
"""Where a trial's knobs came from, in words."""

CONFIRMING = ("default", "confirm")
"""Trials whose step time counts as confirmed: measured for its own sake, not picked for being low."""


def confirmed(trial: Trial) -> bool:
    """Whether a trial's step time is a measurement to trust (see `CONFIRMING`)."""
    return trial.source in CONFIRMING and trial.state == "complete" and trial.step_ns is not None


@dataclass(frozen=True)
class TuningHistory:
    """A tuning session. ``default`` is the knobs it started from; ``result`` is None while it runs.

    ``gains`` holds by trial the share of the default's step time saved, as the tuner compared both at about the same
    time; ``lost`` in the order of trials the time lost so far in ns (negative: won). A session with restarts tries
    variables of a run instead of knobs: ``settings`` holds them by trial (empty: the command as it is), ``kept`` those
    of the result, ``made`` what the script itself gives torch's parts, ``failed`` trials without a step time, with the
    variables and the last line of the run; ``not_searched`` what the environment pinned, in words.
    """

    trials: tuple[Trial, ...]
    default: dict[str, int]
    world: int
    result: TuningResult | None
    problems: tuple[str, ...] = ()
    gains: dict[int, float] = field(default_factory=dict)
    lost: tuple[tuple[int, int], ...] = ()
    settings: dict[int, dict[str, str]] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    made: dict[str, str] = field(default_factory=dict)
    failed: tuple[tuple[int, dict[str, str], str], ...] = ()
    not_searched: tuple[str, ...] = ()

    @property
    def with_restarts(self) -> bool:
        """Whether variables were tried, not knobs."""
        return bool(self.settings)

    @property
    def variables(self) -> list[str]:
        """Names of the variables that were tried."""
        return sorted({name for setting in self.settings.values() for name in setting})

    def words(self, trial: Trial) -> str:
        """Return what a trial ran with, in words."""
        return setting_words(self.settings[trial.trial]) if trial.trial in self.settings else knob_words(trial.knobs)

    def __bool__(self) -> bool:
        return bool(self.trials or self.default or self.result)


def data(run: RunInfo) -> TuningHistory:
    """Return the tuning history of a run; an empty one when it was not tuned."""
    rows, problems = read_rows(run.path, layout.tuning_journal(run.path))
    return history(rows, problems)


def history(rows: Sequence[dict[str, Any]], problems: Sequence[str] = ()) -> TuningHistory:
    """Return the history in the journal's events; the last session when the journal holds several."""
    said = list(problems)
    starts = [index for index, row in enumerate(rows) if row.get("event") == "start"]
    rows = rows[starts[-1] :] if starts else rows
    start = rows[0] if starts else {}
    trials = _parsed(rows, "trial", records.trial, said)
    results = _parsed(rows, "result", records.tuning_result, said)
    said_of = {integer(row.get("trial"), -1): row for row in rows if row.get("event") == "trial"}
    settings = {number: _variables(row) for number, row in said_of.items() if "settings" in row}
    failed = [row for row in rows if row.get("event") == "failed-trial"]
    ends = [row for row in rows if row.get("event") == "result"]
    gains = {number: real(mapping(row.get("gain")).get("median")) for number, row in said_of.items()}
    return TuningHistory(
        trials=tuple(trials),
        gains={number: gain for number, gain in gains.items() if math.isfinite(gain)},
        lost=tuple((number, integer(row.get("lost_ns"))) for number, row in said_of.items() if "lost_ns" in row),
        default={key: integer(value) for key, value in layout.current_keys(mapping(start.get("default"))).items()},
        world=integer(start.get("world")),
        result=results[-1] if results else None,
        problems=tuple(said),
        settings=settings,
        kept=_variables(ends[-1]) if ends else {},
        made=_variables(ends[-1], "made") if ends else {},
        failed=tuple((integer(row.get("trial"), -1), _variables(row), text(row.get("message"))) for row in failed),
        not_searched=tuple(map(text, pinned)) if isinstance(pinned := start.get("not_searched"), list) else (),
    )


def _variables(row: Mapping[str, Any], key: str = "settings") -> dict[str, str]:
    """Return the variables that a line of the journal names."""
    return {plain(name, 80): plain(value, 80) for name, value in mapping(row.get(key)).items()}


def _parsed(
    rows: Sequence[dict[str, Any]], event: str, parse: Callable[[dict[str, Any]], Parsed], problems: list[str]
) -> list[Parsed]:
    found = []
    for row in rows:
        if row.get("event") == event:
            try:
                found.append(parse(row))
            except (ValueError, TypeError, OverflowError) as error:
                problems.append(f"tuning/{layout.JOURNAL_FILE}: {plain(error)}; left out")
    return found


KNOBS = ("fusion_bytes", "cycle_time_ns")
"""The knobs that are searched."""


def placed(past: TuningHistory) -> list[tuple[Trial, Estimate]]:
    """Return the trials that have a place on the plane of both knobs and a step time, both of a sane size."""
    found = []
    for trial in past.trials if not past.with_restarts else ():
        step, knobs = trial.step_ns, [trial.knobs.get(name, 0) for name in KNOBS]
        if step is not None and 0 < step.median < 1e18 and all(0 < value < 2**62 for value in knobs):
            found.append((trial, step))
    return found


def against_default(past: TuningHistory, trial: Trial) -> float | None:
    """Return a trial's step time as a share of the default's; None where the default was not measured.

    As the tuner compared both around the same time, else by the newest measurement of the default.
    """
    base, gain = default_step_ns(past), past.gains.get(trial.trial)
    if trial.source == "default":
        return 1.0
    if gain is not None:
        return 1 - gain
    return trial.step_ns.median / base.median if base and base.median > 0 and trial.step_ns else None


def best_confirmed(past: TuningHistory) -> tuple[list[int], list[float]]:
    """Return, at each trial, the newest median step time in ns of the setting that was confirmed by then.

    That is the default, until the result names another: a lower median alone confirms nothing. Trials before the first
    measurement are left out.
    """
    numbers: list[int] = []
    best: list[float] = []
    for trial in past.trials:
        if confirmed(trial) and trial.step_ns is not None and _confirmed_setting(past, trial):
            current = trial.step_ns.median
        elif best:
            current = best[-1]
        else:
            continue
        numbers.append(trial.trial)
        best.append(current)
    return numbers, best


def _confirmed_setting(past: TuningHistory, trial: Trial) -> bool:
    """Whether the trial ran the default, or the setting that the session chose instead."""
    improved = past.result is not None and past.result.decision == "improved"
    if past.with_restarts:
        return past.settings.get(trial.trial, {}) == (past.kept if improved else {}) or trial.source == "default"
    kept = past.result.knobs if past.result is not None and improved else None
    if trial.source == "default" or _same_setting(trial.knobs, past.default):
        return kept is None or trial.source == "default"
    return kept is not None and _same_setting(trial.knobs, kept)


def _same_setting(knobs: Mapping[str, int], other: Mapping[str, int]) -> bool:
    return bool(other) and all(knobs.get(name) == value for name, value in other.items() if name in knobs)


def default_step_ns(past: TuningHistory) -> Estimate | None:
    """Return the newest measurement of the default setting; None before there is one."""
    found = [trial.step_ns for trial in past.trials if trial.source == "default" and confirmed(trial)]
    return found[-1] if found else None


def knob_words(knobs: Mapping[str, int]) -> str:
    """Return a setting in words: ``fusion buffer 64 MiB, cycle time 1.00 ms``, and what else differs from usual."""
    words = [f"fusion buffer {size(knobs.get('fusion_bytes'))}", f"cycle time {duration(knobs.get('cycle_time_ns'))}"]
    return ", ".join([*words, *other_words(knobs)])


def other_words(knobs: Mapping[str, int]) -> list[str]:
    """Return in words what else than fusion and cycle differs from usual; nothing of values that are none."""
    known = _known(knobs)
    return messages.other_words(known) if known is not None else []


def _known(knobs: Mapping[str, int]) -> Knobs | None:
    """Return the knobs of a journal; None where one has a value that it cannot have."""
    try:
        return Knobs.from_dict(knobs)
    except InvalidArgument:
        return None


def _lines(past: TuningHistory, result: TuningResult) -> list[str]:
    """Return what keeps the result: lines of the environment, and of the script where there are some."""
    if past.with_restarts:
        script = messages.script_lines(past.kept, past.made)
        return [
            f"To keep it: {messages.variables(past.kept)}.",
            *([f"Or in the script: {'; '.join(script)}."] if script else []),
        ]
    known = _known(result.knobs)
    return [f"To keep it: {' '.join(messages.knob_lines(known))}."] if known is not None else []


def setting_words(setting: Mapping[str, str]) -> str:
    """Return variables in words, for example ``RINGTUNE_SOCKETS_PER_PEER=4``."""
    return ", ".join(f"{name}={value}" for name, value in setting.items()) or "the command as it is"


def words(past: TuningHistory) -> list[str]:
    """Return the session's decision in sentences."""
    if not past:
        return []
    stopped = sum(trial.state == "stopped-early" for trial in past.trials)
    tried = several(len(past.trials), "trial") + (" so far" if past.result is None else "")
    tried += f", {stopped} of them stopped early for being clearly slower." if stopped else "."
    tried += f" {len(past.failed)} more failed." if past.failed else ""
    pinned = [plain(f"Not searched: {', '.join(past.not_searched)}.", 600)] if past.not_searched else []
    if past.result is None:
        return ["The session is still searching, or it was ended without a result.", tried, *pinned]
    kept = _lines(past, past.result) if past.result.decision == "improved" else []
    return [_decision(past, past.result), *kept, *_lost(past.result), tried, *pinned]


def _decision(past: TuningHistory, result: TuningResult) -> str:
    setting = setting_words(past.kept) if past.with_restarts else knob_words(result.knobs)
    because = plain(result.reason, 300).rstrip(".")
    reason = f" {because[:1].upper()}{because[1:]}." if because else ""
    if result.decision == "improved":
        return f"A better setting was found and confirmed: {setting}.{_gain(result.gain)}"
    if result.decision == "keep-default":
        return f"The default stays: {setting}.{reason}"
    if result.decision == "interrupted":
        return f"The session was interrupted; what stays: {setting}.{reason}"
    return f"The session ended with {setting}.{reason}"


def _gain(gain: Estimate | None) -> str:
    if gain is None or not math.isfinite(gain.median):
        return ""
    bounds = f"{percent(gain.low)} to {percent(gain.high)}"
    return f" A step takes {percent(gain.median)} less time than with the default ({bounds})."


def _lost(result: TuningResult) -> list[str]:
    return (
        [f"The search cost {duration(result.lost_ns)} against training with the default."] if result.lost_ns > 0 else []
    )
