"""Knobs: the settings of the native runtime that may change while training runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ringtune.algorithms import ALGORITHMS, SWITCH
from ringtune.errors import InvalidArgument
from ringtune.layout import current_keys

HIGHEST = {"algorithm": len(ALGORITHMS) - 1, "hierarchical": len(SWITCH) - 1, "step_schedule": 1, "nccl_streams": 8}
_LOW = {"segment_bytes": 1, "nccl_streams": 1}


@dataclass(frozen=True)
class Knobs:
    """One setting of the runtime; all ranks carry the same one, numbered by its version.

    Attributes:
        fusion_bytes: Most bytes reduced as one batch, in bytes; 0 switches fusion off.
        cycle_time_ns: How long an incomplete batch may wait for more tensors, in nanoseconds; 0 = not at all.
        segment_bytes: Size of one send inside a collective, in bytes; at least 1.
        cache_capacity: Operations remembered by the response cache; 0 switches it off.
        algorithm: Index in `ringtune.algorithms.ALGORITHMS`; 0 = as the job's table says.
        hierarchical: Reduce within hosts before across them: index in `ringtune.algorithms.SWITCH`; 0 = auto.
        step_schedule: 1: repeated steps follow a learned schedule without control messages; 0: every step is
            negotiated.
        nccl_streams: Streams of a GPU that batches by NCCL are dealt to; from 1 to 8.
    """

    fusion_bytes: int = 16 << 20
    cycle_time_ns: int = 1_000_000
    segment_bytes: int = 128 << 10
    cache_capacity: int = 8192
    algorithm: int = 0
    hierarchical: int = 0
    step_schedule: int = 1
    nccl_streams: int = 1

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            InvalidArgument: A value is out of its range.
        """
        for name in self.as_dict():
            value, low, high = getattr(self, name), _LOW.get(name, 0), HIGHEST.get(name)
            if not isinstance(value, int) or value < low or (high is not None and value > high):
                bound = f">= {low}" if high is None else f"from {low} to {high}"
                raise InvalidArgument(f"knob {name}: got {value!r}, expected an integer {bound}")

    def as_dict(self) -> dict[str, int]:
        """Return the knobs as the native runtime and the run folder's documents hold them."""
        return dict(vars(self))

    @classmethod
    def from_dict(cls, values: Mapping[str, int], base: Knobs | None = None) -> Knobs:
        """Build knobs from a mapping; names that are no knobs (for example ``knobs_version``) are ignored.

        Old names (`ringtune.layout.OLD_KEYS`) are taken too.

        Args:
            values: Values by name, possibly only some of the knobs.
            base: Where missing values come from; default: `DEFAULTS`.
        """
        known = (base if base is not None else DEFAULTS).as_dict()
        known.update({name: int(value) for name, value in current_keys(values).items() if name in known})
        return cls(**known)


DEFAULTS = Knobs()
