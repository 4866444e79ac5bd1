from __future__ import annotations

import pytest

from ringtune.benchmarks.harness.sizes import format_bytes, format_duration, parse_bytes, parse_sizes
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


@pytest.mark.parametrize(
    ("size_bytes", "text"), [(0, "0 B"), (1023, "1023 B"), (KIB, "1 KiB"), (3 * MIB // 2, "1.5 MiB")]
)
def test_format_bytes(size_bytes: int, text: str) -> None:
    assert format_bytes(size_bytes) == text


@pytest.mark.parametrize(
    ("duration_ns", "text"), [(12, "12 ns"), (1234, "1.23 us"), (456_700_000, "457 ms"), (2.5e9, "2.5 s")]
)
def test_format_duration(duration_ns: float, text: str) -> None:
    assert format_duration(duration_ns) == text
