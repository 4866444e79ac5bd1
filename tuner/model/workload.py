"""What one rank does in a training step, without any communication."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ringtune.errors import UsageError
from ringtune.tuner.model.spread import expected_maximum

BACKWARD_SHARE = 2.0 / 3.0
"""Of a step's computing; backward costs about twice the forward pass (Kaplan et al. 2020, section 2.1)."""


@dataclass(frozen=True)
class Gradient:
    """A tensor to reduce: its size and when it is ready, in ns after the step began."""

    bytes: int
    ready_ns: float
    name: str = ""


@dataclass(frozen=True)
class Workload:
    """A rank's step without any wait for other ranks.

    Attributes:
        name: For tables.
        gradients: In the order in which backward produces them.
        backward_end_ns: When backward is over and the rank begins to wait for its gradients.
        after_ns: Computing after that (the optimizer).
        jitter: Standard deviation of a rank's computing from step to step, as a share of it.
        skew: How much longer the slowest rank computes than an average one, always, as a share of it.
    """

    name: str
    gradients: tuple[Gradient, ...]
    backward_end_ns: float
    after_ns: float = 0.0
    jitter: float = 0.0
    skew: float = 0.0

    def __post_init__(self) -> None:
        """Check the terms.

        Raises:
            UsageError: No gradients, a negative size or time, or a gradient after the end of backward.
        """
        if not self.gradients:
            raise UsageError(f"{self.name}: no gradients, so there is no communication to predict")
        times = [gradient.ready_ns for gradient in self.gradients]
        if min(times) < 0 or max(times) > self.backward_end_ns or min(self.after_ns, self.jitter, self.skew) < 0:
            raise UsageError(f"{self.name}: its times are negative, or a gradient is ready after backward's end")
        if min(gradient.bytes for gradient in self.gradients) <= 0:
            raise UsageError(f"{self.name}: a gradient without bytes")

    @property
    def compute_ns(self) -> float:
        """Length of the step on one rank."""
        return self.backward_end_ns + self.after_ns

    @property
    def bytes(self) -> int:
        """Bytes of all gradients."""
        return sum(gradient.bytes for gradient in self.gradients)

    def late(self, ranks: int) -> float:
        """How far the slowest of so many ranks is behind an average one, as a share of its computing."""
        return math.hypot(self.skew, self.jitter * expected_maximum(ranks)) if ranks > 1 else 0.0

    def lasting(self, compute_ns: float) -> Workload:
        """The same step on a machine that computes it in this time."""
        factor = compute_ns / self.compute_ns
        gradients = tuple(Gradient(one.bytes, one.ready_ns * factor, one.name) for one in self.gradients)
        return replace(
            self,
            gradients=gradients,
            backward_end_ns=self.backward_end_ns * factor,
            after_ns=self.after_ns * factor,
        )

    def narrowed(self, factor: float) -> Workload:
        """The same step with gradients of this share of the bytes (compression on the wire)."""
        if factor == 1.0:
            return self
        gradients = tuple(Gradient(max(1, round(one.bytes * factor)), one.ready_ns, one.name) for one in self.gradients)
        return replace(self, gradients=gradients)


def from_profile(text: str, name: str, step_ns: float | None = None) -> Workload:
    """Return the workload of a recorded backward profile.

    Args:
        text: Three header lines (comment, batches, tensors), then ``microseconds since the last gradient,bytes``.
        name: For messages and tables.
        step_ns: Computing time of a whole step; default: backward is two thirds of it.

    Raises:
        UsageError: It is no such profile, or its backward pass lasts longer than the step.
    """
    rows = [
        _row(line, f"{name}: line {number}") for number, line in enumerate(text.splitlines()[3:], 4) if line.strip()
    ]
    if not rows:
        raise UsageError(f"{name}: no gradients in this profile")
    backward_ns = sum(wait for wait, _ in rows)
    whole_ns = step_ns if step_ns is not None else backward_ns / BACKWARD_SHARE
    if whole_ns < backward_ns:
        raise UsageError(
            f"{name}: its backward pass lasts {backward_ns / 1e6:.1f} ms, more than the step of {whole_ns / 1e6:.1f} ms"
        )
    at, gradients = whole_ns - backward_ns, []
    for wait, size in rows:
        at += wait
        gradients.append(Gradient(size, min(at, whole_ns)))
    return Workload(name, tuple(gradients), whole_ns)


def evenly(sizes: Sequence[int], step_ns: float, name: str) -> Workload:
    """Gradients of which only the sizes are known, in the order of backward: ready at even distances in backward."""
    begin = step_ns * (1.0 - BACKWARD_SHARE)
    gap = (step_ns - begin) / max(len(sizes), 1)
    gradients = tuple(Gradient(size, begin + gap * (index + 1)) for index, size in enumerate(sizes))
    last = max((gradient.ready_ns for gradient in gradients), default=step_ns)
    return Workload(name, gradients, max(step_ns, last))


def _row(line: str, where: str) -> tuple[float, int]:
    try:
        wait, size = line.split(",")
        row = float(wait) * 1e3, int(size)
    except ValueError:
        raise UsageError(f"{where}: expected 'microseconds,bytes', got {line!r:.60}") from None
    if not math.isfinite(row[0]) or row[0] < 0 or row[1] <= 0:
        raise UsageError(f"{where}: expected a time >= 0 and a size > 0, got {line!r:.60}")
    return row
