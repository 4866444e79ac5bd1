"""Columns that grow at their end: appending rows neither copies nor reads the existing ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

FIRST_ROWS = 1024


class GrowingColumn:
    """A column in memory with spare room. Its space doubles when it is full, so a row is moved once or twice.

    Args:
        kind: Type of its values.
    """

    def __init__(self, kind: Any) -> None:
        self._space: NDArray[Any] = np.empty(FIRST_ROWS, dtype=kind)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def extend(self, values: NDArray[Any]) -> None:
        """Append values; earlier views keep their contents, unless the column was cut."""
        needed = self._length + len(values)
        if needed > len(self._space):
            space = np.empty(2 * needed, dtype=self._space.dtype)
            space[: self._length] = self._space[: self._length]
            self._space = space
        self._space[self._length : needed] = values
        self._length = needed

    def view(self) -> NDArray[Any]:
        """Return all values so far, without copying them."""
        found = self._space[: self._length]
        found.flags.writeable = False
        return found

    def cut(self, length: int) -> None:
        """Forget all but the first values; later values overwrite the others, in earlier views as well."""
        self._length = min(self._length, length)

    def shift(self, by: int) -> None:
        """Add a number to all values, in earlier views as well."""
        self._space[: self._length] += by
