"""What if: named changes of a calibrated job, and what each would give, with intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ringtune.errors import UsageError
from ringtune.knobs import Knobs
from ringtune.tuner.model.assumed import ERROR, unmeasured
from ringtune.tuner.model.calibrate import Model
from ringtune.tuner.model.cluster import Cluster
from ringtune.tuner.model.replay import Conditions, Step, play
from ringtune.tuner.model.spread import NORMAL_95
from ringtune.tuner.model.workload import Workload

MOST_RANKS = 10_000

WIRE = {"none": 1.0, "fp16": 0.5, "bf16": 0.5}
"""Share of float32's bytes on the wire, by compression."""


@dataclass(frozen=True)
class Change:
    """How a question differs from the job as it ran; None: unchanged.

    Attributes:
        label: For tables.
        ranks: Of the job.
        slots: Ranks of a host.
        bandwidth: Between hosts, in bytes/s.
        latency_ns: Between hosts.
        network: Factor on the bandwidth of the job's widest links.
        straggler: The slowest rank computes so many times as long.
        even: No rank is later than an average one, `straggler` or not.
        overlap: Communication is hidden behind computing as if it cost nothing there.
        compression: A key of `WIRE`.
        algorithm: Between hosts.
        compute: Factor on the speed of computing.
        cores: That all ranks share, where all hosts are parts of one machine.
        knobs: Changed knobs by name.
    """

    label: str
    ranks: int | None = None
    slots: int | None = None
    bandwidth: float | None = None
    latency_ns: float | None = None
    network: float = 1.0
    straggler: float = 1.0
    even: bool = False
    overlap: bool = False
    compression: str = "none"
    algorithm: str | None = None
    compute: float = 1.0
    cores: int | None = None
    knobs: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            UsageError: A value that no job has.
        """
        if self.ranks is not None and not 1 <= self.ranks <= MOST_RANKS:
            raise UsageError(f"{self.ranks} ranks: expected 1 to {MOST_RANKS}")
        if self.compression not in WIRE:
            raise UsageError(f"no compression {self.compression!r}: expected one of {', '.join(WIRE)}")
        if self.straggler < 1.0 or not self.network > 0 or not self.compute > 0:
            raise UsageError("a straggler is a factor of at least 1, and speeds are factors above 0")


def percents(*shares: float) -> tuple[list[str], str]:
    """Return shares of one as per cent, and the sign: for `Value.text`."""
    return [f"{100 * share:.1f}" for share in shares], "%"


@dataclass(frozen=True)
class Value:
    """A prediction and its 95 % interval, from the uncertainty of the measurement and the model's own error."""

    value: float
    low: float
    high: float

    def as_dict(self) -> dict[str, float]:
        """Return it for JSON."""
        return {"value": self.value, "low": self.low, "high": self.high}

    def text(self, texts: Callable[..., tuple[list[str], str]]) -> str:
        """Return it in words, for example ``11.7 [10.6, 12.8] ms``; without an interval that has no length.

        A part of a step whose interval reaches down to nothing cannot be told from none, and is as good as any below
        the interval's end: only that is said, as in ``at most 3.8 ms``.

        Args:
            texts: Returns the texts of several numbers, and the unit of all.
        """
        if self.low == 0.0 < self.high:
            (high,), unit = texts(self.high)
            return f"at most {high} {unit}"
        (middle, low, high), unit = texts(self.value, self.low, self.high)
        return f"{middle} {unit}" if self.low == self.high else f"{middle} [{low}, {high}] {unit}"


@dataclass(frozen=True)
class Answer:
    """The predicted step, and the step as played.

    Attributes:
        change: What was asked.
        ranks, hosts: Of the job then.
        step_ns: Length.
        efficiency: Rate per rank against a rank alone.
        exposed_ns: What of it is exposed communication.
        late_ns: What of it is waiting for a late rank.
        step: As played.
        lengths_ns: Of the step as played with all that was measured, then with each resample of it.
        error: The model's own, as a share of the step: a standard deviation.
    """

    change: Change
    ranks: int
    hosts: int
    step_ns: Value
    efficiency: Value
    exposed_ns: Value
    late_ns: Value
    step: Step
    lengths_ns: tuple[float, ...]
    error: float

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON; times in ns."""
        return {
            "label": self.change.label,
            "ranks": self.ranks,
            "hosts": self.hosts,
            "step_ns": self.step_ns.as_dict(),
            "efficiency": self.efficiency.as_dict(),
            "compute_ns": self.step.compute_ns,
            "exposed_ns": self.exposed_ns.as_dict(),
            "late_ns": self.late_ns.as_dict(),
            "contention_ns": self.step.contention_ns,
            "communicate_ns": self.step.communicate_ns,
            "batches": len(self.step.batches),
        }


def ask(model: Model, change: Change) -> Answer:
    """Predict a step of `model`'s job under `change`."""
    knobs = Knobs.from_dict(change.knobs, base=model.knobs)
    conditions = Conditions(straggler=1.0 if change.even else change.straggler, hidden=change.overlap)
    pairs = [(model.work, model.cluster), *model.draws]
    changed = [(_work(work, change), _cluster(cluster, change)) for work, cluster in pairs]
    steps = [play(work, cluster, knobs, conditions) for work, cluster in changed]
    first, cluster = steps[0], changed[0][1]
    error = model.error if cluster.ranks > 1 else 0.0  # a rank alone only computes, which was measured
    if unmeasured(model, cluster):
        error = math.hypot(error, ERROR)
    length = _value([step.length_ns for step in steps], error * first.length_ns)
    efficiency = _value([step.efficiency for step in steps], error * first.efficiency)
    # The error of the step may lie in either part, unless the question itself says that there is none.
    exposed = _value([step.waiting_ns for step in steps], 0.0 if change.overlap else error * first.length_ns)
    late = _value([step.late_ns for step in steps], 0.0 if change.even else error * first.length_ns)
    # The model's error takes no step below its computing.
    length = replace(length, low=max(length.low, min(first.compute_ns, length.value)))
    efficiency = replace(efficiency, high=min(efficiency.high, max(1.0, efficiency.value)))
    return Answer(
        change,
        cluster.ranks,
        cluster.hosts,
        length,
        efficiency,
        replace(exposed, low=max(exposed.low, 0.0)),
        replace(late, low=max(late.low, 0.0)),
        first,
        tuple(step.length_ns for step in steps),
        error,
    )


def ratio(before: Answer, after: Answer) -> Value:
    """Return how long a step of one answer is beside that of another of the same model; below 1 it is shorter.

    Resamples are compared in pairs, for what one shows of the job holds for both steps. The model's error counts once,
    as of a predicted step beside a known one: both are of one job, so their errors are neither equal nor independent.
    A step that is the same in all resamples has none.
    """
    if before.lengths_ns == after.lengths_ns:
        return Value(1.0, 1.0, 1.0)
    pairs = zip(before.lengths_ns, after.lengths_ns, strict=True)
    ratios = [later / earlier if earlier else 1.0 for earlier, later in pairs]  # steps of no length are equal
    error = math.hypot(before.error, after.error) / math.sqrt(2)
    found = _value(ratios, error * ratios[0])
    least = after.step.compute_ns / before.lengths_ns[0] if before.lengths_ns[0] else 1.0
    return replace(found, low=max(found.low, min(least, found.value)))


def built_in(ranks: int) -> list[Change]:
    """The usual questions, at so many ranks."""
    return [
        Change("as it is", ranks=ranks),
        Change("network twice as fast", ranks=ranks, network=2.0),
        Change("no straggler", ranks=ranks, even=True),
        Change("perfect overlap", ranks=ranks, overlap=True),
        Change("bf16 on the wire", ranks=ranks, compression="bf16"),
        Change("fusion buffer 64 MiB", ranks=ranks, knobs={"fusion_bytes": 64 << 20}),
        Change("fusion buffer 1 MiB", ranks=ranks, knobs={"fusion_bytes": 1 << 20}),
    ]


def _work(work: Workload, change: Change) -> Workload:
    if change.even:
        work = replace(work, jitter=0.0, skew=0.0)
    if change.compute != 1.0:
        work = work.lasting(work.compute_ns / change.compute)
    return work.narrowed(WIRE[change.compression])


def _cluster(cluster: Cluster, change: Change) -> Cluster:
    network, memory = cluster.network, cluster.memory
    network = replace(
        network,
        latency_ns=network.latency_ns if change.latency_ns is None else change.latency_ns,
        bytes_per_s=network.bytes_per_s if change.bandwidth is None else change.bandwidth,
    )
    ranks = change.ranks or cluster.ranks
    slots = change.slots or cluster.slots
    if ranks <= slots:
        memory = memory.faster(change.network)
    return replace(
        cluster,
        ranks=ranks,
        slots=slots,
        memory=memory,
        network=network.faster(change.network),
        algorithm=change.algorithm or cluster.algorithm,
        cores=change.cores or cluster.cores,
    )


def _value(values: Sequence[float], error: float) -> Value:
    """The first value, with the quantiles of all and, independent of these, the model's own error, in its unit."""
    value = values[0]
    low, high = np.quantile(values, (0.025, 0.975)) if len(values) > 1 else (value, value)
    own = NORMAL_95 * error
    below, above = max(value - float(low), 0.0), max(float(high) - value, 0.0)
    return Value(value, value - math.hypot(below, own), value + math.hypot(above, own))
