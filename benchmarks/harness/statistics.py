"""Medians, spreads and bootstrap intervals of benchmark samples.

Timings on a shared machine have long tails, so the middle is always the median and never the mean, and an interval
is a percentile bootstrap and never a multiple of the standard deviation.

Source: B. Efron, R. Tibshirani, An Introduction to the Bootstrap (1993), chapter 13 (percentile intervals).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import bootstrap

from ringtune.tuner.scoring import Interval

CONFIDENCE = 0.95
RESAMPLES = 4000
# The same samples must give the same interval in the table, the JSON file and the report.
SEED = 20240

Samples = Sequence[float] | NDArray[np.float64]


def quartiles(samples: Samples) -> Interval:
    """Returns median, first and third quartile (the spread of single samples).

    Raises:
        ValueError: `samples` is empty.
    """
    low, middle, high = np.quantile(_as_array(samples), [0.25, 0.5, 0.75])
    return Interval(float(middle), float(low), float(high))


def median_interval(samples: Samples) -> Interval:
    """Returns the median and the 95 % bootstrap interval of the median.

    Raises:
        ValueError: `samples` is empty.
    """
    values = _as_array(samples)
    return _interval((values,), lambda x, axis: np.median(x, axis=axis), paired=False)


def ratio_interval(numerator: Samples, denominator: Samples, *, factor: float = 1.0) -> Interval:
    """Returns `factor` x median(numerator) / median(denominator) with its 95 % interval.

    The two sets were taken independently (two jobs, say) and may differ in length.

    Raises:
        ValueError: a set is empty.
    """
    return _interval((_as_array(numerator), _as_array(denominator)), _ratio_of_medians(factor), paired=False)


def paired_ratio_interval(numerator: Samples, denominator: Samples) -> Interval:
    """Returns median(numerator) / median(denominator) where sample i of both was taken in the same round.

    Rounds are resampled as a whole, so a slow spell of the machine that hit both sides does not widen the interval.

    Raises:
        ValueError: a set is empty or the lengths differ.
    """
    return _interval(_pairs(numerator, denominator), _ratio_of_medians(1.0), paired=True)


def median_ratio_interval(numerator: Samples, denominator: Samples) -> Interval:
    """Returns the median of numerator[i] / denominator[i], both taken in round i, with its 95 % interval.

    Unlike `paired_ratio_interval` it holds when the machine is slower in some rounds than in others: each round is its
    own comparison, and what slowed both of its sides down is no part of it.

    Raises:
        ValueError: a set is empty or the lengths differ.
    """
    return median_interval(np.divide(*_pairs(numerator, denominator)))


def step_ns(by_rank_ns: Sequence[float]) -> float:
    """Returns the time of a step whose rate is the mean of the ranks' rates."""
    return len(by_rank_ns) / sum(1 / rank_ns for rank_ns in by_rank_ns)


def share_text(share: Mapping[str, float] | None) -> str:
    """Returns a share's median and interval in per cent, for tables; ``-`` for none."""
    return f"{share['median']:.1%} [{share['low']:.1%}, {share['high']:.1%}]" if share else "-"


def _pairs(numerator: Samples, denominator: Samples) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    top, bottom = _as_array(numerator), _as_array(denominator)
    if len(top) != len(bottom):
        raise ValueError(f"paired samples must have equal lengths, got {len(top)} and {len(bottom)}")
    return top, bottom


def _ratio_of_medians(factor: float) -> Callable[..., Any]:
    return lambda x, y, axis: factor * np.median(x, axis=axis) / np.median(y, axis=axis)


def _as_array(samples: Samples) -> NDArray[np.float64]:
    values = np.asarray(samples, dtype=np.float64)
    if values.size == 0:
        raise ValueError("no samples: nothing was measured")
    return values


def _interval(data: tuple[NDArray[np.float64], ...], statistic: Callable[..., Any], *, paired: bool) -> Interval:
    middle = float(statistic(*data, axis=-1))
    if any(len(values) < 2 for values in data):
        # One sample shows no spread, so its interval has no width.
        return Interval(middle, middle, middle)
    result = bootstrap(
        data,
        statistic,
        vectorized=True,
        paired=paired,
        confidence_level=CONFIDENCE,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(SEED),
    )
    bounds = result.confidence_interval
    return Interval(middle, float(bounds.low), float(bounds.high))
