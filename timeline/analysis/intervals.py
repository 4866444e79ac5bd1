"""Sets of time as sorted disjoint half-open intervals, exact in integers.

Notation: a set is an int64 array of shape (k, 2), rows [begin, end) with begin < end, strictly increasing and
never touching. Lengths and set operations are exact; empty intervals vanish.
"""

from __future__ import annotations

import numpy as np

from ringtune.timeline.spans import Ints


def union(begin_ns: Ints, end_ns: Ints) -> Ints:
    """Return the union of the intervals [begin, end); the inputs may overlap, touch and come in any order."""
    filled = end_ns > begin_ns
    begin, end = (begin_ns, end_ns) if filled.all() else (begin_ns[filled], end_ns[filled])
    if not len(begin):
        return np.empty((0, 2), dtype=np.int64)
    if np.any(begin[1:] < begin[:-1]):
        order = np.argsort(begin, kind="stable")
        begin, end = begin[order], end[order]
    reach = np.maximum.accumulate(end)
    # A new interval starts where everything before has ended.
    starts = np.flatnonzero(np.concatenate(([True], begin[1:] > reach[:-1])))
    stops = np.concatenate((starts[1:] - 1, [len(begin) - 1]))
    return np.stack((begin[starts], reach[stops]), axis=1)


LONGEST_LINE_NS = 2**62


def zones(begin_ns: Ints, end_ns: Ints, count: int) -> tuple[int, int]:
    """Return how intervals are laid onto one line, zone behind zone: their least begin, and how far zones are apart.

    What is moved by ``zone * width - low`` never touches another zone's. The width is 0 where they do not fit.
    """
    low = int(begin_ns.min(initial=2**62))
    width = int(end_ns.max(initial=low)) - low + 1
    return low, width if width * max(1, count) < LONGEST_LINE_NS else 0


def unions(zone: Ints, begin_ns: Ints, end_ns: Ints) -> tuple[Ints, Ints]:
    """Return the unions of the intervals of each zone (numbers from 0), and to which zone each of theirs belongs."""
    count = int(zone.max(initial=-1)) + 1
    low, width = zones(begin_ns, end_ns, count)
    if width:
        if count <= 1 << 8:
            # Such numbers are sorted by counting, and what was recorded in the order of time is in order then.
            order = np.argsort(zone.astype(np.uint8), kind="stable")
            zone, begin_ns, end_ns = zone[order], begin_ns[order], end_ns[order]
        found = union(begin_ns + (zone * width - low), end_ns + (zone * width - low))
        of = found[:, 0] // width
        return found - (of * width - low)[:, None], of
    parts = [union(begin_ns[zone == one], end_ns[zone == one]) for one in range(count)]
    return np.concatenate(parts), np.repeat(np.arange(count), list(map(len, parts)))


def length(intervals: Ints) -> int:
    """Return the total time in a set."""
    return int((intervals[:, 1] - intervals[:, 0]).sum())


def length_before(intervals: Ints, moments: Ints) -> Ints:
    """Return how much time of a set lies before each of these moments."""
    ended = np.searchsorted(intervals[:, 1], moments, side="right")
    total = np.concatenate(([0], np.cumsum(intervals[:, 1] - intervals[:, 0])))
    begun = np.append(intervals[:, 0], np.iinfo(np.int64).max)
    found: Ints = total[ended] + np.maximum(0, moments - begun[ended])
    return found


def intersection(first: Ints, second: Ints) -> Ints:
    """Return the time in both sets."""
    return _combine(first, second, wanted=2)


def difference(first: Ints, second: Ints) -> Ints:
    """Return the time in the first set and not in the second."""
    if not len(first):
        return first
    low, high = int(first[0, 0]), int(first[-1, 1])
    return intersection(first, complement(second, low, high))


def complement(intervals: Ints, low_ns: int, high_ns: int) -> Ints:
    """Return the time in [low, high) that is not in the set."""
    inside = np.clip(intervals, low_ns, high_ns)
    begins = np.concatenate(([low_ns], inside[:, 1]))
    ends = np.concatenate((inside[:, 0], [high_ns]))
    gaps = ends > begins
    return np.stack((begins[gaps], ends[gaps]), axis=1).astype(np.int64)


def _combine(first: Ints, second: Ints, wanted: int) -> Ints:
    """Return where exactly ``wanted`` of the two sets hold, by sweeping over all bounds."""
    bounds = np.concatenate((first[:, 0], second[:, 0], first[:, 1], second[:, 1]))
    steps = np.concatenate((np.ones(len(first) + len(second)), -np.ones(len(first) + len(second)))).astype(np.int64)
    order = np.argsort(bounds, kind="stable")
    bounds, depth = bounds[order], np.cumsum(steps[order])
    hit = np.flatnonzero((depth[:-1] == wanted) & (bounds[1:] > bounds[:-1])) if len(bounds) else np.empty(0, np.int64)
    return union(bounds[hit], bounds[hit + 1])
