"""Judging step times: location, interval, paired gain, and the test for "clearly worse".

| symbol | meaning |
|---|---|
| x_1..x_n | step times of one setting, in nanoseconds |
| r_b | log(step time of setting / step time of default) in block b; the two were measured right after each other |
| alpha | one-sided probability of a wrong verdict |

Step times have a long right tail (checkpoints, other processes), so locations are medians or trimmed means and the
early test is a rank test. Drift of the machine hits both settings of a block alike and cancels in r_b. Plain Python:
this runs in the training process, where importing scipy would cost a second.

Sources: order-statistic interval of the median: Conover, Practical Nonparametric Statistics, 3.2. Rank-sum test:
Mann and Whitney 1947, Ann. Math. Stat. 18 (its recurrence for the exact distribution). Quantile of Student's t:
Hill 1970, Algorithm 396, CACM 13.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist, fmean, median


@dataclass(frozen=True)
class Interval:
    """A location with its interval; the unit is that of the samples."""

    median: float
    low: float
    high: float

    def as_dict(self) -> dict[str, float]:
        """Return it as the journal holds it."""
        return {"median": self.median, "low": self.low, "high": self.high}


NO_GAIN = Interval(0.0, 0.0, 0.0)

_RANKED = 20


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> Interval:
    """Return the median and its distribution-free interval between two order statistics.

    With fewer than six samples no two order statistics reach 95 %; then the interval is the whole range.

    Raises:
        ValueError: There are no samples.
    """
    if not samples:
        raise ValueError("median_interval: no samples")
    ordered = sorted(samples)
    n, tail, below = len(ordered), 0.0, 0
    # Largest k with P(Binomial(n, 1/2) <= k - 1) <= (1 - confidence) / 2: the k-th values from both ends.
    while below < n // 2:
        tail += _binomial_half(n, below)
        if tail > (1.0 - confidence) / 2.0:
            break
        below += 1
    edge = max(below - 1, 0)
    return Interval(float(median(ordered)), float(ordered[edge]), float(ordered[n - 1 - edge]))


def _binomial_half(n: int, k: int) -> float:
    """P(Binomial(n, 1/2) = k); by logarithms, as the binomial coefficient of a thousand samples is beyond a float."""
    return math.exp(math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) - n * math.log(2.0))


def log_location(samples: Sequence[float]) -> float:
    """Return the mean logarithm without the lowest and the highest fifth, at least one sample on either side.

    As robust against a few disturbed steps as the median, with a variance a quarter smaller where there are none.
    Source: trimmed mean: Tukey 1960; Huber, Robust Statistics, 3.3.

    Raises:
        ValueError: There are no samples.
    """
    if not samples:
        raise ValueError("log_location: no samples")
    ordered = sorted(samples)
    cut = max(len(ordered) // 5, 1) if len(ordered) > 2 else 0
    return fmean(math.log(value) for value in ordered[cut : len(ordered) - cut])


def log_ratio(setting: Sequence[float], default: Sequence[float]) -> float:
    """Return log(step time of setting / step time of default); negative when the setting is faster."""
    return log_location(setting) - log_location(default)


def log_spread(samples: Sequence[float]) -> float:
    """Return the robust spread of the samples' logarithms: 1.4826 times their median absolute deviation."""
    logs = [math.log(value) for value in samples]
    centre = median(logs)
    return 1.4826 * median(abs(value - centre) for value in logs)


def paired_gain(log_ratios: Sequence[float], alpha: float) -> Interval:
    """Return the share of the step time saved, from blocks that measured both settings next to each other.

    Student's interval of the mean of the blocks' log ratios, turned into a gain (0.05 = steps take 5 % less time).
    One disturbed block widens the interval: the verdict then errs towards keeping the default.

    Args:
        log_ratios: One value a block, see `log_ratio`.
        alpha: Probability that the true gain lies below low; the same above high.

    Returns:
        The gain; with fewer than two blocks its interval is unbounded (low = -inf, high = 1).
    """
    centre = fmean(log_ratios) if log_ratios else 0.0
    if len(log_ratios) < 2:
        return Interval(-math.expm1(centre), -math.inf, 1.0)
    # In floats: `statistics.stdev` counts in fractions, and a training step waits for this.
    variance = math.fsum((value - centre) ** 2 for value in log_ratios) / (len(log_ratios) - 1)
    half = student_quantile(1.0 - alpha, len(log_ratios) - 1) * math.sqrt(variance / len(log_ratios))
    return Interval(-math.expm1(centre), -_expm1(centre + half), -_expm1(centre - half))


def clearly_worse(setting: Sequence[float], default: Sequence[float], margin: float, alpha: float) -> bool:
    """Whether the setting's steps take more than (1 + margin) times the default's, by an exact rank-sum test.

    Holds for any distribution of step times. Asked after every step, so alpha must be small: with 3 steps against
    10 the smallest reachable probability is 1/286.

    Args:
        setting: Step times of the trial so far, any unit.
        default: Recent step times of the default, the same unit.
        margin: Share of extra time that is tolerated, for example 0.1.
        alpha: Probability of the verdict for a setting that is exactly at the margin.
    """
    if not setting or not default:
        return False
    # The tables grow with the product of the counts; beyond these many the trial is about to end anyway.
    x, y = setting[:_RANKED], default[-_RANKED:]
    return rank_sum_p([value / (1.0 + margin) for value in x], y) <= alpha


def rank_sum_p(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the exact one-sided probability of ranks as high as those of x, if x and y were alike.

    Ties count as y above x, which can only weaken the verdict.
    """
    wins = sum(a > b for a in x for b in y)
    ways = _rank_sum_ways(len(x), len(y))
    return sum(ways[wins:]) / math.comb(len(x) + len(y), len(x))


@lru_cache(maxsize=2048)
def _rank_sum_ways(m: int, n: int) -> tuple[int, ...]:
    """Number of orders of m + n values in which exactly u pairs have x above y, for u = 0..m*n."""
    if m == 0 or n == 0:
        return (1,)
    # The largest value is an x (it beats all n values of y) or a y (it beats nothing).
    with_x, with_y = _rank_sum_ways(m - 1, n), _rank_sum_ways(m, n - 1)
    ways = [0] * (m * n + 1)
    for u, count in enumerate(with_x):
        ways[u + n] += count
    for u, count in enumerate(with_y):
        ways[u] += count
    return tuple(ways)


@lru_cache(maxsize=256)
def student_quantile(p: float, dof: int) -> float:
    """Return the quantile of Student's t distribution for 0.5 <= p < 1.

    Exact for 1 and 2 degrees of freedom, elsewhere Hill's expansion: relative error under 1e-3 for dof >= 3.
    Source: Hill 1970, Algorithm 396, CACM 13(10).
    """
    if not 0.5 <= p < 1.0 or dof < 1:
        raise ValueError(f"student_quantile: got p={p}, dof={dof}, expected 0.5 <= p < 1 and dof >= 1")
    tails = 2.0 * (1.0 - p)
    if dof == 1:
        return 1.0 / math.tan(tails * math.pi / 2.0) if tails < 1.0 else 0.0
    if dof == 2:
        return math.sqrt(2.0 / (tails * (2.0 - tails)) - 2.0)
    return _hill(tails, float(dof))


def _hill(tails: float, n: float) -> float:
    """Hill's expansion for more than two degrees of freedom; tails = two-sided probability."""
    a = 1.0 / (n - 0.5)
    b = 48.0 / a**2
    c = ((20700.0 * a / b - 98.0) * a - 16.0) * a + 96.36
    d = ((94.5 / (b + c) - 3.0) / b + 1.0) * math.sqrt(a * math.pi / 2.0) * n
    y = (d * tails) ** (2.0 / n)
    if y > a + 0.05:
        x = NormalDist().inv_cdf(tails * 0.5)
        y = x * x
        if n < 5:
            c += 0.3 * (n - 4.5) * (x + 0.6)
        c = (((0.05 * d * x - 5.0) * x - 7.0) * x - 2.0) * x + b + c
        y = (((((0.4 * y + 6.3) * y + 36.0) * y + 94.5) / c - y - 3.0) / b + 1.0) * x
        y = math.expm1(a * y * y)
    else:
        y = ((1.0 / (((n + 6.0) / (n * y) - 0.089 * d - 0.822) * (n + 2.0) * 3.0) + 0.5 / (n + 4.0)) * y - 1.0) * (
            n + 1.0
        ) / (n + 2.0) + 1.0 / y
    return math.sqrt(n * y)


def _expm1(x: float) -> float:
    return math.inf if x > 700.0 else math.expm1(x)
