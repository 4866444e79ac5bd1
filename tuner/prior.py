"""The cost model's order of settings: the points that a search begins with.

A model is wrong in its level and often right in its order, so its step times are never mixed with measured ones: it
only says which settings are worth trying first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from ringtune.knobs import Knobs
from ringtune.tuner.space import Space, distinct

Prior = Callable[[Knobs], float]
"""Expected step time of a setting; any unit."""

_PLACES = 17
_APART = 0.2
_WORTH, _ALIKE = 0.005, 0.002


def first_points(space: Space, prior: Prior, count: int) -> list[Knobs]:
    """Return the settings that a model ranks before the default, best first.

    Args:
        space: What is searched.
        prior: The model.
        count: How many at most.
    """
    limit = prior(space.default) * (1.0 - _WORTH)
    guesses = [(prior(knobs), knobs) for knobs in _grid(space)]
    better = [(expected, knobs) for expected, knobs in guesses if expected < limit]
    if not better:
        return []
    # Of settings with equal predictions, the one that changes least comes first.
    least = min(expected for expected, _ in better)
    better.sort(key=lambda pair: (round((pair[0] / least - 1.0) / _ALIKE), space.distance(pair[1], space.default)))
    return distinct(space, (knobs for _, knobs in better), apart=_APART, taken=[space.default])[:count]


def _grid(space: Space) -> Iterator[Knobs]:
    """Settings evenly over the scales."""
    places = [place / (_PLACES - 1) for place in range(_PLACES)]
    for units in product(places, repeat=len(space.dimensions)):
        values = {d.name: d.at(unit) for d, unit in zip(space.dimensions, units, strict=True)}
        yield replace(space.default, **values)


def learned(trace: Path, hosts: Sequence[str]) -> Prior:
    """Return the model of a job, calibrated by the timeline of some of its steps.

    Args:
        trace: A rank's part of a timeline.
        hosts: Host of every rank of the job; the part knows its own only.

    Raises:
        RingtuneError: The timeline has no steps to learn from.
    """
    # Here, because the training process imports this module too, and scipy costs it a second.
    from ringtune.timeline import load
    from ringtune.tuner.model.calibrate import fit
    from ringtune.tuner.model.measured import measure
    from ringtune.tuner.model.replay import play

    work, cluster = fit(replace(measure(load(trace)), hosts=tuple(hosts)), "job")
    return lambda knobs: play(work, cluster, knobs).length_ns
