"""Nonsense at every port of a running job: its sums stay right, its steps as fast, its processes as large."""

from __future__ import annotations

import random

import pytest

from tests.conftest import needs
from tests.launch import fuzz

needs("ringtune._native")
needs("prometheus_client")


@pytest.mark.slow
def test_some_rounds() -> None:
    found = fuzz.run(4 * fuzz.ROUND_S, random.SystemRandom().randrange(1 << 30))
    assert not found.wrong, found


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_ten_minutes() -> None:
    found = fuzz.run(600.0, random.SystemRandom().randrange(1 << 30))
    assert not found.wrong, found
