"""The searched space: which knobs the tuner may turn, and how far.

All dimensions are searched on a logarithmic scale: a factor of two matters as much at 64 KiB as at 64 MiB. (Horovod
searches raw megabytes and milliseconds, and its box does not hold its own default.) Knobs without a scale are switches,
tried one by one where they mean something. A knob that the user has set is left out and keeps its value.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ringtune.knobs import DEFAULTS, TABLE, Knobs, Row, Scale, Surroundings


@dataclass(frozen=True)
class Dimension(Scale):
    """One searched knob; Optuna's ``FloatDistribution(low, high, log=True)`` of whole numbers.

    Attributes:
        name: Field of `Knobs`, with its unit.
    """

    name: str
    low: int
    high: int
    grain: int

    def snap(self, value: float) -> int:
        """Return the nearest allowed value."""
        rounded = round(value / self.grain) * self.grain
        return min(max(rounded, self.low), self.high)

    def unit(self, value: float) -> float:
        """Map a value onto [0, 1] on the logarithmic scale; values outside the range are clamped."""
        clamped = min(max(value, self.low), self.high)
        return math.log(clamped / self.low) / math.log(self.high / self.low)

    def at(self, unit: float) -> int:
        """Return the allowed value at a place in [0, 1] of the logarithmic scale."""
        return self.snap(self.low * (self.high / self.low) ** unit)


SEARCHED = tuple(Dimension(name=row.name, **vars(row.scale)) for row in TABLE if row.scale is not None)
FUSION, CYCLE = SEARCHED[:2]
SWITCHES = tuple(row for row in TABLE if row.tried)
_ALONE = Surroundings()

# Places of the start points as (fusion, cycle) on the unit scales: one per corner of the plausible middle, short
# cycles first because long ones are seldom right and cost the most to try.
_START = ((0.66, 0.12), (0.45, 0.45), (0.82, 0.62), (0.25, 0.25))


@dataclass(frozen=True)
class Space:
    """The knobs that are searched, around the setting the job would run with otherwise.

    Attributes:
        default: The job's own setting (trial 0); gives the knobs that are not searched.
        dimensions: The searched knobs with a scale; empty when the user has fixed them all.
        switches: The searched knobs without one.
        place: Where the job runs.
        pinned: Settings that the user has fixed, in words.
    """

    default: Knobs = DEFAULTS
    dimensions: tuple[Dimension, ...] = SEARCHED
    switches: tuple[Row, ...] = ()
    place: Surroundings = _ALONE
    pinned: tuple[str, ...] = ()

    @classmethod
    def around(cls, default: Knobs, fixed: Collection[str] = (), place: Surroundings | None = None) -> Space:
        """Return the space without the knobs that the user has set.

        Args:
            default: The setting the job runs with when nothing is tuned.
            fixed: Names of knobs (fields of `Knobs`) that must keep the default's value.
            place: Where the job runs; None = only knobs with a scale are searched.
        """
        dimensions = tuple(dimension for dimension in SEARCHED if dimension.name not in fixed)
        if place is None:
            return cls(default, dimensions)
        return cls(default, dimensions, tuple(one for one in SWITCHES if one.name not in fixed), place)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the searched knobs, without switches that have no effect where the job runs."""
        either = (self.default, replace(self.default, step_schedule=0), replace(self.default, hierarchical=2))
        switches = (one.name for one in self.switches if any(one.fits(knobs, self.place) for knobs in either))
        return (*(dimension.name for dimension in self.dimensions), *switches)

    def alternatives(self, knobs: Knobs) -> list[Knobs]:
        """Return the settings that differ from one in a single switch that has an effect for it."""
        return [
            replace(knobs, **{switch.name: value})
            for switch in self.switches
            if switch.fits(knobs, self.place)
            for value in switch.tried
            if value != getattr(knobs, switch.name)
        ]

    def same_switches(self, a: Knobs, b: Knobs) -> bool:
        """Whether two settings differ at most in knobs with a scale."""
        scaled = {dimension.name: 0 for dimension in SEARCHED}
        return replace(a, **scaled) == replace(b, **scaled)

    def knobs(self, params: Mapping[str, float]) -> Knobs:
        """Return the setting for a suggestion: searched knobs from params (snapped), the rest from the default.

        Raises:
            KeyError: A searched knob is missing in params.
        """
        return replace(self.default, **{d.name: d.snap(params[d.name]) for d in self.dimensions})

    def params(self, knobs: Knobs) -> dict[str, int]:
        """Return the searched knobs of a setting, moved into the searched range where they lie outside it."""
        return {d.name: min(max(int(getattr(knobs, d.name)), d.low), d.high) for d in self.dimensions}

    def distance(self, a: Knobs, b: Knobs) -> float:
        """Distance of two settings on the unit scales, from 0 to sqrt(number of dimensions)."""
        return math.hypot(*(d.unit(getattr(a, d.name)) - d.unit(getattr(b, d.name)) for d in self.dimensions))

    def start_points(self) -> list[Knobs]:
        """Return the settings tried before the sampler has a model; without repetitions and without the default."""
        start = {d.name: d.unit(getattr(self.default, d.name)) for d in self.dimensions}
        places = [start | {FUSION.name: fusion, CYCLE.name: cycle} for fusion, cycle in _START]
        points = (self.knobs({d.name: d.at(at[d.name]) for d in self.dimensions}) for at in places)
        return distinct(self, points, apart=0.05, taken=[self.default]) if self.dimensions else []


def distinct(space: Space, settings: Iterable[Knobs], *, apart: float, taken: Sequence[Knobs] = ()) -> list[Knobs]:
    """Return the settings, in order, that lie at least apart (unit scale) from those kept before and from taken."""
    kept: list[Knobs] = []
    for knobs in settings:
        others = [other for other in (*taken, *kept) if space.same_switches(knobs, other)]
        if all(space.distance(knobs, other) >= apart for other in others):
            kept.append(knobs)
    return kept
