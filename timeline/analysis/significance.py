"""Significance tests: the few that the analyses need, exact or by resampling, in numpy alone.

Notation: n draws, k hits, p the probability of a hit. Random functions take a seed and give equal results for
equal data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from ringtune.timeline.spans import Ints

Floats = NDArray[np.float64]

PERMUTATIONS = 4_999
RESAMPLES = 2_000
LARGEST_SAMPLE = 4_000
"""Larger samples are thinned evenly before resampling: intervals become a little wide, never too narrow."""


def binomial_tail(hits: int, draws: int, probability: float) -> float:
    """Return P(X >= hits) for X ~ Binomial(draws, probability), exactly up to rounding."""
    if hits <= 0:
        return 1.0
    if hits > draws or probability <= 0:
        return 0.0
    if probability >= 1:
        return 1.0
    logs = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, draws + 1, dtype=np.float64)))))
    k = np.arange(hits, draws + 1)
    terms = logs[draws] - logs[k] - logs[draws - k] + k * math.log(probability) + (draws - k) * math.log1p(-probability)
    peak = float(terms.max())
    return min(1.0, math.exp(peak) * float(np.exp(terms - peak).sum()))


def holm(values: Sequence[float]) -> list[float]:
    """Correct p-values for having made several tests.

    Source: S. Holm, "A simple sequentially rejective multiple test procedure", Scand. J. Statist. 6 (1979).
    """
    order = sorted(range(len(values)), key=lambda place: values[place])
    corrected, worst = [0.0] * len(values), 0.0
    for number, place in enumerate(order):
        worst = max(worst, min(1.0, (len(values) - number) * values[place]))
        corrected[place] = worst
    return corrected


def permutation_test(
    last: Ints, lateness: Floats, ranks: int, seed: int = 0, permutations: int = PERMUTATIONS
) -> float:
    """Test whether lateness sticks to a rank.

    The statistic is the largest sum of a rank's lateness; under the null hypothesis the ranks of a round are
    exchangeable: any of them may have been the last one.

    Args:
        last: The last rank (from 0) of every round (step); rounds are independent.
        lateness: By how much it was late.
        ranks: How many ranks there are.
        seed: Of the permutations.
        permutations: How many are drawn.

    Returns:
        The share of permutations at least as extreme, the observed one included.
    """
    last, lateness = thinned(last), thinned(lateness)
    observed = float(np.bincount(last, weights=lateness).max())
    random = np.random.default_rng(seed)
    hits = 0
    for _ in range(permutations):
        other = random.integers(ranks, size=len(lateness))
        hits += float(np.bincount(other, weights=lateness).max()) >= observed * (1 - 1e-12)
    return (hits + 1) / (permutations + 1)


Values = TypeVar("Values", bound=NDArray[Any])


def thinned(values: Values, largest: int = LARGEST_SAMPLE) -> Values:
    """Return at most so many rows, evenly spread."""
    if len(values) <= largest:
        return values
    found: Any = values[np.linspace(0, len(values) - 1, largest).astype(np.int64)]
    return cast(Values, found)


def mann_whitney(first: Floats, second: Floats) -> float:
    """Two-sided p-value that one sample tends to be larger; normal approximation with ties and continuity.

    Source: H. B. Mann, D. R. Whitney, Ann. Math. Statist. 18 (1947).
    """
    n, m = len(first), len(second)
    if not n or not m:
        return 1.0
    values, place, counts = np.unique(np.concatenate((first, second)), return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    u = float(ranks[place[:n]].sum()) - n * (n + 1) / 2
    total = n + m
    ties = float((counts.astype(np.float64) ** 3 - counts).sum())
    variance = n * m / 12 * (total + 1 - ties / (total * (total - 1)))
    if len(values) < 2 or variance <= 0:
        return 1.0
    z = max(0.0, abs(u - n * m / 2) - 0.5) / math.sqrt(variance)
    return math.erfc(z / math.sqrt(2))


def bootstrap_difference(
    first: Floats, second: Floats, seed: int = 0, level: float = 0.95
) -> tuple[float, float, float]:
    """Return (difference, low, high) of the means, second minus first; percentile bootstrap interval.

    Source: B. Efron, R. Tibshirani, "An Introduction to the Bootstrap", ch. 13 (1993).
    """
    first, second = thinned(first), thinned(second)
    random = np.random.default_rng(seed)
    differences = _resampled_means(second, random) - _resampled_means(first, random)
    low, high = np.quantile(differences, [(1 - level) / 2, (1 + level) / 2])
    return float(second.mean() - first.mean()), float(low), float(high)


def _resampled_means(values: Floats, random: np.random.Generator) -> Floats:
    """Means of resamples; in pieces, so that memory stays small."""
    means = np.empty(RESAMPLES)
    piece = max(1, 2_000_000 // max(1, len(values)))
    for start in range(0, RESAMPLES, piece):
        count = min(piece, RESAMPLES - start)
        means[start : start + count] = values[random.integers(0, len(values), (count, len(values)))].mean(axis=1)
    return means
