"""Distinct values of columns: the same as numpy finds by sorting, whatever the values' range."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ringtune.timeline.distinct import distinct, distinct_numbers, numbered_rows, places_in

_SMALL = st.lists(st.integers(-3, 40), max_size=60)
_ANYWHERE = st.lists(st.integers(-(1 << 62), 1 << 62), max_size=20)
_CLUSTERS = st.lists(
    st.builds(lambda far, near: (far << 40) + near, st.integers(-2, 2), st.integers(0, 90)), max_size=60
)
_KINDS = ("int64", "int32", "uint8")


def _column(values: list[int], kind: str = "int64") -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64).astype(kind)


@given(st.one_of(_SMALL, _ANYWHERE, _CLUSTERS), st.sampled_from(_KINDS))
def test_values_are_those_that_sorting_finds(values: list[int], kind: str) -> None:
    column = _column(values, kind)
    found, first, place = np.unique(column, return_index=True, return_inverse=True)
    assert distinct(column).tolist() == found.tolist()
    assert [part.tolist() for part in distinct_numbers(column)] == [found.tolist(), place.tolist()]
    assert [part.tolist() for part in numbered_rows(column)] == [first.tolist(), place.tolist()]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-(1 << 50), 1 << 50), st.integers(-2, 2)), max_size=60))
def test_rows_are_numbered_by_the_first_column_then_the_next(rows: list[tuple[int, int, int]]) -> None:
    columns = [_column([row[at] for row in rows]) for at in range(3)]
    first, place = numbered_rows(*columns)
    in_order = sorted(set(rows))
    assert [rows[at] for at in first] == in_order
    assert first.tolist() == [rows.index(row) for row in in_order]
    assert place.tolist() == [in_order.index(row) for row in rows]


@given(st.one_of(_SMALL, _ANYWHERE, _CLUSTERS), st.one_of(_SMALL, _ANYWHERE, _CLUSTERS))
def test_places_among_known_values(known: list[int], values: list[int]) -> None:
    in_order = sorted(set(known))
    expected = [in_order.index(value) if value in in_order else -1 for value in values]
    assert places_in(_column(in_order), _column(values)).tolist() == expected


@pytest.mark.parametrize("apart", [1, 1 << 20, 1 << 45])
def test_many_rows(apart: int) -> None:
    random = np.random.default_rng(7)
    column = random.integers(0, 5000, 40_000) + apart * random.integers(0, 3, 40_000)
    found, first, place = np.unique(column, return_index=True, return_inverse=True)
    got, numbers = distinct_numbers(column)
    assert np.array_equal(got, found) and np.array_equal(numbers, place)
    assert np.array_equal(numbered_rows(column)[0], first)
