"""Typed rows of the small files in a run folder: step statistics, the tuning journal, scaling records.

Parsers raise `ValueError` with what is wrong; `ringtune.timeline.runs.run` adds the path and keeps it as a problem of
the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ringtune import layout
from ringtune.timeline.frames import Column, Tabular
from ringtune.timeline.spans import Ints

STEP_FIELDS = (
    "step",
    "knobs_version",
    "begin_ns",
    "end_ns",
    "bytes",
    "collectives",
    "batches",
    "negotiate_ns",
    "communicate_ns",
    "copy_ns",
    "wait_ns",
    "control_messages",
    "control_bytes",
)


@dataclass(frozen=True)
class StepTable(Tabular):
    """Step statistics of one rank, one row a step, as int64 columns.

    Times are nanoseconds on the rank's monotonic clock; ``wait_ns`` is the time callers were blocked (exposed
    communication), ``bytes`` the reduced payload of this rank.
    """

    rank: int
    step: Ints
    knobs_version: Ints
    begin_ns: Ints
    end_ns: Ints
    bytes: Ints
    collectives: Ints
    batches: Ints
    negotiate_ns: Ints
    communicate_ns: Ints
    copy_ns: Ints
    wait_ns: Ints
    control_messages: Ints
    control_bytes: Ints

    def __len__(self) -> int:
        return len(self.step)

    @property
    def wall_ns(self) -> Ints:
        """Length of each step."""
        return self.end_ns - self.begin_ns

    def row_count(self) -> int:
        """Return the number of steps."""
        return len(self)

    def columns(self, most: int | None = None) -> dict[str, Column]:
        """Return the columns, with the rank and the length of each step."""
        found: dict[str, Column] = {name: getattr(self, name)[:most] for name in (*STEP_FIELDS, "wall_ns")}
        return {"rank": np.full(len(self.step[:most]), self.rank), **found}


def step_table(rank: int, lines: Iterable[Mapping[str, Any]]) -> StepTable:
    """Build a rank's table from its log's lines; fields a line lacks count as 0."""
    rows = [layout.current_keys(line) for line in lines]
    columns = {name: np.array([int(row.get(name, 0)) for row in rows], dtype=np.int64) for name in STEP_FIELDS}
    return StepTable(rank=rank, **columns)


@dataclass(frozen=True)
class Estimate:
    """A measured value with its confidence interval (same unit as the value) and, if kept, its samples."""

    median: float
    low: float
    high: float
    samples: tuple[float, ...] = ()


def estimate(value: object) -> Estimate:
    """Read ``{"median", "low", "high", "samples"?}``; a missing bound is the median itself.

    Raises:
        ValueError: It is no such object.
    """
    if not isinstance(value, Mapping) or "median" not in value:
        raise ValueError(f'expected an object with "median", "low", "high", got {value!r:.80}')
    median = float(value["median"])
    samples = tuple(float(sample) for sample in value.get("samples") or ())
    return Estimate(median, float(value.get("low", median)), float(value.get("high", median)), samples)


@dataclass(frozen=True)
class Trial:
    """One setting the tuner measured. ``step_ns`` is the time of a step under it; None if it was never measured."""

    trial: int
    source: str
    state: str
    knobs: Mapping[str, int]
    knobs_version: int
    steps: int
    step_ns: Estimate | None
    at_unix_ns: int


@dataclass(frozen=True)
class TuningResult:
    """How a tuning session ended: ``improved``, ``keep-default`` or ``interrupted``; ``gain`` is a ratio."""

    decision: str
    knobs: Mapping[str, int]
    knobs_version: int
    gain: Estimate | None
    lost_ns: int
    reason: str
    at_unix_ns: int


@dataclass(frozen=True)
class TuningHistory:
    """The tuning journal: typed trials and results, and every line as it stands (``events``)."""

    events: tuple[Mapping[str, Any], ...] = ()
    trials: tuple[Trial, ...] = ()
    results: tuple[TuningResult, ...] = ()

    @property
    def default(self) -> Mapping[str, int] | None:
        """Knobs the last session started from; None without a start line."""
        starts = [event for event in self.events if event.get("event") == "start"]
        default = starts[-1].get("default") if starts else None
        return layout.current_keys(default) if isinstance(default, Mapping) else default

    @property
    def result(self) -> TuningResult | None:
        """The last session's result; None while it runs."""
        return self.results[-1] if self.results else None

    def __bool__(self) -> bool:
        return bool(self.events)


def trial(line: Mapping[str, Any]) -> Trial:
    """Read a journal line with ``"event": "trial"``.

    Raises:
        ValueError: A field is missing or of a wrong type.
    """
    line = layout.current_keys(line)
    step_ns = line.get("step_ns")
    try:
        return Trial(
            trial=int(line["trial"]),
            source=str(line.get("source", "")),
            state=str(line.get("state", "")),
            knobs=_knobs(line["knobs"]),
            knobs_version=int(line.get("knobs_version", 0)),
            steps=int(line.get("steps", 0)),
            step_ns=None if step_ns is None else estimate(step_ns),
            at_unix_ns=int(line.get("at_unix_ns", 0)),
        )
    except KeyError as missing:
        raise ValueError(f"a trial without {missing}") from None
    except TypeError as wrong:
        raise ValueError(f"a trial with a field of a wrong type ({wrong})") from None


def tuning_result(line: Mapping[str, Any]) -> TuningResult:
    """Read a journal line with ``"event": "result"``.

    Raises:
        ValueError: A field is missing or of a wrong type.
    """
    line = layout.current_keys(line)
    gain = line.get("gain")
    try:
        return TuningResult(
            decision=str(line["decision"]),
            knobs=_knobs(line["knobs"]),
            knobs_version=int(line.get("knobs_version", 0)),
            gain=None if gain is None else estimate(gain),
            lost_ns=int(line.get("lost_ns", 0)),
            reason=str(line.get("reason", "")),
            at_unix_ns=int(line.get("at_unix_ns", 0)),
        )
    except KeyError as missing:
        raise ValueError(f"a result without {missing}") from None
    except TypeError as wrong:
        raise ValueError(f"a result with a field of a wrong type ({wrong})") from None


def _knobs(value: object) -> Mapping[str, int]:
    if not isinstance(value, Mapping):
        raise ValueError(f"knobs must be an object, got {value!r:.80}")
    return {str(name): int(number) for name, number in layout.current_keys(value).items()}


@dataclass(frozen=True)
class ScalingPoint:
    """A benchmark at one number of ranks: rate of the whole job, efficiency = rate(n) / (n * rate(base))."""

    ranks: int
    hosts: int
    rate: Estimate
    efficiency: Estimate | None
    per_rank: tuple[float, ...] = ()


@dataclass(frozen=True)
class ScalingRecord:
    """A scaling benchmark: its points, those of peers measured beside it, and ``data``, the document as written."""

    name: str
    benchmark: str
    model: str
    unit: str
    points: tuple[ScalingPoint, ...]
    peers: Mapping[str, tuple[ScalingPoint, ...]]
    data: Mapping[str, Any]


def scaling_record(name: str, document: object) -> ScalingRecord:
    """Read a scaling record; points come back sorted by ranks.

    Raises:
        ValueError: It is no scaling record.
    """
    document = _with_records(document)
    peers = document.get("peers") or {}
    if not isinstance(peers, Mapping):
        raise ValueError(f'"peers" is no object: {peers!r:.80}')
    return ScalingRecord(
        name=name,
        benchmark=str(document.get("benchmark", name)),
        model=str(document.get("model", "")),
        unit=str(document.get("unit", "")),
        points=_points(document),
        peers={str(peer): _points(measured) for peer, measured in peers.items()},
        data=document,
    )


def _points(document: object) -> tuple[ScalingPoint, ...]:
    entries = _with_records(document)["records"]
    return tuple(sorted((_point(entry) for entry in entries), key=lambda point: (point.ranks, point.hosts)))


def _with_records(document: object) -> Mapping[str, Any]:
    if not isinstance(document, Mapping) or not isinstance(document.get("records"), list):
        raise ValueError('no scaling record: expected an object with a list "records"')
    return document


def _point(entry: object) -> ScalingPoint:
    if not isinstance(entry, Mapping) or "ranks" not in entry or "rate" not in entry:
        raise ValueError(f'a record without "ranks" and "rate": {entry!r:.80}')
    efficiency = entry.get("efficiency")
    return ScalingPoint(
        ranks=int(entry["ranks"]),
        hosts=int(entry.get("hosts", 1)),
        rate=estimate(entry["rate"]),
        efficiency=None if efficiency is None else estimate(efficiency),
        per_rank=tuple(float(rate) for rate in entry.get("per_rank") or ()),
    )
