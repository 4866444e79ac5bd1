"""NumPy arrays as the runtime sees them: an address, a shape and the number of a dtype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ringtune import session
from ringtune.errors import InvalidArgument

Array = np.ndarray[Any, Any]

DTYPES = {
    "uint8": 0,
    "int8": 1,
    "int16": 2,
    "int32": 3,
    "int64": 4,
    "float16": 5,
    "bfloat16": 6,
    "float32": 7,
    "float64": 8,
    "bool": 9,
}
"""Numbers of ``native/base/dtype.h`` by NumPy's names; bfloat16 is that of the package ml_dtypes."""


@dataclass(frozen=True)
class Buffers:
    """Memory of one operation; the runtime reads and writes contiguous arrays of the machine's byte order.

    Attributes:
        number: Number of the dtype.
        source: What this rank contributes.
        target: Where the result comes.
        output: Where it belongs: the target itself, or an array that it is copied into at the end.
    """

    number: int
    source: Array
    target: Array
    output: Array

    def settle(self) -> Array:
        """Return the output of a finished operation."""
        if self.target is not self.output:
            self.output[...] = self.target
        return self.output


def number_of_dtype(array: Any, what: str) -> int:
    """Return the runtime's number of an array's dtype.

    Raises:
        InvalidArgument: It is no array, or of a dtype that cannot travel.
    """
    if not isinstance(array, np.ndarray):
        raise InvalidArgument(f"{what}: got a {type(array).__name__}, expected a NumPy array (numpy.asarray makes one)")
    number = DTYPES.get(array.dtype.name)
    if number is None:
        raise InvalidArgument(f"{what}: dtype {array.dtype} is not supported; supported: {', '.join(DTYPES)}")
    return number


def readable(array: Array) -> Array:
    """Return the array as the runtime can read it: itself, or a copy."""
    if array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative:
        return array
    return np.array(array, dtype=array.dtype.newbyteorder("="), order="C", copy=True)


def like(array: Array) -> Array:
    """Return fresh memory for a result of the same shape and dtype."""
    return np.empty(array.shape, dtype=array.dtype.newbyteorder("="))


def out_of_place(array: Any, what: str) -> Buffers:
    """Return the buffers of an operation that leaves its array as it is.

    Raises:
        InvalidArgument: See `number_of_dtype`.
    """
    number, target = number_of_dtype(array, what), like(array)
    return Buffers(number, readable(array), target, target)


def in_place(array: Any, what: str) -> Buffers:
    """Return the buffers of an operation whose result replaces the array's values.

    Raises:
        InvalidArgument: See `number_of_dtype`; or the array is read-only.
    """
    number = number_of_dtype(array, what)
    if not array.flags.writeable:
        raise InvalidArgument(f"{what}: the array is read-only, and its values are to be replaced")
    memory = readable(array)
    return Buffers(number, memory, memory, array)


def address(array: Array) -> int:
    """Return where the array's memory begins."""
    return int(array.__array_interface__["data"][0])


def gathered(ticket: int, dtype: np.dtype[Any]) -> Array:
    """Return the result of a finished allgather or alltoall as an array that owns its memory."""
    shape, buffer = session.require().take_gathered(ticket)
    if 0 in shape:
        return np.empty(shape, dtype=dtype)
    found: Array = buffer.view(dtype.newbyteorder("=")).reshape(shape)
    return found
