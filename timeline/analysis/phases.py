"""Where each rank's time went: per stage, and communication exposed against overlapped.

Notation: busy = length of the union of a stage's spans (what the wall clock saw); total = sum of their lengths
(larger where spans overlap). Communication is the union of COMMUNICATE spans; overlapped is its part outside of WAIT.
A rank is *blocked* within WAIT: for a late rank (`late_waits`), else by *exposed* communication while bytes move, else
by copies and control. So exposed communication is what a faster network could give, and nothing that a late rank cost.
For tensors that go from GPU to GPU the program's streams wait, DEVICE_WAIT, and not its callers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ringtune.timeline.analysis.intervals import difference, intersection, length, union, unions, zones
from ringtune.timeline.analysis.late_waits import LateWaits
from ringtune.timeline.analysis.staged import waiting
from ringtune.timeline.distinct import distinct, distinct_numbers
from ringtune.timeline.spans import Ints, SpanTable
from ringtune.timeline.vocabulary import Stage

_COPIES = (Stage.COPY_IN, Stage.COPY_OUT, Stage.COPY_TO_HOST, Stage.COPY_TO_DEVICE)
"""Copying, wherever: into and out of the fusion buffer, from a GPU to the host and back."""

_STAGES = 256
"""More than there are stages."""


@dataclass(frozen=True)
class StageTime:
    """Spans of one stage on one rank."""

    count: int
    total_ns: int
    busy_ns: int


@dataclass(frozen=True)
class Exposure:
    """Communication against the callers' waiting, on one rank; None where the trace records no waiting at all.

    ``wait_ns`` splits exactly into ``late_ns`` (another rank was late), ``exposed_ns`` (while communicating),
    ``wait_copy_ns`` (while copying) and ``wait_other_ns`` (negotiation, queue: the cycle had not come).
    """

    wait_ns: int
    late_ns: int
    exposed_ns: int
    overlapped_ns: int
    wait_copy_ns: int
    wait_other_ns: int


def covered(spans: SpanTable, *stages: Stage) -> Ints:
    """Return the time covered by these stages as a set of intervals."""
    chosen = spans.in_stage(*stages)
    return union(spans.begin_ns[chosen], spans.end_ns[chosen])


def stage_times(spans: SpanTable) -> Mapping[str, StageTime]:
    """Return the times of every stage that occurs, by label; the spans are of one rank."""
    found = {}
    for code in distinct(spans.stage).tolist():
        chosen = np.flatnonzero(spans.stage == code)
        begin, end = spans.begin_ns[chosen], spans.end_ns[chosen]
        found[Stage(code).label] = StageTime(len(chosen), int((end - begin).sum()), length(union(begin, end)))
    return found


def stage_times_of_ranks(spans: SpanTable) -> dict[int, dict[str, StageTime]]:
    """Return the times of every stage that occurs, by label, of every rank that has any: of many ranks at once."""
    keys, group = distinct_numbers(spans.rank.astype(np.int64) * _STAGES + spans.stage)
    intervals, of = unions(group, spans.begin_ns, spans.end_ns)
    sums = np.zeros((2, len(keys)), dtype=np.int64)
    np.add.at(sums[0], group, spans.duration_ns)
    np.add.at(sums[1], of, intervals[:, 1] - intervals[:, 0])
    rows = zip(keys.tolist(), np.bincount(group).tolist(), *sums.tolist(), strict=True)
    found: dict[int, dict[str, StageTime]] = {}
    for key, count, total, busy in rows:
        found.setdefault(key // _STAGES, {})[Stage(key % _STAGES).label] = StageTime(count, total, busy)
    return found


def exposure(spans: SpanTable, waits: Ints | None, late: Ints) -> Exposure:
    """Split communication and waiting of one rank.

    Args:
        spans: Of the rank.
        waits: When it was blocked; None: as it recorded.
        late: When it waited for a late rank, see `late_waits`.
    """
    return _exposure(*map(length, _split(spans, waits, late)))


def exposures(spans: SpanTable, late: LateWaits) -> dict[int, Exposure]:
    """Return `exposure` of every rank by the waits that it recorded, and when each waited for a late rank."""
    ranks, zone = distinct_numbers(spans.rank)
    if not len(ranks):
        return {}
    low, width = zones(spans.begin_ns, spans.end_ns, len(ranks))
    if not width:
        return {int(rank): exposure(spans.of_rank(rank), None, late.of_rank(int(rank))) for rank in ranks}
    # What lies beyond a rank's own zone would touch another's; nobody is blocked there.
    times = [np.clip(late.of_rank(int(rank)) - low, 0, width - 1) + at * width for at, rank in enumerate(ranks)]
    on_one_line = np.concatenate(times)
    on_one_line = on_one_line[on_one_line[:, 1] > on_one_line[:, 0]]
    lengths = []
    for part in _split(spans.shifted(zone * width - low), None, on_one_line):
        own = np.zeros(len(ranks), dtype=np.int64)
        np.add.at(own, part[:, 0] // width, part[:, 1] - part[:, 0])
        lengths.append(own.tolist())
    return {rank: _exposure(*found) for rank, *found in zip(ranks.tolist(), *lengths, strict=True)}


def _split(spans: SpanTable, waits: Ints | None, late: Ints) -> tuple[Ints, ...]:
    """Return the times whose lengths `_exposure` takes."""
    communicate = covered(spans, Stage.COMMUNICATE)
    wait = covered(waiting(spans), Stage.WAIT, Stage.DEVICE_WAIT) if waits is None else waits
    free = difference(wait, late)
    rest = difference(free, communicate)
    copying = intersection(rest, covered(spans, *_COPIES))
    return wait, free, difference(communicate, wait), rest, copying


def _exposure(wait: int, free: int, overlapped: int, rest: int, copying: int) -> Exposure:
    return Exposure(
        wait_ns=wait,
        late_ns=wait - free,
        exposed_ns=free - rest,
        overlapped_ns=overlapped,
        wait_copy_ns=copying,
        wait_other_ns=rest - copying,
    )
