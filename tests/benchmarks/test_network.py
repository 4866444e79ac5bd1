"""The links between namespaces: what a rested one carries at once."""

from __future__ import annotations

import pytest

from ringtune.benchmarks.network import bucket_bytes, rate_number

PACKET = 64 << 10
"""The most that the kernel hands down at once."""


@pytest.mark.parametrize("rate", ["1mbit", "200mbit", "300mbit", "500mbit", "800mbit", "1gbit", "10gbit", "100gbit"])
def test_a_bucket_is_never_just_filled_by_a_packet(rate: str) -> None:
    """Half a packet or less takes packets apart; otherwise another half fits in while a timer is late."""
    assert bucket_bytes(rate_number(rate)) <= PACKET / 2 or bucket_bytes(rate_number(rate)) >= 1.5 * PACKET


@pytest.mark.parametrize(("rate", "size"), [("1mbit", 16_384), ("200mbit", 25_000), ("1gbit", 125_000)])
def test_a_bucket_holds_a_millisecond_of_the_line(rate: str, size: int) -> None:
    assert bucket_bytes(rate_number(rate)) == size
    assert bucket_bytes(rate_number("10gbit")) == 1_250_000
