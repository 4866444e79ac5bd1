from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction

import pytest

from ringtune.tuner import scoring
from ringtune.tuner.scoring import Interval, clearly_worse, median_interval, paired_gain, rank_sum_p, student_quantile


def test_median_interval_of_ten_values() -> None:
    # P(Binomial(10, 1/2) <= 1) = 11/1024 <= 2.5 %, <= 2: 56/1024 > 2.5 %: the second values from both ends.
    assert median_interval(range(10)) == Interval(4.5, 1.0, 8.0)


def test_few_samples_give_the_range() -> None:
    assert median_interval([3.0, 1.0, 2.0]) == Interval(2.0, 1.0, 3.0)
    assert median_interval([7]) == Interval(7.0, 7.0, 7.0)


def test_no_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="no samples"):
        median_interval([])


def test_the_median_interval_covers() -> None:
    rng = random.Random(5)
    hits = sum(
        interval.low <= 1.0 <= interval.high
        for interval in (median_interval([rng.lognormvariate(0, 0.3) for _ in range(15)]) for _ in range(1000))
    )
    assert hits >= 940


@pytest.mark.parametrize(
    ("p", "dof", "expected"),
    [(0.975, 1, 12.7062), (0.975, 2, 4.30265), (0.975, 3, 3.18245), (0.95, 5, 2.01505), (0.99375, 3, 5.3919),
     (0.9958, 11, 3.2036), (0.975, 30, 2.04227), (0.5, 4, 0.0)],
)  # fmt: skip
def test_student_quantiles(p: float, dof: int, expected: float) -> None:
    assert student_quantile(p, dof) == pytest.approx(expected, rel=2e-3, abs=1e-6)


@pytest.mark.parametrize(("p", "dof"), [(0.4, 3), (1.0, 3), (0.9, 0)])
def test_impossible_quantiles_are_refused(p: float, dof: int) -> None:
    with pytest.raises(ValueError, match="student_quantile"):
        student_quantile(p, dof)


@pytest.mark.parametrize(("m", "n"), [(1, 1), (2, 3), (3, 4), (4, 3)])
def test_rank_sum_probabilities_by_enumeration(m: int, n: int) -> None:
    """Every order of m + n values is equally likely when both settings are alike."""
    orders = list(itertools.combinations(range(m + n), m))

    def wins(places: tuple[int, ...]) -> int:
        return sum(a > b for a in places for b in range(m + n) if b not in places)

    for places in orders:
        others = [b for b in range(m + n) if b not in places]
        as_high = Fraction(sum(wins(other) >= wins(places) for other in orders), len(orders))
        assert rank_sum_p(places, others) == pytest.approx(float(as_high))


def test_ties_speak_for_the_setting() -> None:
    assert rank_sum_p([1, 1], [1, 1, 1]) == 1.0


def test_three_steps_can_be_clearly_worse() -> None:
    reference = [100 + i for i in range(10)]
    assert clearly_worse([200, 210, 220], reference, 0.1, 1 / 286)
    assert not clearly_worse([200, 210, 220], reference, 0.1, 1 / 287)
    assert not clearly_worse([200, 210], reference, 0.1, 0.005)


def test_the_margin_is_tolerated() -> None:
    reference = [100 + i for i in range(20)]
    assert not clearly_worse([x * 1.09 for x in reference], reference, 0.1, 0.005)
    assert clearly_worse([x * 1.4 for x in reference], reference, 0.1, 0.005)


def test_nothing_to_compare_is_not_worse() -> None:
    assert not clearly_worse([], [1], 0.1, 0.5) and not clearly_worse([1], [], 0.1, 0.5)


def test_long_trials_stay_cheap() -> None:
    clearly_worse(list(range(1000)), list(range(1000)), 0.1, 0.005)
    assert scoring._rank_sum_ways.cache_info().currsize <= 21 * 21 * 2


def test_paired_gain_by_hand() -> None:
    ratios = [math.log(0.9)] * 4
    gain = paired_gain(ratios, 0.025)
    assert gain.median == pytest.approx(0.1) and gain.low == pytest.approx(0.1) and gain.high == pytest.approx(0.1)
    ratios = [-0.2, -0.1, -0.1, 0.0]  # mean -0.1, deviation 0.08165, t(0.975, 3) = 3.182
    half = 3.18245 * 0.0816497 / 2
    gain = paired_gain(ratios, 0.025)
    assert gain.low == pytest.approx(1 - math.exp(-0.1 + half), rel=1e-3)
    assert gain.high == pytest.approx(1 - math.exp(-0.1 - half), rel=1e-3)


def test_one_block_proves_nothing() -> None:
    assert paired_gain([-1.0], 0.05).low == -math.inf and paired_gain([-1.0], 0.05).high == 1.0
    assert paired_gain([], 0.05).median == 0.0


@pytest.mark.parametrize("count", [1_000, 1_030, 20_000])
def test_the_interval_of_the_median_of_very_many_samples(count: int) -> None:
    # 1.96 standard deviations of Binomial(n, 1/2) on either side of the middle, in ranks.
    interval = median_interval(range(count))
    half = 1.96 * math.sqrt(count) / 2
    assert interval.median == (count - 1) / 2
    assert interval.low == pytest.approx(count / 2 - half, abs=2)
    assert interval.high == pytest.approx(count / 2 + half, abs=2)
