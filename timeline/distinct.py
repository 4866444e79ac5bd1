"""Distinct values of columns, as `numpy.unique` gives them, without sorting where the values lie close together.

Ranks, stages, batches, steps and codes of texts count from a small number upwards, so that a table over their range is
not much larger than the column, and filling it costs one pass where sorting costs many.

Notation: n = number of rows, d = number of distinct values or rows; every column holds whole numbers and has length n.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.integer[Any] | np.bool_]
Places = NDArray[np.int64]

_RANGE_OF_ROWS = 4
"""A table over at most this many values a row is faster than sorting (measured with 10^3 to 10^7 rows)."""

_RANGE_AT_LEAST = 1 << 12
"""A table of this many values costs nothing, however few rows there are."""

_PAGE_BITS = 16
"""Values that lie in a few places far from each other (batches of groups) are numbered by pages of this size."""


def distinct(values: Column) -> Places:
    """Return the distinct values in order (d)."""
    fresh = values[1:] != values[:-1]
    if 2 * np.count_nonzero(fresh) < len(values):  # the ranks of a trace stand one behind the other
        values = values[np.append(True, fresh)]
    table = _Table.over(values)
    return np.unique(values).astype(np.int64) if table is None else table.values()


def distinct_numbers(values: Column) -> tuple[Places, Places]:
    """Return the distinct values in order (d), and for every row the number of its value among them (n)."""
    table = _Table.over(values)
    if table is None:
        found, place = np.unique(values, return_inverse=True)
        return found.astype(np.int64), place.astype(np.int64)
    return table.values(), table.numbers()


def numbered_rows(*columns: Column) -> tuple[Places, Places]:
    """Number the distinct rows of several columns, in the order of the first column, then of the next one.

    Returns:
        For every distinct row the first place that has its values (d), and for every row the number of its values (n).
    """
    rows = columns[0]
    for column in columns[1:]:
        inner = _close(column)
        rows = _close(rows) * (int(inner.max(initial=0)) + 1) + inner
    _, place = distinct_numbers(rows)
    first = np.empty(int(place.max(initial=-1)) + 1, dtype=np.int64)
    first[place[::-1]] = np.arange(len(place) - 1, -1, -1)  # of equal numbers the last one written stays
    return first, place


def places_in(known: Column, values: Column) -> Places:
    """Return for every row the place of its value among distinct known ones in order; -1 where it is none of them."""
    if not len(known):
        return np.full(len(values), -1, dtype=np.int64)
    low, size = int(known[0]), int(known[-1]) - int(known[0]) + 1
    if size > max(_RANGE_AT_LEAST, _RANGE_OF_ROWS * (len(known) + len(values))):
        at = np.minimum(np.searchsorted(known, values), len(known) - 1)
        return np.where(known[at] == values, at, -1)
    table = np.full(size + 2, -1, dtype=np.int64)  # smaller values have the first place, larger ones the last
    table[known.astype(np.int64) - (low - 1)] = np.arange(len(known))
    return table.take(values.astype(np.int64) - (low - 1), mode="clip")


def _close(values: Column) -> Places:
    """Return numbers from 0 that are in the order of the values, and close together; equal for equal values."""
    table = _Table.over(values)
    if table is None:
        return distinct_numbers(values)[1]
    few_gaps = 10 * np.count_nonzero(table.present) >= 9 * len(table.present)
    return table.keys if few_gaps else table.numbers()


@dataclass(frozen=True)
class _Table:
    """Which values of a range occur: ``keys`` are the rows' places in ``present`` (n), ``pages`` the range's pages."""

    keys: Places
    present: NDArray[np.bool_]
    low: int
    pages: Places | None

    @staticmethod
    def over(values: Column) -> _Table | None:
        """Return the table over a column, or None where it would be too large."""
        if not len(values):
            return None
        most = max(_RANGE_AT_LEAST, _RANGE_OF_ROWS * len(values))
        low, high = int(values.min()), int(values.max())
        pages = None
        if high - low < most:
            keys, size = values.astype(np.int64) - low, high - low + 1
        else:
            page = values.astype(np.int64) >> _PAGE_BITS
            pages = np.unique(page[np.append(True, page[1:] != page[:-1])])
            size = len(pages) << _PAGE_BITS
            if size > most:
                return None
            keys = np.searchsorted(pages, page) << _PAGE_BITS | values.astype(np.int64) & (1 << _PAGE_BITS) - 1
        present = np.zeros(size, dtype=np.bool_)
        present[keys] = True
        return _Table(keys, present, low, pages)

    def numbers(self) -> Places:
        """Return for every row the number of its value (n)."""
        if self.present.all():
            return self.keys
        numbers = np.cumsum(self.present, dtype=np.int32)  # half as much memory: there are not so many rows
        numbers -= 1
        return numbers[self.keys].astype(np.int64)

    def values(self) -> Places:
        """Return the values that occur, in order."""
        found = np.flatnonzero(self.present)
        if self.pages is None:
            return found + self.low
        values: Places = self.pages[found >> _PAGE_BITS] << _PAGE_BITS | found & (1 << _PAGE_BITS) - 1
        return values
