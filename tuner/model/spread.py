"""How much the slowest of n ranks is behind an average one."""

from __future__ import annotations

from functools import lru_cache

from scipy import integrate, special

NORMAL_95 = 1.96
"""Half the length of a normal variable's 95 % interval, in standard deviations."""


@lru_cache(maxsize=4096)
def expected_maximum(n: int) -> float:
    """Return the expected maximum of n independent standard normal variables, to about 1e-6.

    The integral of 1 - F(x)^n over x > 0 less that of F(x)^n over x < 0, with F the distribution function.
    """
    if n < 2:
        return 0.0
    above, _ = integrate.quad(lambda x: -special.expm1(n * special.log_ndtr(x)), 0.0, 40.0, limit=200)
    below, _ = integrate.quad(lambda x: special.ndtr(x) ** n, -40.0, 0.0, limit=200)
    return float(above - below)
