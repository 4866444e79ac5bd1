"""The tuner's records in words for people, and the environment that keeps a result."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping

from ringtune.autoload import ARGUMENTS
from ringtune.knobs import BY_NAME, TABLE, Knobs
from ringtune.timeline.units import bytes_text, several
from ringtune.tuner.records import (
    FailedRecord,
    NoteRecord,
    ProgressRecord,
    Record,
    ResultRecord,
    StartRecord,
    TrialRecord,
    knobs_fields,
)
from ringtune.tuner.scoring import Interval
from ringtune.variables import VARIABLES

SOURCES = {
    "default": "default",
    "stored": "from an earlier session",
    "near": "from a job like it",
    "model": "from the cost model",
    "start-point": "start point",
    "sampler": "suggested",
    "switch": "switch",
    "confirm": "confirmation",
}


def describe(knobs: Knobs) -> str:
    """Return a setting: ``fusion 32 MiB, cycle 0.25 ms``, and what else differs from `DEFAULTS`."""
    words = [" ".join(knob_words(knobs, name)) for name in ("fusion_bytes", "cycle_time_ns")]
    return ", ".join([*words, *other_words(knobs)])


def other_words(knobs: Knobs) -> list[str]:
    """Return in words what else than fusion and cycle differs from `DEFAULTS`."""
    others = [row for row in TABLE if row.scale is None and getattr(knobs, row.name) != row.default]
    return [
        " ".join(knob_words(knobs, row.name)) if getattr(knobs, row.name) or row.choices else f"no {row.label}"
        for row in others
    ]


def knob_words(knobs: Knobs, name: str) -> tuple[str, str]:
    """Return a knob's name and value in words, for example ``("fusion", "32 MiB")``."""
    row = BY_NAME[name]
    value = getattr(knobs, name)
    if row.choices:
        return row.label, row.choices[value]
    if row.kind == "bool":
        return row.label, "on" if value else "off"
    if row.kind == "float":
        return row.label, f"{value / 1e6:.3g} ms"
    return row.label, bytes_text(value) if row.unit == "bytes" else f"{value} {row.noun}".strip()


def not_searched(record: StartRecord) -> str:
    """Return what the environment keeps from being searched; empty where it does not."""
    return f"not searched: {', '.join(record.not_searched)}" if record.not_searched else ""


def settled(record: TrialRecord | ProgressRecord | ResultRecord) -> str:
    """Return the setting of a record in words, whatever kind it is."""
    return describe(record.knobs) if record.settings is None else variables(record.settings)


def variables(settings: Mapping[str, str]) -> str:
    """Return variables as one writes them before a command."""
    return " ".join(f"{name}={value}" for name, value in settings.items()) or "the command as it is"


def percent(share: float) -> str:
    """Return a share, for example ``4.2 %``; without a finite value ``unknown``."""
    return f"{round(100.0 * share, 1) + 0.0:.1f} %" if math.isfinite(share) else "unknown"  # never -0.0


def spread(gain: Interval) -> str:
    """Return a gain with its interval: ``4.2 % (1.0 % to 7.3 %)``."""
    return f"{percent(gain.median)} ({percent(gain.low)} to {percent(gain.high)})"


def milliseconds(ns: float) -> str:
    """Return a duration in milliseconds with three significant digits or more."""
    return f"{ns / 1e6:.2f} ms" if ns < 1e7 else f"{ns / 1e6:.1f} ms" if ns < 1e8 else f"{ns / 1e6:.0f} ms"


def sentence(record: Record) -> str:
    """Return a record as one line."""
    if isinstance(record, StartRecord):
        known = f"; stored: {several(record.stored_trials, 'trial')} of this job" if record.stored_trials else ""
        pinned = f"; {not_searched(record)}" if record.not_searched else ""
        what = ", ".join(map(_label, record.searched)) or "nothing"
        with_restarts = any(name.isupper() for name in record.searched)  # variables of the environment, no knobs
        default = variables({}) if with_restarts else describe(record.default)
        return (
            f"searching {what} on {record.world} ranks, at most {record.max_trials} trials of "
            f"{record.steps_per_trial} steps; default: {default}{known}{pinned}"
        )
    if isinstance(record, TrialRecord):
        left = ", left early" if record.state == "stopped-early" else ""
        gain = "" if record.source == "default" else f", gain {percent(record.gain.median)}"
        return (
            f"trial {record.trial} ({SOURCES[record.source]}): {settled(record)}: "
            f"{milliseconds(record.step_ns.median)} a step{gain}{left}"
        )
    if isinstance(record, ProgressRecord):
        return _comparing(record)
    if isinstance(record, NoteRecord):
        return record.message
    if isinstance(record, FailedRecord):
        return f"trial {record.trial} failed: {variables(record.settings)}: {record.message}"
    if record.decision == "improved":
        return f"improved: {settled(record)}; {record.reason}"
    kept = "keeping the default" if record.decision == "keep-default" else "interrupted"
    return f"{kept} ({settled(record)}): {record.reason}"


def _label(name: str) -> str:
    return BY_NAME[name].label if name in BY_NAME else name


def _comparing(record: ProgressRecord) -> str:
    what = "checking" if record.phase == "check" else "confirming"
    pieces = "block" if record.settings is None else "pair of runs"
    if not record.blocks:
        number = several(record.rivals, "setting")
        how = f"{pieces}s" if record.settings is None else "pairs of runs"
        return f"{what} {number} against the default in {how} right after each other, at most {record.most}"
    gain = f": gain {spread(record.gain)}" if record.blocks > 1 else ""
    best = f"best of {record.rivals}: " if record.rivals > 1 else ""
    done = f"{pieces} {record.blocks} of at most {record.most}, the next look after {record.next_look}"
    return f"{what}: {done}; {best}{settled(record)}{gain}"


_CALLS = {
    "DistributedDataParallel": "DistributedDataParallel(model, {})",
    "fully_shard": "fully_shard(module, {})",
    "DataLoader": "DataLoader(dataset, {})",
}
_PREFETCH = (
    "layers[i].set_modules_to_forward_prefetch(layers[i + 1 :][:{}])",
    "layers[i].set_modules_to_backward_prefetch(layers[:i][::-1][:{}])",
)
_SWITCHES = {variable.field for variable in VARIABLES if variable.kind == "bool"}


def script_lines(settings: Mapping[str, str], made: Mapping[str, str] | None = None) -> list[str]:
    """Return the lines of a script that do what variables of torch's parts do.

    Args:
        settings: The variables.
        made: What the script makes these parts with, as variables: DDP's buckets are all in one argument.
    """
    words: dict[str, list[str]] = {}
    lines: list[str] = []
    given = dict(settings)
    if (first := given.pop("RINGTUNE_DDP_FIRST_BUCKET_MB", None)) is not None:
        others = given.pop("RINGTUNE_BUCKET_CAP_MB", "") or (made or {}).get("RINGTUNE_BUCKET_CAP_MB") or "25"
        words["DistributedDataParallel"] = [f"bucket_cap_mb_list=[{first}, {others}]"]
    for name, value in given.items():
        part, argument = ARGUMENTS.get(name, ("", ""))
        if argument == "prefetch":
            lines += [line.format(value) for line in _PREFETCH]
        elif part:
            words.setdefault(part, []).append(f"{argument}={value == '1' if argument in _SWITCHES else value}")
    return [*(_CALLS[part].format(", ".join(words[part])) for part in words), *lines]


def environment(result: ResultRecord) -> list[str]:
    """Return the lines of an environment that keeps a confirmed setting; the default needs none."""
    if result.decision != "improved":
        return []
    if result.settings is not None:
        kept = [f"{name}={shlex.quote(value)}" for name, value in result.settings.items()]
        return [*kept, *(f"# or in the script: {line}" for line in script_lines(result.settings, result.made))]
    return knob_lines(result.knobs)


def knob_lines(knobs: Knobs) -> list[str]:
    """Return the lines of an environment that give a job these knobs."""
    kept = knobs_fields(knobs)
    return [f"RINGTUNE_{row.variable}={row.text(kept[row.name])}" for row in TABLE if row.name in kept]
