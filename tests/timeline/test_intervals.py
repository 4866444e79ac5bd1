from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ringtune.timeline.analysis.intervals import complement, difference, intersection, length, union, unions

bounds = st.integers(min_value=-40, max_value=40)
intervals = st.lists(st.tuples(bounds, bounds), max_size=12)


def as_set(pairs: list[tuple[int, int]]) -> set[int]:
    return {point for begin, end in pairs for point in range(begin, end)}


def built(pairs: list[tuple[int, int]]) -> np.ndarray:
    return union(*(np.array([pair[at] for pair in pairs], dtype=np.int64) for at in (0, 1)))


def points(intervals: np.ndarray) -> set[int]:
    return as_set([(begin, end) for begin, end in intervals.tolist()])


def is_canonical(intervals: np.ndarray) -> bool:
    flat = intervals.ravel()
    return bool(np.all(flat[1:] > flat[:-1]))


@given(intervals)
def test_union_covers_the_same_points(pairs: list[tuple[int, int]]) -> None:
    result = built(pairs)
    assert points(result) == as_set(pairs)
    assert length(result) == len(as_set(pairs))
    assert is_canonical(result)


@given(intervals, intervals)
def test_set_operations_equal_those_on_points(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    a, b = built(first), built(second)
    for result, expected in (
        (intersection(a, b), as_set(first) & as_set(second)),
        (difference(a, b), as_set(first) - as_set(second)),
        (complement(a, -50, 50), set(range(-50, 50)) - as_set(first)),
    ):
        assert points(result) == expected
        assert length(result) == len(expected)
        assert is_canonical(result)


@given(intervals, intervals)
def test_parts_add_up(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    a, b = built(first), built(second)
    assert length(intersection(a, b)) + length(difference(a, b)) == length(a)


def test_large_times_are_exact() -> None:
    base = 2**62
    result = union(np.array([base, base + 1]), np.array([base + 2, base + 7]))
    assert result.tolist() == [[base, base + 7]]
    assert length(result) == 7


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(0, 60)), max_size=20),
    st.sampled_from([1, 2**55]),
)
def test_unions_of_zones_are_those_of_each_alone(found: list[tuple[int, int, int]], scale: int) -> None:
    zone, begin, end = (np.array([one[at] for one in found], dtype=np.int64) for at in range(3))
    begin, end = begin * scale, end * scale
    together, of = unions(zone, begin, end)
    for one in range(4):
        mine = zone == one
        assert np.array_equal(together[of == one], union(begin[mine], end[mine]))
