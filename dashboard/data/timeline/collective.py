"""One collective or message on its ranks: when each submitted it, knew that it may run, ran it; which was last."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ringtune.dashboard.data.timeline.index import TimelineIndex
from ringtune.dashboard.data.timeline.levels import Lane
from ringtune.dashboard.data.timeline.shapes import Window
from ringtune.timeline.spans import Ints
from ringtune.timeline.vocabulary import Stage


@dataclass(frozen=True)
class RankBatch:
    """One rank's share of a batch: moments of the job in nanoseconds; None where nothing was recorded.

    ``submit_ns`` is the submit of its last tensor, ``agreed_ns`` the end of its negotiation.
    """

    rank: int
    submit_ns: int | None
    agreed_ns: int | None
    begin_ns: int
    end_ns: int
    done_ns: int


@dataclass(frozen=True)
class Followed:
    """A batch or message, ranks in order. ``last_rank`` submitted last, ``late_ns`` after the last but one.

    None: not known.
    """

    batch: int
    label: str
    step: int
    bytes: int
    ranks: tuple[RankBatch, ...]
    last_rank: int | None
    late_ns: int

    @property
    def window(self) -> Window:
        """A window around all of it."""
        begin = min(one.begin_ns if one.submit_ns is None else one.submit_ns for one in self.ranks)
        end = max(one.done_ns for one in self.ranks)
        return Window(float(begin), float(max(end, begin + 1000))).widened(0.15)


def follow(index: TimelineIndex, batch: int) -> Followed | None:
    """Return a batch on all ranks; None when the timeline does not hold it."""
    if batch == 0:
        return None
    rows, about = [], None
    for rank in index.ranks:
        mine = {lane.stage: lane for lane in index.lanes if lane.rank == rank}
        moving = _places(index, mine.get(Stage.COMMUNICATE), batch)
        if not len(moving):
            continue
        about = int(moving[0]) if about is None else about
        rows.append(_of_rank(index, mine, (rank, batch), moving))
    if about is None:
        return None
    spans, known = index.spans, sorted((one.submit_ns, one.rank) for one in rows if one.submit_ns is not None)
    return Followed(
        batch=batch,
        label=spans.tensors[spans.tensor[about]] or spans.names[spans.name[about]],
        step=int(spans.step[about]),
        bytes=int(spans.bytes[about]),
        ranks=tuple(rows),
        last_rank=known[-1][1] if len(known) > 1 else None,
        late_ns=known[-1][0] - known[-2][0] if len(known) > 1 else 0,
    )


def _of_rank(
    index: TimelineIndex,
    lanes: dict[Stage, Lane],
    which: tuple[int, int],
    moving: Ints,
) -> RankBatch:
    rank, batch = which
    spans = index.spans
    asked, out = (_places(index, lanes.get(stage), batch) for stage in (Stage.NEGOTIATE, Stage.COPY_OUT))
    end = int(spans.end_ns[moving].max())
    return RankBatch(
        rank=rank,
        submit_ns=int(spans.begin_ns[asked].max()) if len(asked) else None,
        agreed_ns=int(spans.end_ns[asked].max()) if len(asked) else None,
        begin_ns=int(spans.begin_ns[moving].min()),
        end_ns=end,
        done_ns=max([end, *spans.end_ns[out].tolist()]),
    )


def _places(index: TimelineIndex, lane: Lane | None, batch: int) -> Ints:
    if lane is None:
        return np.empty(0, dtype=np.int64)
    return lane.first + np.flatnonzero(index.spans.batch[lane.places] == batch)
