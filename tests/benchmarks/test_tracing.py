from __future__ import annotations

import pytest

from ringtune.benchmarks.viewer.overhead import parse_limits, trace_case
from ringtune.errors import UsageError


def test_the_cost_is_on_over_the_mean_of_the_two_offs_of_its_round() -> None:
    rounds = [{"off": 90.0 + turn, "again": 110.0 + turn, "on": 1.02 * (100 + turn)} for turn in range(20)]
    case = trace_case("x", rounds)
    assert case["cost"]["median"] == pytest.approx(1.02)
    assert case["cost"]["low"] == pytest.approx(1.02) == case["cost"]["high"]
    assert case["noise"]["median"] == pytest.approx((119.5 / 99.5), rel=1e-3)
    assert case["off_ns"] == pytest.approx(109.5)


def test_limits_are_one_a_profile() -> None:
    assert parse_limits("1,3", 2) == [1.0, 3.0]
    assert parse_limits(None, 2) == [float("inf")] * 2
    for wrong in ("1", "1,2,3", "a,b", ""):
        with pytest.raises(UsageError, match="--require"):
            parse_limits(wrong, 2)
