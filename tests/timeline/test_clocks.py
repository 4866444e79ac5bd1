from __future__ import annotations

import numpy as np
import pytest

from ringtune.timeline.merging.clocks import HostOffset, host_offsets
from ringtune.timeline.reading.columns import nanoseconds
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


def drifting(drift: float, count: int, *, noise: bool = True) -> tuple[list[Instant], np.ndarray]:
    """Samples of a clock that drifts, each right within its own bound, and the true offsets."""
    rng = np.random.default_rng(11)
    at = np.sort(rng.integers(10**15, 10**15 + 20_000_000_000, count))
    truth = 7_000_000 + np.rint((at - 10**15) * drift).astype(np.int64)
    errors = rng.integers(20_000, 60_000, count)
    wrong = np.rint(rng.uniform(-1, 1, count) * errors * noise).astype(np.int64)
    samples = [sample(1, *row) for row in zip(at.tolist(), (truth + wrong).tolist(), errors.tolist(), strict=True)]
    return samples, truth


@pytest.mark.parametrize("drift", [0.0, 40e-6, -300e-6])
def test_a_steady_drift_is_found_and_its_error_is_bounded(drift: float) -> None:
    samples, truth = drifting(drift, 40)
    offset = host_offsets([part(0, "a"), part(1, "b")], samples)["b"]
    assert offset.source == "measured" and offset.drift is not None and offset.error_ns is not None
    assert abs(offset.drift - drift) < 5e-6
    found = offset(np.array([one.at_ns for one in samples], dtype=np.int64))
    # Better than any single sample is, and the bound holds.
    assert np.abs(found - truth).max() < 20_000 < offset.error_ns
    assert np.abs(found - truth).max() <= offset.error_ns


def test_the_line_goes_on_beyond_its_samples() -> None:
    samples, truth = drifting(100e-6, 10, noise=False)
    offset = host_offsets([part(0, "a"), part(1, "b")], samples)["b"]
    last = samples[-1].at_ns
    assert offset.at(last + 10_000_000_000) == pytest.approx(int(truth[-1]) + 1_000_000, abs=2)


def test_samples_that_a_steady_clock_explains_are_not_drawn_out_as_drift() -> None:
    """3 ms apart, and right within their bounds for an offset of 0: a line through them is 93 us off 0.1 s later."""
    samples = [sample(1, 10**15, 900, 1_000), sample(1, 10**15 + 3_000_000, -1_900, 2_000)]
    offset = host_offsets([part(0, "a"), part(1, "b")], samples)["b"]
    assert offset.drift == 0.0 and offset.error_ns is not None
    assert np.abs(offset(10**15 + np.array([-100_000_000, 0, 100_000_000]))).max() <= offset.error_ns


@pytest.mark.parametrize("seed", range(4))
def test_the_error_holds_before_the_first_sample_and_after_the_last(seed: int) -> None:
    """As under load: few samples, close together or far apart, the worst dropped; spans anywhere."""
    rng = np.random.default_rng(seed)
    start = 10**15
    for _ in range(100):
        drift, count = rng.uniform(-1e-4, 1e-4), int(rng.integers(1, 6))
        at = start + np.sort((rng.uniform(0, 1, count) * rng.choice([2e7, 5e9], count)).astype(np.int64))
        errors = (10 ** rng.uniform(4, 6.5, count)).astype(np.int64)
        offsets = np.rint(drift * (at - start) + rng.uniform(-1, 1, count) * (errors - 1)).astype(np.int64)
        samples = [sample(1, *row) for row in zip(at.tolist(), offsets.tolist(), errors.tolist(), strict=True)]
        found = host_offsets([part(0, "a"), part(1, "b")], samples)["b"]
        moments = start + np.sort(rng.integers(-1_000_000_000, 6_000_000_000, 9))
        bound = found.error_over(int(moments[0]), int(moments[-1]))
        assert bound is not None
        assert np.abs(found(moments) - drift * (moments - start)).max() <= bound + 1


def test_beyond_a_long_look_the_error_grows_slowly() -> None:
    samples, _ = drifting(40e-6, 40)
    offset = host_offsets([part(0, "a"), part(1, "b")], samples)["b"]
    first, last = samples[0].at_ns, samples[-1].at_ns
    assert offset.error_over(first, last) == offset.error_ns is not None
    # A second later: what drifts within 2 x 60 us of each other over these 20 s can differ by.
    assert 0 < offset.error_over(first, last + 10**9) - offset.error_ns < 12_000


def test_one_sample_says_nothing_about_drift() -> None:
    offset = host_offsets([part(0, "a"), part(1, "b")], [sample(1, 10**15, 500, 200)])["b"]
    assert offset.error_over(10**15, 10**15) == 200
    # 100 us a second, as a bad quartz.
    assert offset.error_over(10**15 - 10**9, 10**15) == offset.error_over(10**15, 10**15 + 10**9) == 100_200


def test_the_worst_round_trips_do_not_count() -> None:
    samples = [sample(1, 10**15 + turn * 10**9, 5_000, 1_000) for turn in range(6)]
    # Of 10 ms, as when the process lost its core: right within its bound, and useless.
    offset = host_offsets([part(0, "a"), part(1, "b")], [*samples, sample(1, 10**15 + 7, 4_000_000, 5_000_000)])["b"]
    assert (offset.at(10**15), offset.error_ns, offset.drift) == (5_000, 1_000, 0.0)


def test_a_clock_that_was_set_is_followed_sample_by_sample() -> None:
    jump = [sample(1, 10**15 + turn * 10**9, 1_000 if turn < 3 else 90_000) for turn in range(6)]
    offset = host_offsets([part(0, "a"), part(1, "b")], jump)["b"]
    assert offset.drift is None
    assert offsets_at(offset, 10**15, 10**15 + 5 * 10**9) == [1_000, 90_000]


def test_microseconds_become_exact_nanoseconds_up_to_a_hundred_days() -> None:
    rng = np.random.default_rng(7)
    exact = rng.integers(0, 100 * 86_400 * 10**9, 20_000)
    assert np.array_equal(nanoseconds([value / 1000 for value in exact.tolist()]), exact)
    assert nanoseconds([-1.5, -0.001]).tolist() == [-1500, -1]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e300])
def test_impossible_times_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="not finite or too large"):
        nanoseconds([1.0, bad])
