"""Plays one training step: gradients become ready, travel in batches one after the other, the step ends.

The runtime has two ways. Without a step schedule, everything that is ready on all ranks when the channel is free and a
cycle has passed is decided and fused (native/fusion/plan.h). With one (native/control/schedule_learner.h) the batches
are cut once, as such negotiated steps show, and each starts when its last gradient is ready.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from ringtune.algorithms import ALGORITHMS, SWITCH
from ringtune.knobs import Knobs
from ringtune.tuner.model.cluster import Cluster
from ringtune.tuner.model.collectives import HIERARCHICAL, batch_ns, wire_ns
from ringtune.tuner.model.workload import Gradient, Workload

ALIGNMENT = 64
"""Bytes; tensors of a batch start at multiples of this."""

GAP_CYCLES = 2
"""A step schedule cuts where the gap between two gradients is longer than so many cycle times."""


@dataclass(frozen=True)
class Batch:
    """Gradients that travelled together, and when."""

    bytes: int
    tensors: int
    begin_ns: float
    end_ns: float


@dataclass(frozen=True)
class Step:
    """A step as it was played; times in ns from its begin.

    Attributes:
        length_ns: Of the step, on every rank.
        compute_ns: What one rank alone would need.
        waiting_ns: After backward, until the last gradient was reduced: exposed communication.
        late_ns: The slowest rank's computing beyond an average one's.
        contention_ns: By which communication made computing longer.
        batches: In order.
    """

    length_ns: float
    compute_ns: float
    waiting_ns: float
    late_ns: float
    contention_ns: float
    batches: tuple[Batch, ...]

    @property
    def efficiency(self) -> float:
        """Rate per rank against a rank alone; 1 for a step of no length, in which nothing is waited for."""
        return self.compute_ns / self.length_ns if self.length_ns > 0 else 1.0

    @property
    def communicate_ns(self) -> float:
        """Time in which a batch travelled."""
        return sum(batch.end_ns - batch.begin_ns for batch in self.batches)


@dataclass(frozen=True)
class Conditions:
    """Further conditions of a step.

    Attributes:
        scheduled: The runtime follows a step schedule, as it does after a few equal steps.
        straggler: The slowest rank computes so many times as long as the others.
        hidden: Communication costs no time beyond its own: perfect overlap.
    """

    scheduled: bool = True
    straggler: float = 1.0
    hidden: bool = False


def fuse(gradients: Sequence[Gradient], fusion_bytes: int) -> list[list[Gradient]]:
    """Cut ready gradients into batches of at most `fusion_bytes` (padded), in order; one alone may be larger."""
    cuts = _cut([gradient.bytes for gradient in gradients], 0, len(gradients), fusion_bytes)
    return [list(gradients[begin:end]) for begin, end in cuts]


def _cut(sizes: Sequence[int], begin: int, end: int, fusion_bytes: int) -> list[tuple[int, int]]:
    """Where the batches of gradients `begin` to `end` begin and end."""
    cuts: list[tuple[int, int]] = []
    first, filled = begin, 0
    for index in range(begin, end):
        padded = -(-sizes[index] // ALIGNMENT) * ALIGNMENT
        if index > first and filled + padded > fusion_bytes:
            cuts.append((first, index))
            first, filled = index, 0
        filled += padded
    return [*cuts, (first, end)] if begin < end else cuts


def under_knobs(cluster: Cluster, knobs: Knobs) -> Cluster:
    """The cluster with the algorithm that the knobs ask for."""
    if knobs.hierarchical == SWITCH.index("on") and cluster.local > 1:
        return replace(cluster, algorithm=HIERARCHICAL)
    if knobs.algorithm:
        return replace(cluster, algorithm=ALGORITHMS[knobs.algorithm])
    return cluster


def play(work: Workload, cluster: Cluster, knobs: Knobs, conditions: Conditions = Conditions()) -> Step:
    """Play a step of `work` on every rank of `cluster`."""
    slow = max(conditions.straggler, 1.0 + work.late(cluster.ranks))
    late = (slow - 1.0) * work.compute_ns
    if cluster.ranks == 1:
        return Step(work.compute_ns * slow, work.compute_ns, 0.0, late, 0.0, ())
    cluster = under_knobs(cluster, knobs)
    if conditions.hidden:
        cluster = replace(cluster, contention=0.0)
    scheduled = conditions.scheduled and bool(knobs.step_schedule)
    channel = _Channel(cluster, work.backward_end_ns * slow, scheduled=scheduled)
    ready = _Ready.of(work.gradients, slow)
    if scheduled:
        _scheduled(ready, knobs, channel, _Channel(cluster, channel.compute_end, scheduled=False))
    else:
        _negotiated(ready, knobs, channel)
    backward_end = work.backward_end_ns * slow + channel.stolen
    end = backward_end if conditions.hidden else max(backward_end, channel.free)
    return Step(
        length_ns=end + work.after_ns * slow,
        compute_ns=work.compute_ns,
        waiting_ns=end - backward_end,
        late_ns=late,
        contention_ns=channel.stolen,
        batches=tuple(channel.batches),
    )


@dataclass(frozen=True)
class _Ready:
    """Gradients as columns: a step is played dozens of times for an answer, thousands of times for a search."""

    sizes: list[int]
    at: list[float]
    """When each is ready, in ns."""
    sums: list[int]
    """Bytes of those before each, and of all."""

    @staticmethod
    def of(gradients: Sequence[Gradient], slow: float) -> _Ready:
        sizes = [gradient.bytes for gradient in gradients]
        return _Ready(sizes, [gradient.ready_ns * slow for gradient in gradients], [0, *accumulate(sizes)])

    def full(self, begin: int, fusion_bytes: int) -> float:
        """When those from `begin` on fill a fusion buffer."""
        place = max(bisect_left(self.sums, self.sums[begin] + fusion_bytes), begin + 1)
        return self.at[place - 1] if place <= len(self.at) else math.inf


class _Channel:
    """One batch at a time, and what each takes from computing until `compute_end`."""

    def __init__(self, cluster: Cluster, compute_end: float, *, scheduled: bool) -> None:
        self.cluster, self.compute_end, self.scheduled = cluster, compute_end, scheduled
        self.free = 0.0
        self.stolen = 0.0
        # The links have rested before the first batch, while the step computed.
        self.saved = cluster.widest.burst_ns
        self.batches: list[Batch] = []

    def run(self, size: int, tensors: int, not_before: float) -> None:
        begin = max(self.free, not_before)
        taken = batch_ns(size, tensors == 1, self.scheduled, self.cluster)
        self.free = begin + taken - self._made_up(size, taken, begin - self.free)
        overlapped = min(self.free, self.compute_end + self.stolen) - begin
        self.stolen += self.cluster.contention * max(overlapped, 0.0)
        self.batches.append(Batch(size, tensors, begin, self.free))

    def _made_up(self, size: int, taken: float, idle: float) -> float:
        """The time of a batch that the buckets of the links save after such a rest."""
        burst = self.cluster.widest.burst_ns
        if burst <= 0.0:
            return 0.0
        wire = wire_ns(size, self.cluster)
        saved = min(self.saved + idle, burst)
        made_up = min(saved, wire)
        self.saved = min(max(saved + taken - made_up - wire, 0.0), burst)
        return made_up


@dataclass(frozen=True)
class _Decision:
    """Gradients that were decided together: `begin` to `end` of them, and when they were reported."""

    begin: int
    end: int
    reported_ns: float
    awaited: bool
    """Callers were blocked by then."""


def _scheduled(ready: _Ready, knobs: Knobs, channel: _Channel, learning: _Channel) -> None:
    """Batches of the step schedule, which was learned from negotiated steps (`cut_between` of schedule_learner.cc)."""
    decisions = _negotiated(ready, knobs, learning)
    runs = [[decisions[0]]]
    for before, decision in pairwise(decisions):
        if before.awaited or decision.reported_ns - before.reported_ns > GAP_CYCLES * knobs.cycle_time_ns:
            runs.append([])
        runs[-1].append(decision)
    for run in runs:
        for begin, end in _cut(ready.sizes, run[0].begin, run[-1].end, knobs.fusion_bytes):
            size = ready.sums[end] - ready.sums[begin]
            channel.run(size, end - begin, ready.at[end - 1] + channel.stolen)


def _negotiated(ready: _Ready, knobs: Knobs, channel: _Channel) -> list[_Decision]:
    """Batches of ready gradients, which are reported after a cycle time, at a full fusion buffer or when callers wait.

    While a batch travels nothing is reported.
    """
    decisions: list[_Decision] = []
    begin = 0
    at, count = ready.at, len(ready.at)
    while begin < count:
        blocked = channel.compute_end + channel.stolen
        first = at[begin] + channel.stolen
        full = ready.full(begin, knobs.fusion_bytes) + channel.stolen
        reported = max(min(first + knobs.cycle_time_ns, max(blocked, first), full), channel.free)
        end = begin
        while end < count and at[end] + channel.stolen <= reported:
            end += 1
        decisions.append(_Decision(begin, end, reported, reported >= blocked))
        for low, high in _cut(ready.sizes, begin, end, knobs.fusion_bytes):
            channel.run(ready.sums[high] - ready.sums[low], high - low, reported + channel.cluster.decision_ns)
        begin = end
    return decisions
