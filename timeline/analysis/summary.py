"""The summary of a trace: where the time went. Data only; `ringtune.timeline.tables` draws it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ringtune.timeline.analysis.arrivals import Arrivals, arrivals
from ringtune.timeline.analysis.bandwidth import KindTraffic, bus_rate, traffic
from ringtune.timeline.analysis.batches import rank_steps
from ringtune.timeline.analysis.causality import Causality, causality
from ringtune.timeline.analysis.fusion import Fusion, fusion
from ringtune.timeline.analysis.late_waits import LateWaits, late_waits
from ringtune.timeline.analysis.peer_wait import Negotiation, PeerWait, negotiations, peer_waits
from ringtune.timeline.analysis.phases import Exposure, StageTime, exposure, stage_times
from ringtune.timeline.analysis.staged import device_clock_errors
from ringtune.timeline.analysis.steps import select_steps, step_lengths
from ringtune.timeline.distinct import distinct
from ringtune.timeline.spans import Ints, SpanTable, Trace
from ringtune.timeline.units import ranks_text, several, share_text, time_text, torn_text
from ringtune.timeline.vocabulary import ERROR, KNOBS, STALL, Stage

FORMAT = 1


@dataclass(frozen=True)
class StepTimes:
    """Lengths of steps; p95 is numpy's linear percentile."""

    count: int
    first: int
    last: int
    median_ns: float
    p95_ns: float
    shortest_ns: int
    longest_ns: int
    total_ns: int

    def sentence(self) -> str:
        """Return it in words, for example ``80 steps: median 12.0 ms, p95 14.1 ms (shortest ..., longest ...)``."""
        usual = f"{several(self.count, 'step')}: median {time_text(self.median_ns)}, p95 {time_text(self.p95_ns)}"
        return f"{usual} (shortest {time_text(self.shortest_ns)}, longest {time_text(self.longest_ns)})"


@dataclass(frozen=True)
class RankSummary:
    """One rank. ``exposure`` is None when the trace does not record when callers wait."""

    rank: int
    host: str
    spans: int
    stages: Mapping[str, StageTime]
    bytes: int
    bus_bytes_per_s: float | None
    exposure: Exposure | None
    steps: StepTimes | None
    recorded: int | None
    dropped: int
    truncated: bool
    clock_offset_ns: int
    clock_error_ns: int | None


@dataclass(frozen=True)
class KnobsVersion:
    """One version of the knobs; steps -1 when no step recorded it."""

    knobs_version: int
    knobs: Mapping[str, Any]
    first_step: int
    last_step: int
    batches: int


@dataclass(frozen=True)
class Summary:
    """A whole trace. ``steps``: a step of the job is as long as its slowest rank's."""

    format: int
    source: str
    path: str
    job: str
    size: int
    missing: tuple[int, ...]
    cut: tuple[int, ...]
    """Ranks whose part ends before half of the steps."""
    span_count: int
    skipped: int
    duration_ns: int
    steps: StepTimes | None
    ranks: tuple[RankSummary, ...]
    traffic: tuple[KindTraffic, ...]
    bus_bytes_per_s: float | None
    """While bytes moved; waiting for late ranks is left out."""
    dominated_by: str
    """What ranks were blocked by more: ``skew`` (late ranks), ``transfer`` (exposed communication); "" if neither."""
    link_bytes_per_s: float | None
    """The link's limit as the caller named it; None: not named."""
    fusion: Fusion | None
    arrivals: Arrivals
    knobs_versions: tuple[KnobsVersion, ...]
    stalls: int
    errors: int
    dropped: int
    clock_error_ns: int | None
    """Largest bound of all ranks; None when one is not known."""
    device_clock_error_ns: int | None
    """How far times of GPUs may be off on their hosts' clocks; None: there are none, or it is not known."""
    causality: Causality
    """Whether anything was received before it was sent, by the aligned clocks."""
    peer_waits: tuple[PeerWait, ...]
    """Who waited for whom; empty where the trace does not say."""
    negotiations: tuple[Negotiation, ...]
    """Each rank's negotiated time, split into waiting for the last rank and control."""

    def to_json(self) -> dict[str, Any]:
        """The summary as plain JSON values."""
        return asdict(self)

    @property
    def lacks(self) -> Lacking:
        """Ranks of which all or most is lacking."""
        return Lacking(self.missing, self.cut)

    def warnings(self) -> list[str]:
        """Return what is wrong with the recording, a sentence each."""
        torn = [rank.rank for rank in self.ranks if rank.truncated and rank.rank not in self.cut]
        found = self.lacks.sentences()
        if torn:
            found.append(torn_text(torn))
        if self.dropped:
            lost = share_text(self.dropped, self.dropped + self.span_count)
            found.append(f"{self.dropped} spans ({lost}) were dropped while recording: sums are too small")
        if self.skipped:
            found.append(f"{self.skipped} events were invalid and were left out")
        if self.clock_error_ns is None and self.source == "merged":
            found.append("a host's clock was not measured: comparisons between hosts may be off")
        if self.causality.violations:
            hosts = {rank.host for rank in self.ranks}
            one_host = len(hosts) == 1 and hosts != {""}  # whose ranks share a clock: none was aligned
            why = "the clocks are worse than they claim"
            if one_host:
                why = f"host {hosts.pop()} has one clock, so machines or containers share its name, or runs are mixed"
            found.append(
                f"{self.causality.violations} of {self.causality.checked} batches were received before they were "
                f"sent, by up to {time_text(self.causality.worst_ns)}: {why}"
            )
        if self.stalls or self.errors:
            counts = {"stall": self.stalls, "failed operation": self.errors}
            found.append(", ".join(several(number, thing) for thing, number in counts.items() if number))
        return found

    def clocks(self) -> list[str]:
        """Return how well the clocks are known, a sentence each."""
        found = []
        if self.clock_error_ns:
            checked = f"{self.causality.violations} of {self.causality.checked} batches contradict that"
            found.append(f"clocks of all hosts aligned within ±{time_text(self.clock_error_ns)}; {checked}")
        if self.device_clock_error_ns is not None:
            found.append(f"times of GPUs are accurate within ±{time_text(self.device_clock_error_ns)}")
        return found


@dataclass(frozen=True)
class Lacking:
    """Ranks without a part, and those whose part ends before half of the steps: what they waited for is not known."""

    missing: tuple[int, ...]
    cut: tuple[int, ...]

    @property
    def ranks(self) -> list[int]:
        """All of them, in order."""
        return sorted({*self.missing, *self.cut})

    def sentences(self) -> list[str]:
        """Return what is lacking, a sentence each."""
        found = []
        if self.missing:
            found.append(f"no part of rank {ranks_text(self.missing)}: its times are not known")
        if self.cut:
            when = "ends early, before half of these steps (killed, or still recording)"
            found.append(f"the part of rank {ranks_text(self.cut)} {when}: its later times are not known")
        return found


def lacking(trace: Trace) -> Lacking:
    """Return of which ranks a trace of ringtune's lacks all or most; none of another tool's, which names no ranks."""
    if trace.source not in ("part", "merged"):
        return Lacking((), ())
    present = {part.rank for part in trace.parts} | set(distinct(trace.spans.rank).tolist())
    ranks, counts = np.unique(trace.spans.rank[trace.spans.in_stage(Stage.STEP)], return_counts=True)
    steps = dict(zip(ranks.tolist(), counts.tolist(), strict=True))
    torn = {part.rank for part in trace.parts if part.truncated}
    return Lacking(
        tuple(sorted(set(range(trace.size)) - present)),
        tuple(rank for rank in sorted(torn) if 2 * steps.get(rank, 0) < max(steps.values(), default=0)),
    )


def summarize(
    trace: Trace, steps: tuple[int | None, int | None] | None = None, link_bytes_per_s: float | None = None
) -> Summary:
    """Summarize a trace.

    Args:
        trace: Of one or several ranks.
        steps: (first, end): only the steps first <= step < end (None: open).
        link_bytes_per_s: What the link between ranks can carry, to set the bus bandwidth against.
    """
    if steps is not None:
        trace = select_steps(trace, *steps)
    late = late_waits(trace)
    spans, kinds = trace.spans, traffic(late.moving, trace.size)
    present = {part.rank for part in trace.parts} | set(distinct(spans.rank).tolist())
    # Numpy lets go of the interpreter while it works on whole columns.
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        arrived = pool.submit(arrivals, trace)
        negotiated = pool.submit(negotiations, spans) if trace.source in ("part", "merged") else None
        contradicted, fused = pool.submit(causality, trace), pool.submit(fusion, trace)
        ranks = tuple(pool.map(lambda rank: _rank_summary(trace, rank, late), sorted(present)))
    errors = [part.error_ns for part in trace.parts]
    known = [error for error in errors if error is not None]
    return Summary(
        format=FORMAT,
        source=trace.source,
        path=str(trace.path or ""),
        job=trace.parts[0].job if trace.parts else "",
        size=trace.size,
        missing=(lacks := lacking(trace)).missing,
        cut=lacks.cut,
        span_count=len(spans),
        skipped=trace.skipped,
        duration_ns=int(spans.end_ns.max() - spans.begin_ns.min()) if len(spans) else 0,
        steps=step_times(spans),
        ranks=ranks,
        traffic=kinds,
        bus_bytes_per_s=bus_rate(kinds),
        dominated_by=_dominated_by(ranks),
        link_bytes_per_s=link_bytes_per_s,
        fusion=fused.result(),
        arrivals=arrived.result(),
        knobs_versions=_knobs_versions(trace),
        stalls=len(trace.instants_named(STALL)),
        errors=len(trace.instants_named(ERROR)),
        dropped=sum(part.dropped for part in trace.parts),
        clock_error_ns=max(known, default=0) if len(known) == len(errors) else None,
        device_clock_error_ns=max(device_clock_errors(trace).values(), default=None),
        causality=contradicted.result(),
        peer_waits=peer_waits(spans),
        negotiations=negotiated.result() if negotiated is not None else (),
    )


def step_times(spans: SpanTable) -> StepTimes | None:
    """Return how long steps took; None when none was recorded."""
    steps, lengths = step_lengths(spans)
    return step_times_of(steps, lengths) if len(steps) else None


def step_times_of(steps: Ints, lengths: Ints) -> StepTimes:
    """Return how long steps took, by their numbers in order and lengths in ns; at least one."""
    return StepTimes(
        count=len(steps),
        first=int(steps[0]),
        last=int(steps[-1]),
        median_ns=float(np.median(lengths)),
        p95_ns=float(np.percentile(lengths, 95)),
        shortest_ns=int(lengths.min()),
        longest_ns=int(lengths.max()),
        total_ns=int(lengths.sum()),
    )


def _dominated_by(ranks: tuple[RankSummary, ...]) -> str:
    late = sum(rank.exposure.late_ns for rank in ranks if rank.exposure)
    exposed = sum(rank.exposure.exposed_ns for rank in ranks if rank.exposure)
    return "" if late == exposed else "skew" if late > exposed else "transfer"


def exposures_of(trace: Trace) -> dict[int, Exposure | None]:
    """Return each rank's exposure; None where the trace does not record when callers wait."""
    late = late_waits(trace)
    return {rank: _exposure(trace, rank, late) for rank in trace.ranks}


def _exposure(trace: Trace, rank: int, late: LateWaits) -> Exposure | None:
    about = rank_steps(trace, rank)
    if about is None or not about.knows_waiting:
        return None
    return exposure(trace.spans.of_rank(rank), about.waits, late.of_rank(rank))


def _rank_summary(trace: Trace, rank: int, late: LateWaits) -> RankSummary:
    spans = trace.spans.of_rank(rank)
    part = next((part for part in trace.parts if part.rank == rank), None)
    return RankSummary(
        rank=rank,
        host=part.host if part else "",
        spans=len(spans),
        stages=stage_times(spans),
        bytes=int(spans.of_stage(Stage.COMMUNICATE).bytes.sum()),
        bus_bytes_per_s=bus_rate(traffic(late.moving.of_rank(rank), trace.size)),
        exposure=_exposure(trace, rank, late),
        steps=step_times(spans),
        recorded=part.recorded if part else None,
        dropped=part.dropped if part else 0,
        truncated=part.truncated if part else False,
        clock_offset_ns=part.offset_ns if part else 0,
        clock_error_ns=part.error_ns if part else None,
    )


def _knobs_versions(trace: Trace) -> tuple[KnobsVersion, ...]:
    """Versions of the knobs: those that an instant names (the lowest rank's counts) and those that spans ran under.

    None where another library carried every batch, or all were messages: knobs had no effect on them.
    """
    moving = trace.spans.take(trace.spans.in_stage(Stage.COMMUNICATE) & (trace.spans.batch != 0))
    batches = moving.take(moving.batch > 0)
    if len(moving) and batches.foreign().all():
        return ()
    named: dict[int, Mapping[str, Any]] = {}
    for instant in sorted(trace.instants_named(KNOBS), key=lambda found: found.rank):
        version = instant.args.get("knobs_version")
        if isinstance(version, int):
            named.setdefault(version, {key: value for key, value in instant.args.items() if key != "knobs_version"})
    seen = set(distinct(batches.knobs_version).tolist()) - {0}  # other tools know no versions
    return tuple(_knobs_version(version, named.get(version, {}), batches) for version in sorted(seen | set(named)))


def _knobs_version(version: int, knobs: Mapping[str, Any], batches: SpanTable) -> KnobsVersion:
    inside = batches.take(batches.knobs_version == version)
    steps = inside.step[inside.step >= 0]
    return KnobsVersion(
        knobs_version=version,
        knobs=knobs,
        first_step=int(steps.min()) if len(steps) else -1,
        last_step=int(steps.max()) if len(steps) else -1,
        batches=len(distinct(inside.batch)),
    )
