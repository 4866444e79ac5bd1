"""When a rank was late: always, in stretches of steps, or in single stalls; and whether noise explains it.

Notation: n steps in order, x_s >= 0 the lateness of one rank in step s (0 where it was not last), y_s that of whichever
rank was last. Two things show a pattern that noise does not:

* Size: a lateness above four times what the largest of n draws would be had the noise an exponential tail through its
  median and its 90th percentile (`_fence`). Noise are the steps in which other ranks were last.
* Number: in a stretch, the rank was last too often for one of R equal ranks (binomial), or too often late by much
  compared with all steps outside of it; corrected for all n (n + 1) / 2 stretches that might have been looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ringtune.timeline.analysis.lateness import Late
from ringtune.timeline.analysis.significance import Floats, binomial_tail
from ringtune.timeline.spans import Ints, Mask

SURE = 0.01
"""Below this p-value the number of steps in which a rank was late is no noise."""
MATERIAL = 0.01
"""The share of the job, or of a step, below which lateness accuses nobody."""
ALWAYS, OFTEN, STRETCHES, STALLS, PAUSES = "always", "often", "steps", "stalls", "pauses"
_ALWAYS_SHARE = 0.8
_MOST_STRETCHES = 4
"""More stretches than this are called often."""
_BEYOND, _FEW = 4.0, 4.0
_SLIGHT = 0.1
"""A step in which the rank was late by less than this share of the usual does not count as late."""
_FAR_LESS = 0.1
"""Outside of its stretches a rank that is late by less than this share of what it is inside is late in another way."""
_SWITCH = 2.0
"""What a stretch has to gain: four steps in a row that are late in full."""


@dataclass(frozen=True)
class Pattern:
    """A rank's late steps of one kind: their rows in `Late`, and first and last row of each stretch."""

    kind: str
    rows: Ints
    stretches: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Job:
    """What lateness is weighed against: the job's length, the median step's, and the number of ranks."""

    length_ns: int
    step_ns: float
    ranks: int


def patterns(late: Late, column: int, significance: float, job: Job) -> list[Pattern]:
    """Return when a rank (its column) was late, as far as that is no noise and costs at least `MATERIAL` of the job.

    Args:
        late: The last rank of every step, by one cause; steps in order.
        column: The rank.
        significance: p-value of how often this rank was last in all steps.
        job: See `Job`.
    """
    own = np.where(late.column == column, late.lateness, 0).astype(np.float64)
    least_ns = MATERIAL * job.length_ns
    if own.sum() < least_ns:
        return []
    fence, n = _noise_fence(late, column, job), len(own)
    usual = _usual(np.minimum(own, fence))
    steady, rest = _steady(late, own, usual, significance if _late_beside_stalls(own, fence, job) else 1.0, job)
    inside = own[steady & (own > 0)]
    # What a rank is late anyway is no stall of its.
    stalls = own > np.where(steady, max(fence, _fence(inside, n)) if len(inside) else fence, fence)
    found = _of_size(own, stalls) + _of_number(own, steady & ~stalls & (own >= _SLIGHT * usual), steady)
    if rest.any():
        rows = np.flatnonzero(rest & ~stalls & (own >= _SLIGHT * _usual(own * rest)))
        found.append(Pattern(OFTEN, rows, ()))
    return [one for one in found if own[one.rows].sum() >= least_ns]


def _late_beside_stalls(own: Floats, fence: float, job: Job) -> bool:
    """Whether lateness weighs without the stalls: where these are few, being last in other steps may cost nothing."""
    stalls = own > fence
    rest = own[~stalls].sum() if stalls.sum() <= _most_stalls(own) else own.sum()
    return bool(rest / len(own) >= MATERIAL * job.step_ns)


def _most_stalls(own: Floats) -> float:
    """Return how many steps may be listed one by one."""
    return max(_MOST_STRETCHES, 0.1 * len(own))


def _usual(own: Floats) -> float:
    """Return the lateness that half of the cost is above and half below."""
    ordered = np.sort(own)
    return float(ordered[np.searchsorted(np.cumsum(ordered), ordered.sum() / 2)])


def _steady(late: Late, own: Floats, usual: float, significance: float, job: Job) -> tuple[Mask, Mask]:
    """Steps of the stretches (or all) in which the rank was late too often for noise; and all others where it was too.

    The others are a pattern of their own where the rank was late by far less in them than in the stretches.
    """
    everything, decided = np.ones(len(own), dtype=np.bool_), late.column >= 0
    found, none = np.zeros(len(own), dtype=np.bool_), np.zeros(len(own), dtype=np.bool_)
    for first, end in _stretches(np.minimum(own, usual) / usual):
        inside = slice(first, end)
        if own[inside].mean() >= MATERIAL * job.step_ns and _p_of_stretch(late, own, (first, end)) < SURE:
            found[inside] = True
    often = significance < SURE
    others = (late.lateness[decided].sum() - own.sum()) / max(1, job.ranks - 1)
    if not often or own.sum() - others < MATERIAL * job.length_ns:
        return found, none
    rest = decided & ~found
    hits = int((own[rest] > 0).sum())
    runs = len(_runs(found))
    many = runs > _MOST_STRETCHES or (runs > 1 and found.mean() >= _ALWAYS_SHARE)
    if not many and binomial_tail(hits, int(rest.sum()), _chance(late, rest)) >= SURE:
        return found, none
    if not many and runs and own[~found].mean() < _FAR_LESS * own[found].mean():
        return found, rest
    return everything, none


def _chance(late: Late, rows: Mask) -> float:
    """Return how likely one of equal ranks is last in these steps, at most: it may be in fewer of their groups."""
    return float(late.probability[rows].mean()) if rows.any() else 1.0


def _p_of_stretch(late: Late, own: Floats, stretch: tuple[int, int]) -> float:
    """p-value of a rank being late that often, or that much, in a stretch [first, end)."""
    inside = np.zeros(len(own), dtype=np.bool_)
    inside[slice(*stretch)] = True
    decided = late.column >= 0
    draws = int((inside & decided).sum())
    by_number = binomial_tail(int((own[inside] > 0).sum()), draws, _chance(late, inside & decided))
    much = float(np.median(own[inside])) / 2
    known = decided | (0 < late.unsure_ns < much)
    outside = int((known & ~inside).sum())
    usual = (int((late.lateness[known & ~inside] >= much).sum()) + 1) / (outside + 1)
    by_size = binomial_tail(int((own[inside] >= much).sum()), int((inside & known).sum()), usual)
    return 2 * min(by_number, by_size) * len(own) * (len(own) + 1) / 2


def _noise_fence(late: Late, column: int, job: Job) -> float:
    """Return the lateness beyond the noise that the other ranks show."""
    others = late.lateness[(late.column >= 0) & (late.column != column)]
    if len(others) < 3:
        others = late.lateness[late.column >= 0]
    # Ten times the step is a stall whatever the noise; a tenth of a step is none.
    fence = min(_fence(others.astype(np.float64), len(late.steps)), 10 * job.step_ns)
    return float(max(0.1 * job.step_ns, fence))


def _fence(noise: Floats, n: int) -> float:
    """Four times the largest of n draws, had the noise an exponential tail beyond its median; more for few samples."""
    middle, high = np.percentile(noise, [50, 90])
    largest = middle + (high - middle) * max(1.0, np.log(max(2, n) / 2) / np.log(5))
    return float(_BEYOND * (1 + _FEW / len(noise)) * largest)


def _of_size(own: Floats, stalls: Mask) -> list[Pattern]:
    """Stalls in a row are a stretch, single ones are stalls, very many are ``often``."""
    found, alone = [], stalls.copy()
    runs = _stretches(stalls.astype(np.float64))
    if runs and len(runs) <= _MOST_STRETCHES:
        inside = np.zeros(len(own), dtype=np.bool_)
        for first, end in runs:
            inside[first:end] = True
        found += _of_number(own, inside & (own >= _SLIGHT * _usual(own * inside)), inside)
        alone &= ~inside
    rows = np.flatnonzero(alone)
    if len(rows) > _most_stalls(own):
        found.append(Pattern(OFTEN, rows, ()))
    elif len(rows):
        found.append(Pattern(STALLS, rows, tuple((row, row) for row in rows.tolist())))
    return found


def _of_number(own: Floats, late: Mask, covered: Mask) -> list[Pattern]:
    if not late.any():
        return []
    rows = np.flatnonzero(late)
    if covered.mean() > 0.95:
        return [Pattern(ALWAYS if len(rows) >= _ALWAYS_SHARE * len(own) else OFTEN, rows, ())]
    return [Pattern(STRETCHES, rows, tuple((first, end - 1) for first, end in _runs(covered)))]


def _runs(mask: Mask) -> list[tuple[int, int]]:
    """Return the runs [first, end) of true rows."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], mask.astype(np.int8), [0]))))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _stretches(weight: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Return the stretches [first, end) in which most steps weigh much: the best cut into stretches and gaps.

    A step gains its weight (0 to 1) less a half inside of a stretch, and nothing outside; each stretch costs `_SWITCH`.
    Source: the Viterbi algorithm for two states (G. D. Forney, Proc. IEEE 61 (1973)).
    """
    outside, inside = 0.0, -np.inf
    began, ended = np.zeros(len(weight), dtype=np.bool_), np.zeros(len(weight), dtype=np.bool_)
    for row, gain in enumerate((weight - 0.5).tolist()):
        began[row], ended[row] = outside - _SWITCH > inside, inside > outside
        outside, inside = max(outside, inside), max(inside, outside - _SWITCH) + gain
    found, end, within = [], len(weight), inside > outside
    for row in range(len(weight) - 1, -1, -1):
        if not within and ended[row]:  # this row is outside, the one before it inside
            within, end = True, row
        elif within and began[row]:
            found.append((row, end))
            within = False
    return found[::-1]
