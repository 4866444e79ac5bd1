"""Clock alignment: brings every part onto rank 0's clock.

Notation: a host's clock shows l where rank 0's shows g; offset(l) = g - l = o + d (l - l0) with offset o at l0 and
drift d. CLOCK instants sample it: offset o_i at l_i, right within e_i (half the round trip, a hard bound).
The samples with the worst round trips are dropped; the others, weighted by 1 / e_i^2, give o and d by least squares.
At l_i it errs by at most |r_i| + e_i, r_i = residuals, and in between, drift being steady, by no more than the largest
of these. It counts where no r_i is more than 2 e_i: its own error and the sample's. Where one is (a clock that was set
or slewed), the offset is interpolated between the samples, outside it stays constant.
Before the first sample kept and after the last the error grows by u a second, u = how far d is from the worst of all
drifts that pass within every e_i and, if any such is there, are a usual quartz's. Samples that lie close together say
nothing about drift: there u is the quartz's.
Ranks of one host share CLOCK_MONOTONIC, so they share one offset: that of the rank whose samples are the sharpest
(smallest median error); on rank 0's host it is zero without error.
Hosts without samples fall back to the wall clocks of the parts' headers: as good as NTP, error not known. So do
traces of other tools; one of a rank that ringtune recorded too is first brought onto that rank's clock.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
from numpy.typing import NDArray

from ringtune.timeline.spans import Instant, Ints, PartInfo, Trace
from ringtune.timeline.vocabulary import CLOCK

Sample = tuple[int, int, int]
"""(moment on the host's clock, offset, error), all in ns."""


@dataclass(frozen=True)
class HostOffset:
    """Offset of one host's clock as samples over its own time, and how they were found.

    ``source``: ``reference`` (rank 0's host), ``measured``, ``wall`` (headers), ``collectives`` (by what
    these allow) or ``none`` (nothing known).
    ``error_ns`` bounds the error from the first to the last of the ``sampled`` moments; None = not known. ``drift`` is
    what the clock loses a second against rank 0's, in seconds; None where no line fits. ``drift_error`` bounds the
    error of that.
    """

    at_ns: Ints
    offset_ns: Ints
    error_ns: int | None
    source: str
    drift: float | None = 0.0
    drift_error: float = 0.0
    sampled: tuple[int, int] = (0, 0)

    def __call__(self, local_ns: Ints) -> Ints:
        """Offsets to add to these moments of the host's clock."""
        if len(self.at_ns) == 1:
            return np.broadcast_to(self.offset_ns[:1], len(local_ns))
        # Relative to the first sample: floats would lose the nanoseconds of absolute clocks.
        start, base = int(self.at_ns[0]), int(self.offset_ns[0])
        moments, samples, offsets = (
            values.astype(np.float64) for values in (local_ns - start, self.at_ns - start, self.offset_ns - base)
        )
        result: Ints = np.rint(np.interp(moments, samples, offsets)).astype(np.int64) + base
        return result

    def error_over(self, first_ns: int, last_ns: int) -> int | None:
        """Bound of the error from one moment of the host's clock to another; None = not known."""
        if self.error_ns is None:
            return None
        beyond = max(0, self.sampled[0] - first_ns, last_ns - self.sampled[1])
        return self.error_ns + math.ceil(self.drift_error * beyond)

    def at(self, local_ns: int) -> int:
        """Offset at one moment."""
        return int(self(np.array([local_ns], dtype=np.int64))[0])

    def over(self, shift_ns: int) -> HostOffset:
        """Return the offset of a clock that shows ``shift_ns`` less than this host's."""
        sampled = self.sampled[0] - shift_ns, self.sampled[1] - shift_ns
        return replace(self, at_ns=self.at_ns - shift_ns, offset_ns=self.offset_ns + shift_ns, sampled=sampled)


def fixed_offset(offset_ns: int, error_ns: int | None, source: str) -> HostOffset:
    """Return an offset that stays the same, and the bound of its error."""
    return HostOffset(np.zeros(1, dtype=np.int64), np.array([offset_ns], dtype=np.int64), error_ns, source)


def host_offsets(parts: Sequence[PartInfo], instants: Iterable[Instant]) -> dict[str, HostOffset]:
    """Return the offset of every host; the parts are those of one job, rank 0's may be missing."""
    host_of_rank = {part.rank: part.host for part in parts}
    samples: defaultdict[str, defaultdict[int, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    for instant in instants:
        sample = _sample(instant)
        if sample is not None and instant.rank in host_of_rank:
            samples[host_of_rank[instant.rank]][instant.rank].append(sample)
    reference = next((part for part in parts if part.rank == 0), None)
    offsets = {}
    for part in sorted(parts, key=lambda part: part.rank):
        if part.host in offsets:
            continue
        if reference is not None and part.host == reference.host:
            offsets[part.host] = fixed_offset(0, 0, "reference")
        elif samples[part.host]:
            offsets[part.host] = _measured(samples[part.host])
        else:
            offsets[part.host] = _from_wall_clock(part, reference)
    return offsets


def _sample(instant: Instant) -> Sample | None:
    """(moment, offset, error) of a CLOCK instant; None for other or damaged ones."""
    offset, error = instant.args.get("offset_ns"), instant.args.get("error_ns")
    if instant.name != CLOCK or not isinstance(offset, int) or not isinstance(error, int):
        return None
    if error < 0 or abs(offset) > 2**61 or error > 2**61:
        return None
    return instant.at_ns, offset, error


def _measured(samples: Mapping[int, list[Sample]]) -> HostOffset:
    """Return the offset of a host by the samples of its ranks, each hard within its error."""
    sharpest = min(samples, key=lambda rank: (median(error for _, _, error in samples[rank]), rank))
    # One sample a moment: np.interp wants increasing moments.
    best = {moment: (moment, offset, error) for moment, offset, error in sorted(samples[sharpest], reverse=True)}
    usual = median(error for _, _, error in best.values())
    kept = sorted(one for one in best.values() if one[2] <= _WORST * usual)
    at, offsets, errors = (np.array(column, dtype=np.int64) for column in zip(*kept, strict=True))
    return _line(at, offsets, errors) or HostOffset(
        at,
        offsets,
        int(errors.max()),
        "measured",
        0.0 if len(at) == 1 else None,
        _USUAL_DRIFT,
        (int(at[0]), int(at[-1])),
    )


def _line(at: Ints, offsets: Ints, errors: Ints) -> HostOffset | None:
    """The line through the samples; None when none passes within all their bounds."""
    if len(at) < 2:
        return None
    # Relative to the first sample: floats would lose the nanoseconds of absolute clocks.
    start, base = int(at[0]), int(offsets[0])
    moment, offset, bound = (
        (values - zero).astype(np.float64) for values, zero in ((at, start), (offsets, base), (errors, 0))
    )
    weight = 1 / np.maximum(bound, 1.0) ** 2
    middle = np.average(moment, weights=weight)
    level = np.average(offset, weights=weight)
    spread = float(np.sum(weight * (moment - middle) ** 2))
    drift = float(np.sum(weight * (moment - middle) * (offset - level)) / spread)
    slowest, quickest = drifts(moment, offset, bound)
    if not slowest <= drift <= quickest:
        drift = 0.0 if slowest <= 0 <= quickest else min(max(drift, slowest), quickest)
    residuals = np.abs(offset - level - drift * (moment - middle))
    if np.any(residuals > 2 * bound):
        return None
    ends = np.array([-_BEYOND_NS, float(moment[-1]) + _BEYOND_NS])
    values = np.rint(level + drift * (ends - middle)).astype(np.int64) + base
    # Offsets are whole nanoseconds: the last one is rounding.
    error = round(float((np.maximum(residuals - 1, 0) + bound).max()))
    moments = ends.astype(np.int64) + start
    if residuals.max() <= 1:  # to the nanosecond: the samples' own rounding is better than the line's
        moments, values = np.insert(moments, 1, at), np.insert(values, 1, offsets)
    unsure = max(abs(drift - slowest), abs(quickest - drift))
    return HostOffset(moments, values, error, "measured", drift, unsure, (start, int(at[-1])))


def drifts(moment: NDArray[np.float64], offset: NDArray[np.float64], bound: NDArray[np.float64]) -> tuple[float, float]:
    """The least and the largest drift that passes within all bounds, of a usual quartz if one does."""
    few = _PAIRED if len(moment) > 2 * _PAIRED else len(moment)
    first, last = slice(None, few), slice(-few, None)  # pairs far apart say the most
    apart = moment[None, last] - moment[first, None]
    there, least, most = (
        values[apart > 0] for values in (
            apart,
            (offset - bound)[None, last] - (offset + bound)[first, None],
            (offset + bound)[None, last] - (offset - bound)[first, None],
        )
    )  # fmt: skip
    slowest, quickest = float((least / there).max()), float((most / there).min())
    usual = max(slowest, -_USUAL_DRIFT), min(quickest, _USUAL_DRIFT)
    if usual[0] <= usual[1]:
        return usual
    return max(min(slowest, quickest), -_LARGEST_DRIFT), min(max(slowest, quickest), _LARGEST_DRIFT)


_WORST = 3.0
"""Samples whose bound is that many times the usual one are dropped."""

_LARGEST_DRIFT, _USUAL_DRIFT = 2e-3, 1e-4
"""No clock is so wrong as the first; quartzes are within the second."""

_PAIRED = 64
"""So many first samples are held against so many last ones."""

_BEYOND_NS = 600_000_000_000
"""How far a line is drawn out beyond its samples."""


def _from_wall_clock(part: PartInfo, reference: PartInfo | None) -> HostOffset:
    if reference is None or not part.unix_ns or not reference.unix_ns:
        return fixed_offset(0, None, "none")
    ours, theirs = part.unix_ns - part.monotonic_ns, reference.unix_ns - reference.monotonic_ns
    return fixed_offset(ours - theirs, None, "wall")


def placements(traces: Sequence[Trace]) -> list[HostOffset]:
    """Return for each trace of one job what brings it onto rank 0's clock; foreign traces need a wall clock."""
    own = [trace.parts[0] for trace in traces if trace.source == "part"]
    hosts = host_offsets(own, [instant for trace in traces if trace.source == "part" for instant in trace.instants])
    of_rank = {part.rank: part for part in own}
    reference = of_rank.get(0) or min(own, key=lambda part: part.rank, default=None)
    if reference is None:
        # One host has one wall clock: its ranks can be compared to the nanosecond.
        machines = {trace.parts[0].host for trace in traces}
        error = 0 if len(machines) == 1 and "" not in machines else None
        return [fixed_offset(trace.parts[0].unix_ns - trace.parts[0].monotonic_ns, error, "wall") for trace in traces]
    return [
        hosts[trace.parts[0].host] if trace.source == "part" else _foreign(trace.parts[0], of_rank, reference, hosts)
        for trace in traces
    ]


def _foreign(
    part: PartInfo, of_rank: Mapping[int, PartInfo], reference: PartInfo, hosts: Mapping[str, HostOffset]
) -> HostOffset:
    """By the wall clock onto the same rank's own clock, from there as that rank's part."""
    own = of_rank.get(part.rank, reference)
    shift = (part.unix_ns - part.monotonic_ns) - (own.unix_ns - own.monotonic_ns)
    onward = hosts[own.host]
    error = onward.error_ns if own.rank == part.rank else None
    return replace(onward.over(shift), error_ns=error, source="wall")


def align(trace: Trace, offset: HostOffset, last_ns: int | None = None) -> Trace:
    """Bring a trace onto rank 0's clock; its `PartInfo` then holds the offset at its first span, and the bound of the
    error up to the end of its last span (``last_ns`` where the trace holds only the first one).
    """
    spans = trace.spans
    begin, end = spans.begin_ns, spans.end_ns
    if offset.offset_ns.any():  # ranks of rank 0's host are on its clock
        begin, end = begin + offset(begin), end + offset(end)
    instants = tuple(replace(found, at_ns=found.at_ns + offset.at(found.at_ns)) for found in trace.instants)
    first = int(spans.begin_ns.min()) if len(spans) else trace.parts[0].monotonic_ns
    last = int(spans.end_ns.max(initial=first)) if last_ns is None else last_ns
    error_ns = offset.error_over(first, last)
    drift_ppb = None if offset.drift is None else round(offset.drift * 1e9)
    parts = tuple(
        replace(part, offset_ns=offset.at(first), error_ns=error_ns, drift_ppb=drift_ppb) for part in trace.parts
    )
    return replace(trace, spans=replace(spans, begin_ns=begin, end_ns=end), instants=instants, parts=parts)
