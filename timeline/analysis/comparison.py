"""What got slower or faster between two runs, with confidence intervals, worst first.

A sample is one step. Compared are the length of the step; per rank what it computed and waited, and what the user's
ranges took; per stage the time of its spans (mean of the ranks); and the same per tensor. The difference of the means
comes with a bootstrap interval, the p-value is Mann and Whitney's, corrected for the number of comparisons (Holm).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from ringtune.errors import RingtuneError
from ringtune.timeline.analysis.batches import rank_steps
from ringtune.timeline.analysis.buckets import bucket_names
from ringtune.timeline.analysis.pauses import computing
from ringtune.timeline.analysis.significance import Floats, bootstrap_difference, holm, mann_whitney, thinned
from ringtune.timeline.analysis.steps import LONGER, job_step_lengths
from ringtune.timeline.analysis.verdicts import DATA_LOADING
from ringtune.timeline.distinct import distinct, distinct_numbers, numbered_rows
from ringtune.timeline.frames import Column, Tabular
from ringtune.timeline.spans import Ints, SpanTable, Trace
from ringtune.timeline.units import tensor_text
from ringtune.timeline.vocabulary import DEVICE_STAGES, Stage

LEVEL = 0.95
SURE = 0.05
TENSOR_STAGES = (Stage.NEGOTIATE, Stage.QUEUE, Stage.COMMUNICATE)
MOST_RANGES = 40
"""Ranges (times ranks) that are compared; beyond, only the longest are."""
LARGEST_CELLS = 20_000_000
"""Steps x tensors that are compared one by one; beyond, only stages are."""


@dataclass(frozen=True)
class Change:
    """One thing in both runs; times are nanoseconds a step, ``difference_ns`` = B - A with its interval.

    ``kind``: ``step``; ``compute``, ``waiting`` or ``range`` (per rank); ``stage``; ``tensor``. ``verdict``:
    ``slower``, ``faster``, ``same`` (the interval holds zero) or ``unclear`` (it does not, but among so many rows the
    test cannot tell the runs apart).
    """

    kind: str
    what: str
    first_ns: float
    second_ns: float
    difference_ns: float
    low_ns: float
    high_ns: float
    p_value: float
    verdict: str

    @property
    def ratio(self) -> float | None:
        """B / A; None when there was nothing in A."""
        return self.second_ns / self.first_ns if self.first_ns else None


@dataclass(frozen=True)
class LongSteps:
    """Steps of a run that took more than `LONGER` times its median one: what they took beyond it, and its share.

    ``usual_ns``: the median step.
    """

    steps: tuple[int, ...]
    extra_ns: int
    share: float
    usual_ns: int

    @staticmethod
    def of(spans: SpanTable) -> LongSteps:
        """Return those of a trace with steps."""
        steps, lengths = job_step_lengths(spans)
        usual = float(np.median(lengths))
        long = lengths > LONGER * usual
        extra = int((lengths[long] - usual).sum())
        return LongSteps(tuple(steps[long].tolist()), extra, extra / max(1, int(lengths.sum())), int(usual))


@dataclass(frozen=True)
class Comparison(Tabular):
    """Two runs; ``only_*`` name what just one of them has, ``*_long`` the steps that stand out."""

    first: str
    second: str
    first_steps: int
    second_steps: int
    changes: tuple[Change, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    first_long: LongSteps
    second_long: LongSteps

    def row_count(self) -> int:
        """Return the number of changes."""
        return len(self.changes)

    def columns(self, most: int | None = None) -> dict[str, Column]:
        """Return the changes, worst first."""
        rows = [{**asdict(change), "ratio": change.ratio} for change in self.changes[:most]]
        names = [*(one.name for one in fields(Change)), "ratio"]
        return {name: [row[name] for row in rows] for name in names}

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        found = asdict(self)
        for change, plain in zip(self.changes, found["changes"], strict=True):
            plain["ratio"] = change.ratio
        return found


Samples = Mapping[tuple[str, str], Floats]
"""(kind, what): nanoseconds by step."""


def compare(first: Trace, second: Trace, tensors: int = 20) -> Comparison:
    """Compare two traces; at most ``tensors`` tensors are listed, those that changed most.

    Raises:
        RingtuneError: One of them has fewer than two steps.
    """
    buckets = {**bucket_names(second), **bucket_names(first)}  # one may be an older recording
    samples = tuple(_samples(trace, buckets) for trace in (first, second))
    steps = [len(found["step", "step"]) if ("step", "step") in found else 0 for found in samples]
    for trace, count in zip((first, second), steps, strict=True):
        if count < 2:
            raise RingtuneError(
                f"{trace.path or 'trace'}: {count} steps; a comparison draws steps and needs at least two "
                "(call `session.end_step()` or use an optimizer that does, or PyTorch's `profiler.step()`)"
            )
    alone = [
        sorted((f"{kind} {what}" for kind, what in samples[at].keys() - samples[1 - at].keys()), key=_natural)
        for at in (0, 1)
    ]
    return Comparison(
        first=str(first.path or ""),
        second=str(second.path or ""),
        first_steps=steps[0],
        second_steps=steps[1],
        changes=contrast(samples[0], samples[1], tensors),
        only_first=tuple(alone[0]),
        only_second=tuple(alone[1]),
        first_long=LongSteps.of(first.spans),
        second_long=LongSteps.of(second.spans),
    )


def contrast(first: Samples, second: Samples, tensors: int = 20) -> tuple[Change, ...]:
    """Compare what both hold, worst first; at most ``tensors`` tensors, those that changed most."""
    shared = _chosen(first, second, tensors)
    changes = [_change(key, first[key], second[key]) for key in shared]
    corrected = holm([change.p_value for change in changes])
    judged = [_judged(change, p_value) for change, p_value in zip(changes, corrected, strict=True)]
    return tuple(sorted(judged, key=_worst_first))


def _samples(trace: Trace, buckets: Mapping[int, str]) -> Samples:
    spans, found = trace.spans, dict[tuple[str, str], Floats]()
    steps, lengths = job_step_lengths(spans)
    if not len(steps):
        return found
    found["step", "step"] = lengths.astype(np.float64)
    for rank in trace.ranks:
        _rank_samples(trace, rank, found)
    inside = spans.take(np.isin(spans.step, steps))
    ranks = max(1, len(distinct(inside.rank)))
    compared = (Stage.NEGOTIATE, Stage.QUEUE, Stage.COPY_IN, Stage.COMMUNICATE, Stage.COPY_OUT)
    for stage in (*compared, *sorted(DEVICE_STAGES)):
        chosen = inside.of_stage(stage)
        if len(chosen):
            found["stage", stage.label] = _sums(chosen, steps, np.zeros(len(chosen), dtype=np.int64), 1)[:, 0] / ranks
    found.update({("range", f"{name}, rank {rank}"): sums for name, rank, sums in range_samples(inside, steps)})
    found.update(_tensor_samples(inside, steps, ranks, buckets))
    return found


def range_samples(spans: SpanTable, steps: Ints) -> Iterator[tuple[str, int, Floats]]:
    """Yield (name, rank, ns in each step) of the ranges that the program or its framework named, the longest ones.

    Args:
        spans: Of all ranks.
        steps: Numbers of the steps that count, in order.
    """
    loading = [code for code, name in enumerate(spans.names) if name.startswith(DATA_LOADING)]
    ranges = spans.in_stage(Stage.RANGE) & (spans.duration_ns > 0)
    named = ranges | (spans.in_stage(Stage.OTHER) & np.isin(spans.name, loading))
    chosen = spans.take(named & np.isin(spans.step, steps))
    first, column = numbered_rows(chosen.name, chosen.rank)
    total = np.bincount(column, weights=chosen.duration_ns, minlength=len(first))
    for at in np.argsort(-total, kind="stable")[:MOST_RANGES].tolist():
        name, rank = int(chosen.name[first[at]]), int(chosen.rank[first[at]])
        mine = chosen.take(column == at)
        yield chosen.names[name], rank, _sums(mine, steps, np.zeros(len(mine), dtype=np.int64), 1)[:, 0]


def _rank_samples(trace: Trace, rank: int, found: dict[tuple[str, str], Floats]) -> None:
    about = rank_steps(trace, rank)
    if about is None or int(about.number[0]) < 0:
        return
    computed = computing(about)
    found["waiting", f"rank {rank}"] = (about.end - about.begin).astype(np.float64) - computed
    found["compute", f"rank {rank}"] = computed


def _tensor_samples(spans: SpanTable, steps: Ints, ranks: int, buckets: Mapping[int, str]) -> Samples:
    found: dict[tuple[str, str], Floats] = {}
    for stage in TENSOR_STAGES:
        chosen = spans.take(spans.in_stage(stage) & (spans.tensor > 0))
        codes, column = distinct_numbers(chosen.tensor)
        if not len(codes) or len(codes) * len(steps) > LARGEST_CELLS:
            continue
        sums = _sums(chosen, steps, column, len(codes)) / ranks
        for at, code in enumerate(codes.tolist()):  # unnamed tensors of one size take turns with a few names
            key = "tensor", f"{stage.label} {tensor_text(spans.tensors[code], buckets)}"
            found[key] = found[key] + sums[:, at] if key in found else sums[:, at]
    return found


def _sums(spans: SpanTable, steps: Ints, column: Ints, columns: int) -> Floats:
    """Durations summed by step (rows) and column."""
    cell = np.searchsorted(steps, spans.step) * columns + column
    summed = np.bincount(cell, weights=spans.duration_ns.astype(np.float64), minlength=len(steps) * columns)
    found: Floats = np.asarray(summed, dtype=np.float64).reshape(len(steps), columns)
    return found


def _chosen(first: Samples, second: Samples, tensors: int) -> list[tuple[str, str]]:
    """What both have; of the tensors those that changed most."""
    shared = [key for key in first if key in second]
    by_tensor = [key for key in shared if key[0] == "tensor"]
    by_tensor.sort(key=lambda key: -abs(float(second[key].mean() - first[key].mean())))
    return [key for key in shared if key[0] != "tensor"] + by_tensor[:tensors]


def _change(key: tuple[str, str], first: Floats, second: Floats) -> Change:
    difference, low, high = bootstrap_difference(first, second, level=LEVEL)
    p_value = mann_whitney(thinned(first), thinned(second))
    return Change(*key, float(first.mean()), float(second.mean()), difference, low, high, p_value, "same")


def _judged(change: Change, p_value: float) -> Change:
    verdict = "same"
    if change.low_ns > 0 or change.high_ns < 0:
        sure = "slower" if change.difference_ns > 0 else "faster"
        verdict = sure if p_value < SURE else "unclear"
    return Change(**{**asdict(change), "p_value": p_value, "verdict": verdict})


_KINDS = ("step", "compute", "waiting", "range", "stage", "tensor")


def _worst_first(change: Change) -> tuple[int, float, int, list[str]]:
    """Slower by most first, then faster by least, then what is unclear, then what did not change."""
    unsure = {"unclear": 1, "same": 2}.get(change.verdict, 0)
    return unsure, -change.difference_ns, _KINDS.index(change.kind), _natural(change.what)


def _natural(name: str) -> list[str]:
    """Return what orders names as people do: rank 9 before rank 10."""
    return [part.zfill(9) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]
