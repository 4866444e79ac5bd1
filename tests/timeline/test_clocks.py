from __future__ import annotations

import numpy as np
import pytest

from ringtune.timeline.clocks import HostOffset, host_offsets
from ringtune.timeline.columns import nanoseconds
from ringtune.timeline.spans import Instant, PartInfo


def part(rank: int, host: str, *, unix_ns: int = 0, monotonic_ns: int = 0) -> PartInfo:
    return PartInfo(rank=rank, size=4, host=host, unix_ns=unix_ns, monotonic_ns=monotonic_ns)


def sample(rank: int, at_ns: int, offset_ns: object, error_ns: object = 100) -> Instant:
    return Instant("CLOCK", "clock", rank, at_ns, {"offset_ns": offset_ns, "error_ns": error_ns})


def offsets_at(offset: HostOffset, *moments: int) -> list[int]:
    return offset(np.array(moments, dtype=np.int64)).tolist()


def test_between_samples_the_offset_is_linear_and_outside_constant() -> None:
    samples = [sample(1, 10**15, 1000), sample(1, 10**15 + 100, 3000), sample(1, 10**15 + 200, 3000)]
    offset = host_offsets([part(0, "a"), part(1, "b")], samples)["b"]
    assert offsets_at(offset, 10**15 - 50, 10**15, 10**15 + 25, 10**15 + 150, 10**15 + 999) == [
        1000,
        1000,
        1500,
        3000,
        3000,
    ]
    assert (offset.source, offset.error_ns) == ("measured", 100)


def test_rank_0s_host_is_the_reference_whatever_its_samples_say() -> None:
    offset = host_offsets([part(0, "a"), part(1, "a")], [sample(1, 5, 777)])["a"]
    assert (offset.at(5), offset.error_ns, offset.source) == (0, 0, "reference")


def test_ranks_of_one_host_take_the_sharpest_samples() -> None:
    parts = [part(0, "a"), part(1, "b"), part(2, "b")]
    offsets = host_offsets(parts, [sample(1, 5, 500, 90), sample(2, 6, 470, 10)])
    assert (offsets["b"].at(0), offsets["b"].error_ns) == (470, 10)


def test_without_samples_the_wall_clocks_serve_and_the_error_is_unknown() -> None:
    parts = [part(0, "a", unix_ns=1_000, monotonic_ns=100), part(1, "b", unix_ns=1_050, monotonic_ns=30)]
    offset = host_offsets(parts, [])["b"]
    assert (offset.at(30), offset.error_ns, offset.source) == (120, None, "wall")


def test_without_anything_the_clock_is_left_alone() -> None:
    offset = host_offsets([part(2, "b")], [])["b"]
    assert (offset.at(30), offset.error_ns, offset.source) == (0, None, "none")


def test_samples_still_count_when_rank_0s_part_is_missing() -> None:
    assert host_offsets([part(1, "b")], [sample(1, 5, 40)])["b"].at(7) == 40


@pytest.mark.parametrize("damaged", [("x", 1), (5, None), (2**62, 1), (5, -1)])
def test_damaged_samples_do_not_count(damaged: tuple[object, object]) -> None:
    offset = host_offsets([part(0, "a"), part(1, "b")], [sample(1, 5, *damaged)])["b"]
    assert offset.source == "none"


def test_microseconds_become_exact_nanoseconds_up_to_a_hundred_days() -> None:
    rng = np.random.default_rng(7)
    exact = rng.integers(0, 100 * 86_400 * 10**9, 20_000)
    assert np.array_equal(nanoseconds([value / 1000 for value in exact.tolist()]), exact)
    assert nanoseconds([-1.5, -0.001]).tolist() == [-1500, -1]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e300])
def test_impossible_times_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="not finite or too large"):
        nanoseconds([1.0, bad])
