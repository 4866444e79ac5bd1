"""Ranks that are late together: those of a host, or some that lag behind all others by about the same.

The lateness of a single rank is what the job could gain if that rank alone were on time. Where several are late
together that is next to nothing, and none of them stands out: the group's lateness, against the last of all others,
tells what they cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ringtune.timeline.analysis.arrivals import ClockErrors
from ringtune.timeline.analysis.batches import MISSING, BatchTable
from ringtune.timeline.analysis.lateness import Late, lateness_of_group
from ringtune.timeline.analysis.patterns import MATERIAL, Job
from ringtune.timeline.spans import Ints, Mask, Trace

_MORE = 1.5
"""So many times what its ranks cost one by one has a group to cost before it is looked at as one."""
_GAP = 0.05
"""The share of a step by which ranks that lag behind are apart from the others."""


@dataclass(frozen=True)
class Group:
    """Ranks that may be late together: their columns, the host if they are all of its, and when they were last."""

    inside: Mask
    host: str
    late: Mapping[str, Late]


def groups(trace: Trace, table: BatchTable, clocks: ClockErrors, alone: Mapping[str, Late], job: Job) -> list[Group]:
    """Return the groups that cost the job more together than rank by rank.

    Args:
        trace: Of all ranks.
        table: The batches of all.
        clocks: Their errors.
        alone: The last rank of every step, by cause.
        job: What lateness is weighed against.
    """
    found = []
    for inside, host in _candidates(trace, table, job):
        if any(_worth(moments, table, inside, alone[cause], job) for cause, moments in _moments(table).items()):
            late = lateness_of_group(trace, table, clocks, inside)
            found.append(
                Group(inside, host, {cause: rows for cause, rows in late.items() if _more(rows, alone[cause], inside)})
            )
    return found


def _moments(table: BatchTable) -> Mapping[str, Ints]:
    return {"compute": table.submit, "network": table.end}


def _candidates(trace: Trace, table: BatchTable, job: Job) -> Iterator[tuple[Mask, str]]:
    """The hosts of several ranks, and the ranks that lag behind."""
    by_rank = {part.rank: part.host for part in trace.parts}
    names = [by_rank.get(rank, "") for rank in table.ranks]
    seen = []
    for host in sorted(set(names) - {""}):
        inside = np.array([name == host for name in names])
        if 1 < inside.sum() < len(names):
            seen.append(inside)
            yield inside, host
    behind = _behind(table.submit, table.members, _GAP * job.step_ns)
    if behind is not None and not any((behind == one).all() for one in seen):
        yield behind, ""


def _behind(submit: Ints, members: Mask, least_ns: float) -> Mask | None:
    """Which ranks, at least two and at most half, are behind the others by most and by so much; None if none are."""
    ranks = submit.shape[1]
    if ranks < 4 or not members.all():
        return None
    lag = np.median(submit - np.median(submit, axis=1, keepdims=True), axis=0)
    order = np.argsort(lag, kind="stable")
    gaps = np.diff(lag[order])
    gaps[: ranks // 2 + ranks % 2 - 1] = 0  # more than half of the ranks would be late
    gaps[-1] = 0  # one rank alone
    place = int(gaps.argmax())
    if gaps[place] < least_ns:
        return None
    behind = np.zeros(ranks, dtype=np.bool_)
    behind[order[place + 1 :]] = True
    return behind


def _worth(moments: Ints, table: BatchTable, inside: Mask, alone: Late, job: Job) -> bool:
    """Whether a group's lateness may cost a percent of the job, and more than its ranks' one by one."""
    known = table.members & (moments != MISSING)
    both = (known & inside).any(axis=1) & (known & ~inside).any(axis=1)
    mine = np.where(inside & known, moments, MISSING)[both].max(axis=1, initial=MISSING)
    others = np.where(~inside & known, moments, MISSING)[both].max(axis=1, initial=MISSING)
    ahead = np.maximum(mine - others, 0)
    steps, place = np.unique(table.step[both], return_inverse=True)
    worst = np.zeros(len(steps), dtype=np.int64)
    np.maximum.at(worst, place, ahead)
    total = int(worst.sum())
    return total >= MATERIAL * job.length_ns and total > _MORE * _one_by_one(alone, inside)


def _more(rows: Late, alone: Late, inside: Mask) -> bool:
    return int(rows.lateness[rows.column == 0].sum()) > _MORE * _one_by_one(alone, inside)


def _one_by_one(alone: Late, inside: Mask) -> int:
    columns: Sequence[int] = np.flatnonzero(inside).tolist()
    return int(alone.lateness[np.isin(alone.column, columns)].sum())
