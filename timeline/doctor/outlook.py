"""What a change of the job would give: the seam to the model, which lies in a layer above."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ringtune.timeline.runs.records import Estimate
from ringtune.timeline.spans import Trace
from ringtune.timeline.units import times_in_one_unit


@dataclass(frozen=True)
class Prospect:
    """A change of the job, and what a step would take then: ns, with a 95 % interval."""

    change: str
    step_ns: Estimate

    def text(self) -> str:
        """Return the length with its interval, for example ``11.7 [10.6, 12.8] ms``."""
        (value, low, high), unit = times_in_one_unit(self.step_ns.median, self.step_ns.low, self.step_ns.high)
        return f"{value} [{low}, {high}] {unit}"


@dataclass(frozen=True)
class Outlook:
    """Predictions for one job.

    Attributes:
        prospects: The job as it is, then what may be changed; empty where nothing can be predicted.
        notes: Sentences: what was assumed, or why nothing is predicted.
    """

    prospects: tuple[Prospect, ...]
    notes: tuple[str, ...]


Foresee = Callable[[Trace, str], Outlook]
"""Predicts for a trace and the name of its job.

Raises:
    RingtuneError: The model cannot be fitted to the trace, or is not installed.
"""
