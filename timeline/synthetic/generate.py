"""Ground truth: makes the parts of a job from a known schedule, and says what an analysis must find in them.

The schedule runs on rank 0's clock. Step s begins at the same moment T on all ranks. A rank computes for
``compute_ns`` and submits its tensors evenly spread over that time; the late rank does all of it ``late_ns`` later.
All ranks agree ``control_ns`` after the last submit; batches run one after another; each rank then copies in,
communicates and copies out. After computing, a rank blocks until the last batch is out (WAIT). The optimizer takes
``update_ns``; then the next step begins. All is integer arithmetic, so analyses can be compared exactly.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ringtune import layout
from ringtune.timeline import vocabulary as words
from ringtune.timeline.merging.part_writer import write_part
from ringtune.timeline.spans import COLUMN_TYPES, Instant, Ints, PartInfo, SpanTable
from ringtune.timeline.vocabulary import Stage

MILLISECOND = 1_000_000


@dataclass(frozen=True)
class HostClock:
    """A host's clock against rank 0's: ``rank 0's - this one`` is offset_ns at the job's start and then drifts."""

    offset_ns: int = 0
    drift_ppm: float = 0.0
    error_ns: int = 2_000


@dataclass(frozen=True)
class Schedule:
    """A job to make up. Bytes are per tensor; times in nanoseconds."""

    ranks: int = 2
    steps: int = 4
    tensors: tuple[tuple[str, int], ...] = (
        ("conv.weight", 4096),
        ("conv.bias", 64),
        ("fc.weight", 16384),
        ("fc.bias", 40),
    )
    tensors_per_batch: int = 2
    compute_ns: int = 10 * MILLISECOND
    control_ns: int = 50_000
    copy_ns: int = 20_000
    communicate_ns: int = 3 * MILLISECOND
    update_ns: int = MILLISECOND
    late_rank: int | None = None
    late_ns: int = 0
    hosts: tuple[str, ...] = ()
    """Host of each rank; empty: all on one."""
    clocks: Mapping[str, HostClock] = field(default_factory=dict)
    start_ns: int = 5_000_000_000_000
    """Rank 0's monotonic clock at the first step."""
    start_unix_ns: int = 1_700_000_000_000_000_000
    fusion_bytes: int = 64 << 20
    knob_change_step: int | None = None
    """Step at which version 2 of the knobs (half the fusion buffer) comes into force."""
    dropped: Mapping[int, int] = field(default_factory=dict)
    job: str = "generated"

    def host(self, rank: int) -> str:
        """Host of a rank."""
        return self.hosts[rank] if self.hosts else "host-a"

    def knobs_version(self, step: int) -> int:
        """Version of the knobs in force at a step."""
        return 2 if self.knob_change_step is not None and step >= self.knob_change_step else 1

    @property
    def batches(self) -> tuple[tuple[tuple[str, int], ...], ...]:
        """The tensors of each batch of a step."""
        width = self.tensors_per_batch
        return tuple(self.tensors[at : at + width] for at in range(0, len(self.tensors), width))


@dataclass(frozen=True)
class Truth:
    """What the schedule put in; every number is exact."""

    step_ns: tuple[int, ...]
    exposed_ns: Mapping[int, int]
    """Communication inside WAIT while no rank was late, by rank."""
    waited_late_ns: Mapping[int, int]
    """WAIT while another rank was late, by rank."""
    overlapped_ns: Mapping[int, int]
    """Communication outside WAIT, by rank."""
    wait_ns: Mapping[int, int]
    communicate_ns: int
    copy_in_ns: int
    copy_out_ns: int
    bytes: int
    """Reduced by each rank over all steps."""
    batches: int
    last: Mapping[int, int]
    """How often each rank submitted a tensor last."""
    late_ns: int


@dataclass(frozen=True)
class GeneratedJob:
    """A made-up job on rank 0's clock; `write` puts each rank's part on that rank's own clock."""

    schedule: Schedule
    truth: Truth | None
    """None for a simulated job (`tests.timeline.scenario`), which comes with a truth of its own."""
    spans: Mapping[int, SpanTable]
    instants: Mapping[int, tuple[Instant, ...]]

    def write(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write every rank's part into the folder and return the paths.

        Raises:
            TraceIoError: A file cannot be written.
        """
        paths = []
        for rank, (local, instants) in self.on_own_clocks().items():
            path = Path(folder) / f"{layout.rank_stem(rank)}{layout.PART_SUFFIX}"
            write_part(path, self.part_info(rank), local, instants)
            paths.append(path)
        return paths

    def part_info(self, rank: int) -> PartInfo:
        """Header of a rank's part."""
        plan = self.schedule
        monotonic = int(to_local(plan, rank, np.array([plan.start_ns]))[0])
        return PartInfo(
            rank=rank,
            size=plan.ranks,
            host=plan.host(rank),
            job=plan.job,
            dropped=plan.dropped.get(rank, 0),
            unix_ns=plan.start_unix_ns,
            monotonic_ns=monotonic,
        )

    def on_own_clocks(self) -> dict[int, tuple[SpanTable, list[Instant]]]:
        """Spans and instants by rank, as its own clock showed them."""
        return {rank: self._on_own_clock(rank, table) for rank, table in self.spans.items()}

    def _on_own_clock(self, rank: int, table: SpanTable) -> tuple[SpanTable, list[Instant]]:
        plan = self.schedule
        begin, end = to_local(plan, rank, table.begin_ns), to_local(plan, rank, table.end_ns)
        moved = SpanTable(
            **{**{name: getattr(table, name) for name in COLUMN_TYPES}, "begin_ns": begin, "end_ns": end},
            names=table.names,
            tensors=table.tensors,
            fact_texts=table.fact_texts,
        )
        instants = []
        for instant in self.instants[rank]:
            at = int(to_local(plan, rank, np.array([instant.at_ns]))[0])
            args = dict(instant.args)
            if instant.name == words.CLOCK:
                args["offset_ns"] = instant.at_ns - at
            instants.append(Instant(instant.name, instant.category, rank, at, args))
        return moved, instants


def to_local(plan: Schedule, rank: int, at_ns: Ints) -> Ints:
    """Turn moments on rank 0's clock into moments on the rank's own clock."""
    clock = plan.clocks.get(plan.host(rank), HostClock())
    if plan.host(rank) == plan.host(0):
        return at_ns
    drift = np.rint((at_ns - plan.start_ns) * (clock.drift_ppm * 1e-6)).astype(np.int64)
    local: Ints = at_ns - clock.offset_ns - drift
    return local


class Rows:
    """Collects spans row by row and turns them into a table."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.rows: list[tuple[int, ...]] = []
        self.names: dict[str, int] = {}
        self.tensors: dict[str, int] = {"": 0}
        self.facts: dict[str, int] = {"": 0}

    def add(
        self, stage: Stage, name: str, begin: int, end: int, *, tensor: str = "", facts: Sequence[int], text: str = ""
    ) -> None:
        """Add a span; facts = (bytes, batch, step, knobs_version), text = further ones as JSON."""
        name_code = self.names.setdefault(name, len(self.names))
        tensor_code = self.tensors.setdefault(tensor, len(self.tensors))
        size, batch, step, knobs_version = facts
        text_code = self.facts.setdefault(text, len(self.facts))
        self.rows.append((begin, end, int(stage), name_code, tensor_code, size, batch, step, knobs_version, text_code))

    def add_await(self, begin: int, end: int, peer: int, facts: Sequence[int]) -> None:
        """Add a wait for a rank before a batch of a step schedule; facts as for `add`."""
        self.add(Stage.AWAIT, words.AWAIT_NAME, begin, end, facts=facts, text=f'"step_schedule":1,"peer":{peer}')

    def table(self) -> SpanTable:
        """The spans in the order in which they ended, as the recorder writes them."""
        order = ("begin_ns", "end_ns", "stage", "name", "tensor", "bytes", "batch", "step", "knobs_version", "facts")
        data = np.array(self.rows, dtype=np.int64).reshape(-1, len(order))
        data = data[np.argsort(data[:, 1], kind="stable")]
        columns = {column: data[:, at].astype(COLUMN_TYPES[column]) for at, column in enumerate(order)}
        columns["rank"] = np.full(len(data), self.rank, dtype=np.int32)
        return SpanTable(**columns, names=tuple(self.names), tensors=tuple(self.tensors), fact_texts=tuple(self.facts))


def generate(plan: Schedule | None = None) -> GeneratedJob:
    """Make up a job."""
    plan = plan or Schedule()
    rows = {rank: Rows(rank) for rank in range(plan.ranks)}
    instants: dict[int, list[Instant]] = {rank: [] for rank in range(plan.ranks)}
    exposed, overlapped, waited = dict.fromkeys(rows, 0), dict.fromkeys(rows, 0), dict.fromkeys(rows, 0)
    at, lengths = plan.start_ns, []
    for step in range(plan.steps):
        _mark_knobs(plan, step, at, instants)
        runs, end = _batch_times(plan, step, at)
        for rank, collected in rows.items():
            _record_step(plan, collected, (step, at), runs)
            ready = at + plan.compute_ns + _late(plan, rank)
            collected.add(
                Stage.WAIT, words.WAIT_NAME, ready, max(ready, end), facts=(0, 0, step, plan.knobs_version(step))
            )
            finish = max(end, at + plan.compute_ns + plan.late_ns) + plan.update_ns
            collected.add(Stage.STEP, words.STEP_NAME, at, finish, facts=(0, 0, step, plan.knobs_version(step)))
            kept = _kept_waiting(plan, rank)
            for begin, stop in runs:
                overlapped[rank] += max(0, min(stop, ready) - begin)
                exposed[rank] += max(0, stop - max(begin, ready + kept))
            waited[rank] += max(0, end - ready)
        lengths.append(finish - at)
        at = finish
    for rank in rows:
        instants[rank] += clock_samples(plan, rank, at)
    return GeneratedJob(
        plan,
        _truth(plan, lengths, (exposed, overlapped, waited)),
        {rank: collected.table() for rank, collected in rows.items()},
        {rank: tuple(sorted(found, key=lambda instant: instant.at_ns)) for rank, found in instants.items()},
    )


def _late(plan: Schedule, rank: int) -> int:
    return plan.late_ns if rank == plan.late_rank else 0


def _kept_waiting(plan: Schedule, rank: int) -> int:
    """How long in each step a rank is blocked by a late one, which submits the last tensor so much after it."""
    somebody = plan.late_rank is not None and plan.late_rank < plan.ranks and plan.late_rank != rank
    return plan.late_ns if somebody else 0


def _submit(plan: Schedule, at: int, index: int) -> int:
    """When a rank on time submits its index-th tensor of the step."""
    return at + (index + 1) * plan.compute_ns // len(plan.tensors)


def _latest(plan: Schedule) -> int:
    return plan.late_ns if plan.late_rank is not None else 0


def _batch_times(plan: Schedule, step: int, at: int) -> tuple[list[tuple[int, int]], int]:
    """When each batch communicates (the same on all ranks), and when the last one is copied out."""
    runs, free, first = [], at, 0
    for batch in plan.batches:
        agreed = _submit(plan, at, first + len(batch) - 1) + _latest(plan) + plan.control_ns
        begin = max(agreed, free) + plan.copy_ns * len(batch)
        runs.append((begin, begin + plan.communicate_ns))
        free = begin + plan.communicate_ns + plan.copy_ns * len(batch)
        first += len(batch)
    return runs, free


def _record_step(plan: Schedule, rows: Rows, step_at: tuple[int, int], runs: Sequence[tuple[int, int]]) -> None:
    step, at = step_at
    index = 0
    for number, (batch, (begin, end)) in enumerate(zip(plan.batches, runs, strict=True)):
        batch_id = step * len(plan.batches) + number + 1
        start = begin - plan.copy_ns * len(batch)
        for place, (tensor, size) in enumerate(batch):
            facts = (size, batch_id, step, plan.knobs_version(step))
            submit = _submit(plan, at, index)
            agreed = submit + _latest(plan) + plan.control_ns
            came_in, came_out = start + place * plan.copy_ns, end + place * plan.copy_ns
            negotiate = words.NEGOTIATE_PREFIX + "ALLREDUCE"
            rows.add(Stage.NEGOTIATE, negotiate, submit + _late(plan, rows.rank), agreed, tensor=tensor, facts=facts)
            rows.add(Stage.QUEUE, words.QUEUE_NAME, agreed, start, tensor=tensor, facts=facts)
            rows.add(Stage.COPY_IN, words.COPY_IN_NAME, came_in, came_in + plan.copy_ns, tensor=tensor, facts=facts)
            rows.add(Stage.COPY_OUT, words.COPY_OUT_NAME, came_out, came_out + plan.copy_ns, tensor=tensor, facts=facts)
            index += 1
        label = batch[0][0] + (f" +{len(batch) - 1}" if len(batch) > 1 else "")
        total = (sum(size for _, size in batch), batch_id, step, plan.knobs_version(step))
        rows.add(Stage.COMMUNICATE, words.RING_PREFIX + "ALLREDUCE", begin, end, tensor=label, facts=total)


def _mark_knobs(plan: Schedule, step: int, at: int, instants: Mapping[int, list[Instant]]) -> None:
    if step not in (0, plan.knob_change_step):
        return
    version = plan.knobs_version(step)
    args = {"knobs_version": version, "fusion_bytes": plan.fusion_bytes // version, "cycle_time_ns": MILLISECOND}
    for rank, found in instants.items():
        found.append(Instant(words.KNOBS, "knobs", rank, at, args))


def clock_samples(plan: Schedule, rank: int, end: int) -> list[Instant]:
    """Samples at the start, in the middle and at the end; the offset is filled in when the part is written."""
    if rank == 0:
        return []
    error = plan.clocks.get(plan.host(rank), HostClock()).error_ns
    moments = (plan.start_ns, (plan.start_ns + end) // 2, end)
    return [Instant(words.CLOCK, "clock", rank, at, {"offset_ns": 0, "error_ns": error}) for at in moments]


def _truth(plan: Schedule, lengths: list[int], sums: tuple[dict[int, int], dict[int, int], dict[int, int]]) -> Truth:
    exposed, overlapped, waited = sums
    tensors, batches = len(plan.tensors) * plan.steps, len(plan.batches) * plan.steps
    late = plan.late_rank is not None and plan.late_ns > 0 and plan.ranks > 1
    return Truth(
        step_ns=tuple(lengths),
        exposed_ns=exposed,
        waited_late_ns={rank: _kept_waiting(plan, rank) * plan.steps for rank in range(plan.ranks)},
        overlapped_ns=overlapped,
        wait_ns=waited,
        communicate_ns=plan.communicate_ns * batches,
        copy_in_ns=plan.copy_ns * tensors,
        copy_out_ns=plan.copy_ns * tensors,
        bytes=sum(size for _, size in plan.tensors) * plan.steps,
        batches=batches,
        last={rank: tensors if late and rank == plan.late_rank else 0 for rank in range(plan.ranks)},
        late_ns=plan.late_ns if late else 0,
    )
