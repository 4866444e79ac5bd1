"""Clock alignment: brings every part onto rank 0's clock.

Notation: a host's clock shows l where rank 0's shows g; offset(l) = g - l. CLOCK instants sample it with an error
bound; between samples it is interpolated linearly (a constant drift is met exactly), outside it stays constant.
Ranks of one host share CLOCK_MONOTONIC, so they share one offset: that of the rank whose samples are the sharpest
(smallest median error); on rank 0's host it is zero without error.
Hosts without samples fall back to the wall clocks of the parts' headers: as good as NTP, error not known. So do
traces of other tools; one of a rank that ringtune recorded too is first brought onto that rank's clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from ringtune.timeline.spans import Instant, Ints, PartInfo, Trace
from ringtune.timeline.vocabulary import CLOCK

Sample = tuple[int, int, int]
"""(moment on the host's clock, offset, error), all in ns."""


@dataclass(frozen=True)
class HostOffset:
    """Offset of one host's clock as samples over its own time, and how they were found.

    ``source``: ``reference`` (rank 0's host), ``measured``, ``wall`` (headers) or ``none`` (nothing known).
    ``error_ns`` is the largest bound of all samples; None = not known.
    """

    at_ns: Ints
    offset_ns: Ints
    error_ns: int | None
    source: str

    def __call__(self, local_ns: Ints) -> Ints:
        """Offsets to add to these moments of the host's clock."""
        if len(self.at_ns) == 1:
            return np.full(len(local_ns), self.offset_ns[0], dtype=np.int64)
        # Relative to the first sample: floats would lose the nanoseconds of absolute clocks.
        start, base = int(self.at_ns[0]), int(self.offset_ns[0])
        moments, samples, offsets = (
            values.astype(np.float64) for values in (local_ns - start, self.at_ns - start, self.offset_ns - base)
        )
        result: Ints = np.rint(np.interp(moments, samples, offsets)).astype(np.int64) + base
        return result

    def at(self, local_ns: int) -> int:
        """Offset at one moment."""
        return int(self(np.array([local_ns], dtype=np.int64))[0])


def _fixed(offset_ns: int, error_ns: int | None, source: str) -> HostOffset:
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
            offsets[part.host] = _fixed(0, 0, "reference")
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
    sharpest = min(samples, key=lambda rank: (median(error for _, _, error in samples[rank]), rank))
    # One sample a moment: np.interp wants increasing moments.
    best = {moment: (moment, offset, error) for moment, offset, error in sorted(samples[sharpest], reverse=True)}
    at, offsets, errors = (np.array(column, dtype=np.int64) for column in zip(*sorted(best.values()), strict=True))
    return HostOffset(at, offsets, int(errors.max()), "measured")


def _from_wall_clock(part: PartInfo, reference: PartInfo | None) -> HostOffset:
    if reference is None or not part.unix_ns or not reference.unix_ns:
        return _fixed(0, None, "none")
    ours, theirs = part.unix_ns - part.monotonic_ns, reference.unix_ns - reference.monotonic_ns
    return _fixed(ours - theirs, None, "wall")


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
        return [_fixed(trace.parts[0].unix_ns - trace.parts[0].monotonic_ns, error, "wall") for trace in traces]
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
    return HostOffset(onward.at_ns - shift, onward.offset_ns + shift, error, "wall")


def align(trace: Trace, offset: HostOffset) -> Trace:
    """Bring a trace onto rank 0's clock; its `PartInfo` then holds the offset at its first span."""
    spans = trace.spans
    begin, end = spans.begin_ns + offset(spans.begin_ns), spans.end_ns + offset(spans.end_ns)
    instants = tuple(replace(found, at_ns=found.at_ns + offset.at(found.at_ns)) for found in trace.instants)
    first = int(spans.begin_ns.min()) if len(spans) else trace.parts[0].monotonic_ns
    parts = tuple(replace(part, offset_ns=offset.at(first), error_ns=offset.error_ns) for part in trace.parts)
    return replace(trace, spans=replace(spans, begin_ns=begin, end_ns=end), instants=instants, parts=parts)
