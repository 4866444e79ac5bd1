from __future__ import annotations

import pytest

from ringtune.benchmarks.harness.sizes import parse_bytes, parse_sizes
from ringtune.errors import UsageError

KIB, MIB = 1024, 1024**2


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("512", 512),
        ("512B", 512),
        ("4KiB", 4 * KIB),
        ("1.5 MiB", 3 * MIB // 2),
        ("25MB", 25_000_000),
        ("1gib", 1024**3),
    ],
)
def test_parse_bytes(text: str, size_bytes: int) -> None:
    assert parse_bytes(text) == size_bytes


@pytest.mark.parametrize("text", ["", "x", "4 parsec", "0", "0.3B", "-1", "1KiBB"])
def test_not_a_size(text: str) -> None:
    with pytest.raises(UsageError, match="is not a"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("1KiB", [KIB]),
        ("1KiB, 3KiB", [KIB, 3 * KIB]),
        ("1KiB,..,64KiB", [KIB, 4 * KIB, 16 * KIB, 64 * KIB]),
        ("1KiB,..,10KiB", [KIB, 4 * KIB, 10 * KIB]),
        ("1KiB,..,4KiB", [KIB, 4 * KIB]),
    ],
)
def test_parse_sizes(text: str, sizes: list[int]) -> None:
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize("text", ["", "..", "1KiB,..", "..,1KiB", "4KiB,..,1KiB", "1KiB,..,..,4KiB"])
def test_not_a_list_of_sizes(text: str) -> None:
    with pytest.raises(UsageError):
        parse_sizes(text)
