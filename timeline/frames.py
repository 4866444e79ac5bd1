"""Tables of results in a notebook: as HTML, and as a DataFrame of pandas where that is installed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringtune.errors import RingtuneError

SHOWN_ROWS = 20
"""Rows that a notebook shows of a table."""
Column = Sequence[Any] | NDArray[Any]


class Tabular(ABC):
    """A result that is a table: rows of named columns."""

    @abstractmethod
    def columns(self, most: int | None = None) -> Mapping[str, Column]:
        """Return the columns by name, all of one length; ``most``: of the first rows only."""

    @abstractmethod
    def row_count(self) -> int:
        """Return the number of rows."""

    def to_pandas(self) -> Any:
        """Return the table as a ``pandas.DataFrame``.

        Raises:
            RingtuneError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise RingtuneError("to_pandas() needs pandas, which is not installed: pip install pandas") from None
        return pandas.DataFrame(dict(self.columns()))

    def _repr_html_(self) -> str:
        """Return the first rows as HTML, which notebooks show in place of the object's text."""
        columns = {name: np.asarray(column).tolist() for name, column in self.columns(SHOWN_ROWS).items()}
        head = "".join(f"<th>{escape(name)}</th>" for name in columns)
        rows = "".join(
            f"<tr>{''.join(f'<td>{escape(_text(value))}</td>' for value in row)}</tr>"
            for row in zip(*columns.values(), strict=True)
        )
        more = self.row_count() - SHOWN_ROWS
        below = f"<p>and {more:,} more rows; to_pandas() gives all</p>" if more > 0 else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{below}"


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if isinstance(value, float) else str(value)
