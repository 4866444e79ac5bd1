"""Ground truth for the analyses across ranks: a job simulated rank by rank, with what must be found in it.

Unlike `generate`, where all ranks begin a step together, every rank runs on its own here: what delays it in one step
it carries into the next. Notation: rank r, step s, batch b. A rank computes, submits its tensors evenly spread over
that time, waits until its last batch is out, updates, and begins the next step at once. A batch is agreed ``control``
after its last submit on any rank, starts when the rank's earlier batch is out, is copied in, moves once all ranks have
begun, ends ``transfer`` later, is copied out. In a plan a rank comes to a batch when it has submitted it and is through
with the one before; it is agreed when the last rank has come, and the others record that they waited for that rank.
Slow ranks are slow in one of these. Integer arithmetic throughout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from ringtune.timeline import vocabulary as words
from ringtune.timeline.spans import Instant
from ringtune.timeline.synthetic.generate import GeneratedJob, HostClock, Rows, Schedule, clock_samples
from ringtune.timeline.vocabulary import Stage


@dataclass(frozen=True)
class Scenario:
    """A job to simulate. ``slow_*`` map a rank to nanoseconds added each step (compute) or each batch (the others)."""

    ranks: int = 4
    steps: int = 12
    batches: int = 3
    tensors_per_batch: int = 2
    tensor_bytes: int = 1 << 20
    compute_ns: int = 10_000_000
    jitter_ns: int = 100_000
    """Each rank and step computes up to this much longer, at random."""
    control_ns: int = 50_000
    copy_ns: int = 20_000
    transfer_ns: int = 2_000_000
    update_ns: int = 1_000_000
    slow_compute: Mapping[int, int] = field(default_factory=dict)
    pauses: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """Nanoseconds that a rank computes longer in one step, by (rank, step)."""
    slow_control: Mapping[int, int] = field(default_factory=dict)
    slow_link: Mapping[int, int] = field(default_factory=dict)
    scheduled: bool = False
    """Batches follow a step schedule: ranks record whom they waited for."""
    late_first: Mapping[int, int] = field(default_factory=dict)
    """By rank: nanoseconds by which the first batch of each step is submitted later; no batch comes before it."""
    slow_arrival: Mapping[int, int] = field(default_factory=dict)
    """Under a step schedule: how much later than it could a rank comes to each batch."""
    hosts: tuple[str, ...] = ()
    clocks: Mapping[str, HostClock] = field(default_factory=dict)
    seed: int = 0


@dataclass(frozen=True)
class Cause:
    """A stretch of the critical path."""

    name: str
    rank: int
    begin_ns: int
    end_ns: int


@dataclass(frozen=True)
class ScenarioTruth:
    """What the simulation put in; every number is exact.

    ``path`` runs from the first step's begin to the last end; ``useful_ns`` is time outside of waiting by rank;
    ``ideal_ns`` the job's length were communication and its control free; ``submit_ns[s][b][r]`` the last submit.
    """

    path: tuple[Cause, ...]
    useful_ns: tuple[int, ...]
    runtime_ns: int
    ideal_ns: int
    submit_ns: tuple[tuple[tuple[int, ...], ...], ...]
    end_ns: tuple[tuple[tuple[int, ...], ...], ...]
    agreed_ns: tuple[tuple[tuple[int, ...], ...], ...]
    arrived_ns: tuple[tuple[tuple[int, ...], ...], ...]
    """When each rank came to each batch: its last submit, in a plan also through with the batch before."""
    released_ns: tuple[tuple[int, ...], ...]
    """``released_ns[s][r]``: when the wait of step s ended on rank r."""

    def causes(self) -> Counter[str]:
        """Nanoseconds of the critical path by cause."""
        total: Counter[str] = Counter()
        for cause in self.path:
            total[cause.name] += cause.end_ns - cause.begin_ns
        return total


@dataclass(frozen=True)
class _Node:
    """An event and the one it waited for: following ``parent`` backwards gives the critical path."""

    at_ns: int
    rank: int
    cause: str
    parent: _Node | None
    others_ns: int = 0
    """Of an agreement: when all ranks but the last had submitted."""


class _Simulation:
    """The state of all ranks; ``step`` advances it."""

    def __init__(self, plan: Scenario, start_ns: int, ideal: bool) -> None:
        self.plan, self.ideal = plan, ideal
        ranks = range(plan.ranks)
        self.rows = {rank: Rows(rank) for rank in ranks}
        self.now = [_Node(start_ns, rank, "start", None) for rank in ranks]
        self.free: list[_Node | None] = [None] * plan.ranks
        self.useful = [0] * plan.ranks
        self.submits: list[tuple[tuple[int, ...], ...]] = []
        self.agreed: list[tuple[tuple[int, ...], ...]] = []
        self.arrived: list[tuple[tuple[int, ...], ...]] = []
        self.ends: list[tuple[tuple[int, ...], ...]] = []
        self.released: list[tuple[int, ...]] = []
        self.free_of_charge = replace(
            plan, control_ns=0, copy_ns=0, transfer_ns=0, slow_control={}, slow_link={}, slow_arrival={}
        )  # the ideal network

    def step(self, number: int, compute_ns: list[int]) -> None:
        """Run one step on all ranks."""
        plan = self.free_of_charge if self.ideal else self.plan
        begins = [node.at_ns for node in self.now]
        table = []
        for batch in range(plan.batches):
            submits = [
                _Node(self._submit(rank, begins[rank], compute_ns[rank], batch, -1), rank, "compute", self.now[rank])
                for rank in range(plan.ranks)
            ]
            table.append(self._batch(plan, (number, batch), submits, (begins, compute_ns)))
        self.submits.append(tuple(row[0] for row in table))
        self.agreed.append(tuple(row[1] for row in table))
        self.ends.append(tuple(row[2] for row in table))
        self.arrived.append(tuple(row[3] for row in table))
        self._finish(plan, number, begins, compute_ns)

    def _submit(self, rank: int, begin: int, compute_ns: int, batch: int, tensor: int) -> int:
        """When a tensor of a batch is submitted (-1: its last)."""
        width = self.plan.tensors_per_batch
        first = compute_ns // self.plan.batches + self.plan.late_first.get(rank, 0)
        own = compute_ns * (batch * width + tensor % width + 1) // (self.plan.batches * width)
        return begin + (max(own, first) if self.plan.late_first.get(rank) else own)

    def _batch(
        self, plan: Scenario, place: tuple[int, int], submits: list[_Node], computing: tuple[list[int], list[int]]
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        ranks, copying = range(plan.ranks), plan.copy_ns * plan.tensors_per_batch
        ready = [self._ready(node) for node in submits]
        arrived = [node.at_ns + plan.slow_arrival.get(node.rank, 0) for node in ready]
        last = min(ready, key=lambda node: (-arrived[node.rank], node.rank))
        others = max((node.at_ns for node in submits if node.rank != last.rank), default=last.at_ns)
        decided = arrived[last.rank] + plan.control_ns
        to_blame = [last.rank if plan.scheduled else rank for rank in ranks]
        agreed = [
            _Node(decided + plan.slow_control.get(rank, 0), to_blame[rank], "control", last, others) for rank in ranks
        ]
        if plan.scheduled and not self.ideal:
            facts = (0, place[0] * plan.batches + place[1] + 1, place[0], 1)
            for rank in set(ranks) - {last.rank}:
                self.rows[rank].add_await(arrived[rank], agreed[rank].at_ns, last.rank, facts)
        begun = []
        for rank in ranks:
            earlier = self.free[rank]
            start = earlier if earlier is not None and earlier.at_ns > agreed[rank].at_ns else agreed[rank]
            begun.append(_Node(start.at_ns + copying, rank, "copy_in", start))
        moving = max(begun, key=lambda node: (node.at_ns, -node.rank))
        ends = [
            _Node(moving.at_ns + plan.transfer_ns + plan.slow_link.get(rank, 0), rank, "transfer", moving)
            for rank in ranks
        ]
        for rank in ranks:
            self.free[rank] = _Node(ends[rank].at_ns + copying, rank, "copy_out", ends[rank])
            if not self.ideal:
                times = (agreed[rank].at_ns, begun[rank].at_ns, ends[rank].at_ns)
                self._record(rank, place, (computing[0][rank], computing[1][rank]), times)
        submitted, agreed_at, ended = (tuple(node.at_ns for node in row) for row in (submits, agreed, ends))
        return submitted, agreed_at, ended, tuple(arrived)

    def _ready(self, submit: _Node) -> _Node:
        """What a rank comes to a batch from: its last submit, or by a schedule the batch before, if that is later."""
        before = self.free[submit.rank]
        return before if self.plan.scheduled and before is not None and before.at_ns > submit.at_ns else submit

    def _record(
        self, rank: int, place: tuple[int, int], computing: tuple[int, int], times: tuple[int, int, int]
    ) -> None:
        plan, (step, batch), (agreed, begun, end) = self.plan, place, times
        width, number = plan.tensors_per_batch, step * plan.batches + batch + 1
        rows, start = self.rows[rank], begun - plan.copy_ns * width
        facts = (plan.tensor_bytes, number, step, 1)
        for tensor in range(width):
            name = f"layer{batch * width + tensor}.weight"
            submit = self._submit(rank, *computing, batch, tensor)
            came_in, came_out = start + tensor * plan.copy_ns, end + tensor * plan.copy_ns
            rows.add(Stage.NEGOTIATE, words.NEGOTIATE_PREFIX + "ALLREDUCE", submit, agreed, tensor=name, facts=facts)
            rows.add(Stage.QUEUE, words.QUEUE_NAME, agreed, start, tensor=name, facts=facts)
            rows.add(Stage.COPY_IN, words.COPY_IN_NAME, came_in, came_in + plan.copy_ns, tensor=name, facts=facts)
            rows.add(Stage.COPY_OUT, words.COPY_OUT_NAME, came_out, came_out + plan.copy_ns, tensor=name, facts=facts)
        label = f"layer{batch * width}.weight" + (f" +{width - 1}" if width > 1 else "")
        total = (plan.tensor_bytes * width, number, step, 1)
        text = '"step_schedule":1' if plan.scheduled else ""
        rows.add(Stage.COMMUNICATE, words.RING_PREFIX + "ALLREDUCE", begun, end, tensor=label, facts=total, text=text)

    def _finish(self, plan: Scenario, number: int, begins: list[int], compute_ns: list[int]) -> None:
        released = []
        for rank in range(plan.ranks):
            computed = _Node(begins[rank] + compute_ns[rank], rank, "compute", self.now[rank])
            out = self.free[rank]
            free = out if out is not None and out.at_ns > computed.at_ns else computed
            released.append(free.at_ns)
            self.now[rank] = _Node(free.at_ns + plan.update_ns, rank, "compute", free)
            self.useful[rank] += compute_ns[rank] + plan.update_ns
            rows, facts = self.rows[rank], (0, 0, number, 1)
            rows.add(Stage.WAIT, words.WAIT_NAME, computed.at_ns, free.at_ns, facts=facts)
            rows.add(Stage.STEP, words.STEP_NAME, begins[rank], self.now[rank].at_ns, facts=facts)
        self.released.append(tuple(released))


def _path(last: _Node) -> tuple[Cause, ...]:
    """Follow the parents; what a rank computed after all others had submitted is ``late``."""
    found = []
    node, others = last, None
    while node.parent is not None:
        begin, end = node.parent.at_ns, node.at_ns
        if others is not None and node.cause == "compute":
            found.append(Cause("late", node.rank, min(max(others, begin), end), end))
            end = found[-1].begin_ns
        found.append(Cause(node.cause, node.rank, begin, end))
        others = node.others_ns if node.cause == "control" else None
        node = node.parent
    return tuple(cause for cause in reversed(found) if cause.end_ns > cause.begin_ns)


def simulate(plan: Scenario | None = None) -> tuple[GeneratedJob, ScenarioTruth]:
    """Run a scenario; its parts can be written like those of any generated job."""
    plan = plan or Scenario()
    schedule = Schedule(ranks=plan.ranks, steps=plan.steps, hosts=plan.hosts, clocks=plan.clocks, job="scenario")
    random = np.random.default_rng(plan.seed)
    real, ideal = (_Simulation(plan, schedule.start_ns, ideal=kind) for kind in (False, True))
    for step in range(plan.steps):
        jitter = random.integers(0, plan.jitter_ns + 1, plan.ranks).tolist()
        compute = [
            plan.compute_ns + jitter[rank] + plan.slow_compute.get(rank, 0) + plan.pauses.get((rank, step), 0)
            for rank in range(plan.ranks)
        ]
        for simulation in (real, ideal):
            simulation.step(step, compute)
    last = max(real.now, key=lambda node: (node.at_ns, -node.rank))
    truth = ScenarioTruth(
        path=_path(last),
        useful_ns=tuple(real.useful),
        runtime_ns=last.at_ns - schedule.start_ns,
        ideal_ns=max(node.at_ns for node in ideal.now) - schedule.start_ns,
        submit_ns=tuple(real.submits),
        end_ns=tuple(real.ends),
        agreed_ns=tuple(real.agreed),
        arrived_ns=tuple(real.arrived),
        released_ns=tuple(real.released),
    )
    samples: dict[int, tuple[Instant, ...]] = {
        rank: tuple(clock_samples(schedule, rank, last.at_ns)) for rank in range(plan.ranks)
    }
    return GeneratedJob(schedule, None, {rank: rows.table() for rank, rows in real.rows.items()}, samples), truth
