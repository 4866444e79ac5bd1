"""The tests of probability against scipy's, which ringtune does not need."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from ringtune.timeline.analysis.significance import (
    binomial_tail,
    bootstrap_difference,
    holm,
    mann_whitney,
    permutation_test,
)


@pytest.mark.parametrize(
    ("hits", "draws", "probability"), [(0, 5, 0.25), (5, 5, 0.25), (12, 40, 0.25), (700, 2000, 1 / 3)]
)
def test_binomial_tail(hits: int, draws: int, probability: float) -> None:
    expected = stats.binomtest(hits, draws, probability, alternative="greater").pvalue
    assert binomial_tail(hits, draws, probability) == pytest.approx(expected, rel=1e-9)


def test_binomial_tail_at_its_ends() -> None:
    assert binomial_tail(1, 0, 0.5) == 0.0
    assert binomial_tail(3, 5, 1.0) == 1.0
    assert binomial_tail(3, 5, 0.0) == 0.0


def test_holm_is_monotone_and_never_above_one() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize("seed", range(4))
def test_mann_whitney_with_and_without_ties(seed: int) -> None:
    random = np.random.default_rng(seed)
    first, second = random.integers(0, 20, 50).astype(float), random.integers(seed, 20 + seed, 60).astype(float)
    expected = stats.mannwhitneyu(first, second, method="asymptotic").pvalue
    assert mann_whitney(first, second) == pytest.approx(expected, rel=1e-9)
    assert mann_whitney(first, first) == pytest.approx(1.0)
    assert mann_whitney(np.ones(5), np.ones(5)) == 1.0


def test_permutations_tell_a_rank_from_chance() -> None:
    random = np.random.default_rng(1)
    assert permutation_test(random.integers(0, 4, 60), np.ones(60), 4) > 0.01
    assert permutation_test(np.full(60, 2), np.ones(60), 4) == pytest.approx(1 / 5000)
    # Few long ones of one rank among many short ones of all.
    last, lateness = random.integers(0, 4, 60), np.ones(60)
    last[:6], lateness[:6] = 1, 100.0
    assert permutation_test(last, lateness, 4) < 0.01


def test_bootstrap_intervals_hold_the_truth_as_often_as_they_say() -> None:
    random = np.random.default_rng(2)
    held = 0
    for seed in range(200):
        difference, low, high = bootstrap_difference(random.normal(0, 1, 40), random.normal(0.5, 1, 40), seed=seed)
        assert low <= difference <= high
        held += low <= 0.5 <= high
    assert 0.89 <= held / 200 <= 0.99
