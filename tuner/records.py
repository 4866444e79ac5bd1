"""What the tuner did, as records: the lines of the tuning journal (`ringtune.layout.tuning_journal`).

Every record carries its units in the field names. Readers must ignore events and fields they do not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, TypeVar

from ringtune.knobs import DEFAULTS, Knobs
from ringtune.layout import current_keys
from ringtune.tuner.scoring import NO_GAIN, Interval

Source = Literal["default", "stored", "near", "model", "start-point", "sampler", "switch", "confirm"]
TrialState = Literal["complete", "stopped-early"]
Decision = Literal["improved", "keep-default", "interrupted"]


def knobs_fields(knobs: Knobs) -> dict[str, int]:
    """Return a setting as the journal holds it: fusion size, cycle time, and others that differ from `DEFAULTS`."""
    always = ("fusion_bytes", "cycle_time_ns")
    usual = DEFAULTS.as_dict()
    return {name: value for name, value in knobs.as_dict().items() if name in always or value != usual[name]}


@dataclass(frozen=True)
class StartRecord:
    """A session begins: its default, its budget, and what is known about the job.

    ``not_searched``: settings that the environment pins, as texts: ``fusion (64 KiB, set by
    RINGTUNE_FUSION_THRESHOLD)``.
    """

    event: ClassVar[str] = "start"
    default: Knobs
    fingerprint: str
    world: int
    searched: tuple[str, ...]
    max_trials: int
    steps_per_trial: int
    stored_trials: int = 0
    not_searched: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {
            "event": self.event,
            **({"not_searched": list(self.not_searched)} if self.not_searched else {}),
            "default": knobs_fields(self.default),
            "fingerprint": self.fingerprint,
            "world": self.world,
            "searched": list(self.searched),
            "max_trials": self.max_trials,
            "steps_per_trial": self.steps_per_trial,
            "stored_trials": self.stored_trials,
        }


@dataclass(frozen=True)
class TrialRecord:
    """One setting was measured.

    Attributes:
        trial: Number of the trial; 0 is the default.
        source: Where the setting came from; ``confirm`` = measured again beside the default.
        state: ``stopped-early``: it was clearly worse and was left.
        knobs: The setting.
        knobs_version: Version of the knobs (the newest one, when the setting was measured in several blocks).
        steps: Steps counted (without those discarded after the change).
        step_ns: Median step time with its 95 % interval, in nanoseconds.
        gain: Share of the default's step time saved, against steps of the default measured around the same time.
        bytes: Payload a step and rank, in bytes.
        lost_ns: Time lost by the search so far against the default; negative when time was won.
        settings: Variables of the run, by name, where every trial is a run; None where knobs are turned in one.
    """

    event: ClassVar[str] = "trial"
    trial: int
    source: Source
    state: TrialState
    knobs: Knobs
    knobs_version: int
    steps: int
    step_ns: Interval
    gain: Interval = NO_GAIN
    bytes: int = 0
    lost_ns: int = 0
    settings: Mapping[str, str] | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "event": self.event,
            "trial": self.trial,
            "source": self.source,
            "state": self.state,
            "knobs": knobs_fields(self.knobs),
            "knobs_version": self.knobs_version,
            "steps": self.steps,
            "step_ns": self.step_ns.as_dict(),
            "gain": self.gain.as_dict(),
            "bytes": self.bytes,
            "lost_ns": self.lost_ns,
            **_settings_field(self.settings),
        }


@dataclass(frozen=True)
class FailedRecord:
    """A run under a setting failed: a trial without a figure.

    Attributes:
        trial: Number of the trial.
        settings: Variables of the run.
        message: What went wrong, one sentence.
    """

    event: ClassVar[str] = "failed-trial"
    trial: int
    settings: Mapping[str, str]
    message: str

    def as_dict(self) -> dict[str, Any]:
        return {
            "event": self.event,
            "trial": self.trial,
            "message": self.message,
            **_settings_field(self.settings),
        }


@dataclass(frozen=True)
class ProgressRecord:
    """How far a comparison with the default is.

    Attributes:
        phase: ``check``: of a stored setting; ``confirm``: of the best ones of the search.
        blocks: Compared so far, each setting once in each (with restarts: pairs of runs).
        next_look: After how many the comparison may end next.
        most: How many it takes at most.
        rivals: Settings that are still compared with the default.
        knobs: The best of them so far.
        gain: Its gain with the interval that decides; zeros before the second block.
        settings: The best of them where every trial is a run; None elsewhere.
    """

    event: ClassVar[str] = "progress"
    phase: Literal["check", "confirm"]
    blocks: int
    next_look: int
    most: int
    rivals: int
    knobs: Knobs
    gain: Interval = NO_GAIN
    settings: Mapping[str, str] | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "event": self.event,
            "phase": self.phase,
            "blocks": self.blocks,
            "next_look": self.next_look,
            "most": self.most,
            "rivals": self.rivals,
            "knobs": knobs_fields(self.knobs),
            "gain": self.gain.as_dict(),
            **_settings_field(self.settings),
        }


@dataclass(frozen=True)
class NoteRecord:
    """Something the reader of the journal should know, for example that the advisor failed."""

    event: ClassVar[str] = "note"
    message: str

    def as_dict(self) -> dict[str, Any]:
        return {"event": self.event, "message": self.message}


@dataclass(frozen=True)
class ResultRecord:
    """A session ended.

    Attributes:
        decision: ``improved``: knobs were confirmed to be faster; otherwise the default stays.
        knobs: The setting that stays.
        knobs_version: Version of the knobs it runs under (0-based; the newest proposed one).
        gain: Share of the default's step time that the kept setting saves; zeros when the default is kept.
        lost_ns: Time lost by the whole search against the default; negative when time was won.
        reason: One sentence for the user.
        trials: Number of trials made, the default included, confirmations not.
        settings: Variables to keep, where every trial was a run; None elsewhere.
        made: What the job's script makes torch's parts with, as the variables that set it.
    """

    event: ClassVar[str] = "result"
    decision: Decision
    knobs: Knobs
    knobs_version: int
    gain: Interval
    lost_ns: int
    reason: str
    trials: int = 0
    settings: Mapping[str, str] | None = None
    made: Mapping[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {
            "event": self.event,
            "decision": self.decision,
            "knobs": knobs_fields(self.knobs),
            "knobs_version": self.knobs_version,
            "gain": self.gain.as_dict(),
            "lost_ns": self.lost_ns,
            "reason": self.reason,
            "trials": self.trials,
            **_settings_field(self.settings),
            **({"made": dict(self.made)} if self.made else {}),
        }


def _settings_field(settings: Mapping[str, str] | None) -> dict[str, Any]:
    return {} if settings is None else {"settings": dict(settings)}


Record = StartRecord | TrialRecord | FailedRecord | ProgressRecord | NoteRecord | ResultRecord

_KINDS: dict[str, type[Any]] = {
    kind.event: kind for kind in (StartRecord, TrialRecord, FailedRecord, ProgressRecord, NoteRecord, ResultRecord)
}
_Built = TypeVar("_Built")


def build(kind: type[_Built], values: Mapping[str, Any]) -> _Built:
    """Rebuild a record from its `as_dict`; fields it does not know are ignored.

    Raises:
        TypeError: A field is missing.
        ValueError: A value makes no sense.
    """
    values = current_keys(values)
    known = {item.name: values[item.name] for item in fields(kind) if item.name in values}  # type: ignore[arg-type]
    for name, value in known.items():
        if name in ("knobs", "default"):
            known[name] = Knobs.from_dict(value)
        elif isinstance(value, dict) and name not in ("settings", "made"):
            known[name] = Interval(**value)
        elif isinstance(value, list):
            known[name] = tuple(value)
    return kind(**known)


def parse(event: Mapping[str, Any]) -> Record | None:
    """Return the record of a journal's line; None for an event that is not known."""
    kind = _KINDS.get(event.get("event", ""))
    record: Record | None = build(kind, event) if kind is not None else None
    return record


@dataclass
class Outbox:
    """Records waiting for the journal."""

    records: list[Record] = field(default_factory=list)

    def put(self, record: Record) -> None:
        self.records.append(record)

    def take(self) -> list[Record]:
        """Return the waiting records in order and forget them."""
        taken, self.records = self.records, []
        return taken
