from __future__ import annotations

import math

import pytest

from ringtune.dashboard import units


@pytest.mark.parametrize(
    ("ns", "shown"),
    [
        (None, "–"),
        (math.nan, "–"),
        (0, "0 s"),
        (7, "7 ns"),
        (1_500, "1.50 µs"),
        (14_200_000, "14.2 ms"),
        (123_456_789, "123 ms"),
        (2_000_000_000, "2.00 s"),
        (-3_200_000, "-3.20 ms"),
    ],
)
def test_durations_have_three_digits_and_a_unit(ns: float | None, shown: str) -> None:
    assert units.duration(ns) == shown


@pytest.mark.parametrize(
    ("ns", "shown"),
    [(5e9, "5.00 s"), (65e9, "1 min 05 s"), (2 * 3600e9 + 300e9, "2 h 05 min"), (50 * 3600e9, "2 d 2 h")],
)
def test_long_durations(ns: float, shown: str) -> None:
    assert units.long_duration(ns) == shown


@pytest.mark.parametrize(
    ("count_bytes", "shown"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1024, "1 KiB"),
        (64 << 20, "64 MiB"),
        (1536, "1.50 KiB"),
        (float(64 << 20), "64 MiB"),
        (None, "–"),
    ],
)
def test_sizes_are_binary(count_bytes: float | None, shown: str) -> None:
    assert units.size(count_bytes) == shown


def test_moments_that_make_no_sense_are_a_dash() -> None:
    assert units.moment(0) == units.moment(None) == units.moment(10**30) == "–"


def test_foreign_text_stays_on_one_line_and_short() -> None:
    assert units.plain("a\nb\u202ec\x00d") == "a b c d"
    assert len(units.plain("x" * 10_000, 50)) == 50
    assert units.plain("abcdefghij", 7) == "abcd…ij"


def test_markup_writes_out_tags() -> None:
    assert units.markup("<b>&") == "&lt;b&gt;&amp;"
