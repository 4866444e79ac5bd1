"""Plays one training step: gradients become ready, travel in batches one after the other, the step ends.

Two ways as the runtime has them. Without a plan, everything that is ready on all ranks when the channel is free and a
cycle has passed is decided and fused (native/fusion/plan.h). With a plan (native/control/plan_learner.h) the batches
are cut once, as such negotiated steps show, and each starts when its last gradient is ready.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ringtune.algorithms import ALGORITHMS, SWITCH
from ringtune.knobs import Knobs
from ringtune.tuner.model.cluster import Cluster
from ringtune.tuner.model.collectives import HIERARCHICAL, batch_ns, wire_ns
from ringtune.tuner.model.spread import expected_maximum
from ringtune.tuner.model.workload import Gradient, Workload

ALIGNMENT = 64
"""Bytes; tensors of a batch start at multiples of it."""

GAP_CYCLES = 2
"""A plan cuts where the gap between two gradients is longer than so many cycle times."""


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
        """Rate per rank against a rank alone."""
        return self.compute_ns / self.length_ns

    @property
    def communicate_ns(self) -> float:
        """Time in which a batch travelled."""
        return sum(batch.end_ns - batch.begin_ns for batch in self.batches)


@dataclass(frozen=True)
class Conditions:
    """What else holds for a step.

    Attributes:
        planned: The runtime follows a plan, as it does after a few equal steps.
        straggler: The slowest rank computes so many times as long as the others.
        hidden: Communication costs no time beyond its own: perfect overlap.
    """

    planned: bool = True
    straggler: float = 1.0
    hidden: bool = False


def fuse(gradients: Sequence[Gradient], fusion_bytes: int) -> list[list[Gradient]]:
    """Cut ready gradients into batches of at most `fusion_bytes` (padded), in order; one alone may be larger."""
    batches: list[list[Gradient]] = []
    filled = 0
    for gradient in gradients:
        padded = -(-gradient.bytes // ALIGNMENT) * ALIGNMENT
        if batches and filled + padded <= fusion_bytes:
            batches[-1].append(gradient)
            filled += padded
        else:
            batches.append([gradient])
            filled = padded
    return batches


def under_knobs(cluster: Cluster, knobs: Knobs) -> Cluster:
    """The cluster with the algorithm that the knobs ask for."""
    if knobs.hierarchical == SWITCH.index("on") and cluster.local > 1:
        return replace(cluster, algorithm=HIERARCHICAL)
    if knobs.algorithm:
        return replace(cluster, algorithm=ALGORITHMS[knobs.algorithm])
    return cluster


def play(work: Workload, cluster: Cluster, knobs: Knobs, conditions: Conditions = Conditions()) -> Step:
    """Play a step of `work` on every rank of `cluster`."""
    slow = max(conditions.straggler, 1.0 + work.jitter * expected_maximum(cluster.ranks))
    late = (slow - 1.0) * work.compute_ns
    if cluster.ranks == 1:
        return Step(work.compute_ns * slow, work.compute_ns, 0.0, late, 0.0, ())
    cluster = under_knobs(cluster, knobs)
    planned = conditions.planned and bool(knobs.plan)
    channel = _Channel(cluster, work.backward_end_ns * slow, planned=planned)
    ready = [Gradient(one.bytes, one.ready_ns * slow, one.name) for one in work.gradients]
    if planned:
        _planned(ready, knobs, channel, _Channel(cluster, channel.compute_end, planned=False))
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


class _Channel:
    """One batch at a time, and what each takes from computing until `compute_end`."""

    def __init__(self, cluster: Cluster, compute_end: float, *, planned: bool) -> None:
        self.cluster, self.compute_end, self.planned = cluster, compute_end, planned
        self.free = 0.0
        self.stolen = 0.0
        # Before its first batch a step computes: the links have rested.
        self.saved = cluster.widest.burst_ns
        self.batches: list[Batch] = []

    def run(self, batch: Sequence[Gradient], not_before: float) -> None:
        begin = max(self.free, not_before)
        size = sum(gradient.bytes for gradient in batch)
        taken = batch_ns(size, len(batch) == 1, self.planned, self.cluster)
        self.free = begin + taken - self._made_up(size, taken, begin - self.free)
        overlapped = min(self.free, self.compute_end + self.stolen) - begin
        self.stolen += self.cluster.contention * max(overlapped, 0.0)
        self.batches.append(Batch(size, len(batch), begin, self.free))

    def _made_up(self, size: int, taken: float, idle: float) -> float:
        """What the buckets of the links save of a batch's time after such a rest."""
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
    """Gradients that were decided together: `begin` to `end` of them, when they were announced."""

    begin: int
    end: int
    announced_ns: float
    awaited: bool
    """Callers were blocked by then."""


def _planned(ready: list[Gradient], knobs: Knobs, channel: _Channel, learning: _Channel) -> None:
    """Batches as the plan has them, which was learnt from negotiated steps (`cut_between` of plan_learner.cc)."""
    decisions = _negotiated(ready, knobs, learning)
    runs = [[decisions[0]]]
    for before, decision in pairwise(decisions):
        if before.awaited or decision.announced_ns - before.announced_ns > GAP_CYCLES * knobs.cycle_time_ns:
            runs.append([])
        runs[-1].append(decision)
    for run in runs:
        for batch in fuse(ready[run[0].begin : run[-1].end], knobs.fusion_bytes):
            channel.run(batch, batch[-1].ready_ns + channel.stolen)


def _negotiated(ready: list[Gradient], knobs: Knobs, channel: _Channel) -> list[_Decision]:
    """Announces what is ready after a cycle time, at a full fusion buffer or when callers wait.

    While a batch travels nothing is announced.
    """
    decisions: list[_Decision] = []
    begin = 0
    while begin < len(ready):
        blocked = channel.compute_end + channel.stolen
        first = ready[begin].ready_ns + channel.stolen
        due = min(first + knobs.cycle_time_ns, max(blocked, first), _full(ready[begin:], knobs) + channel.stolen)
        at = max(due, channel.free)
        end = begin
        while end < len(ready) and ready[end].ready_ns + channel.stolen <= at:
            end += 1
        decisions.append(_Decision(begin, end, at, at >= blocked))
        for batch in fuse(ready[begin:end], knobs.fusion_bytes):
            channel.run(batch, at + channel.cluster.decision_ns)
        begin = end
    return decisions


def _full(ready: Sequence[Gradient], knobs: Knobs) -> float:
    """When the gradients fill a fusion buffer."""
    filled = 0
    for gradient in ready:
        filled += gradient.bytes
        if filled >= knobs.fusion_bytes:
            return gradient.ready_ns
    return math.inf
