from __future__ import annotations

from collections.abc import Callable

import pytest

from ringtune.benchmarks.harness.statistics import (
    Interval,
    median_interval,
    median_ratio_interval,
    paired_ratio_interval,
    quartiles,
    ratio_interval,
)


def test_quartiles_of_five() -> None:
    assert quartiles([5.0, 1.0, 4.0, 2.0, 3.0]) == Interval(3.0, 2.0, 4.0)


def test_equal_samples_have_no_width() -> None:
    assert median_interval([7.0] * 9) == Interval(7.0, 7.0, 7.0)


def test_a_single_sample_is_its_own_interval() -> None:
    assert median_interval([3.0]) == Interval(3.0, 3.0, 3.0)


def test_interval_lies_within_the_samples_and_repeats() -> None:
    samples = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    interval = median_interval(samples)
    assert interval.median == 4.0
    assert 1.0 <= interval.low < 4.0 < interval.high <= 7.0
    assert median_interval(samples) == interval


def test_ratio_of_constant_samples_is_exact() -> None:
    assert ratio_interval([6.0, 6.0], [4.0, 4.0, 4.0], factor=0.5) == Interval(0.75, 0.75, 0.75)


def test_paired_rounds_cancel_a_common_slow_spell() -> None:
    denominator = [1.0, 1.0, 8.0, 8.0, 1.0, 8.0, 1.0, 8.0]
    numerator = [2.0 * value for value in denominator]
    paired = paired_ratio_interval(numerator, denominator)
    assert paired == Interval(2.0, 2.0, 2.0)
    independent = ratio_interval(numerator, denominator)
    assert independent.high > 2.0


@pytest.mark.parametrize("compare", [paired_ratio_interval, median_ratio_interval])
def test_pairs_need_equal_lengths(compare: Callable[..., Interval]) -> None:
    with pytest.raises(ValueError, match="equal lengths, got 2 and 1"):
        compare([1.0, 2.0], [1.0])


def test_each_round_is_a_comparison_of_its_own() -> None:
    # The machine is ten times slower in two rounds: medians of each side come from different rounds, pairs do not.
    assert median_ratio_interval([2.0, 20.0, 2.0, 20.0], [1.0, 10.0, 1.0, 10.0]) == Interval(2.0, 2.0, 2.0)
    assert median_ratio_interval([3.0, 10.0, 2.0], [1.0, 10.0, 1.0]).median == 2.0


def test_no_samples() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        quartiles([])
