"""One file of the timeline of a job that is still recording: how its spans are placed on the job's time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ringtune.timeline.merging.clocks import HostOffset
from ringtune.timeline.reading.part_reader import PartReader
from ringtune.timeline.spans import Instant, PartInfo, SpanTable, Trace, empty_table

_LEAST_MOVE_NS = 50_000
"""A correction of a clock below this is too small to be seen."""


@dataclass
class Part:
    """A file that is followed: how its spans were placed, and how many of its instants are taken over."""

    reader: PartReader
    info: PartInfo | None = None
    placed: HostOffset | None = None
    span: tuple[int, int] | None = None
    """Least begin and largest end of its spans so far, on its own clock."""
    instants: int = 0


def bare(part: Part) -> Trace:
    """A part without its spans, which is enough to place it on the job's time."""
    assert part.info is not None
    return Trace(empty_table(), part.reader.instants, (part.info,), "part")


def fresh_instants(part: Part) -> list[Instant]:
    """The instants of a part that were not taken over yet, on rank 0's clock."""
    fresh = part.reader.instants[part.instants :]
    part.instants += len(fresh)
    assert part.placed is not None
    return [replace(one, at_ns=one.at_ns + part.placed.at(one.at_ns)) for one in fresh]


def aligned(part: Part, spans: SpanTable) -> SpanTable:
    """Spans of a part on rank 0's clock."""
    assert part.placed is not None
    if not len(spans):
        return spans
    begin, end = int(spans.begin_ns.min()), int(spans.end_ns.max())
    part.span = (min(begin, part.span[0]), max(end, part.span[1])) if part.span else (begin, end)
    moved = (spans.begin_ns + part.placed(spans.begin_ns), spans.end_ns + part.placed(spans.end_ns))
    return replace(spans, begin_ns=moved[0], end_ns=moved[1])


def moved(before: HostOffset, now: HostOffset, span: tuple[int, int] | None) -> bool:
    """Whether spans between two moments move visibly, and by more than their error."""
    if span is None:
        return False
    moments = np.linspace(*span, 9).astype(np.int64)
    return bool(np.abs(now(moments) - before(moments)).max() > max(_LEAST_MOVE_NS, now.error_ns or 0))
