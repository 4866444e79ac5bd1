"""NumPy arrays as the runtime sees them: an address, a shape and the number of a dtype. Arrays on GPUs likewise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ringtune import session
from ringtune.common.argument_checks import overlaps
from ringtune.common.dtypes import NUMBERS, check_reduced
from ringtune.errors import InvalidArgument
from ringtune.gpu import arrays as on_gpu
from ringtune.operations import HOST, Device

Array = np.ndarray[Any, Any]

DTYPES = NUMBERS
"""Numbers by NumPy's names; bfloat16 is that of the package ml_dtypes."""


@dataclass(frozen=True)
class Buffers:
    """Memory of one operation; the runtime reads and writes contiguous arrays of the machine's byte order.

    Attributes:
        number: Number of the dtype.
        source: What this rank contributes.
        target: Receives the result.
        output: The caller's array: the target itself, or an array that the result is copied into.
    """

    number: int
    source: Array
    target: Array
    output: Array

    def settle(self, ticket: int) -> Array:
        """Return the output of a finished operation."""
        join(ticket, self.target)
        if self.target is not self.output:
            self.output[...] = self.target
        return self.output


def number_of_dtype(array: Any, what: str, *, reduces: bool = False) -> int:
    """Return the runtime's number of an array's dtype.

    Raises:
        InvalidArgument: It is no array, or of a dtype that cannot travel, or (if ``reduces``) not be reduced.
    """
    if _is_foreign(array) and not on_gpu.is_on_gpu(array):
        raise InvalidArgument(
            f"{what}: got a {type(array).__name__}, expected a NumPy array (numpy.asarray makes one) or one on a GPU"
        )
    if isinstance(array, np.ma.MaskedArray):
        raise InvalidArgument(f"{what} is a masked array, whose mask would be lost: use array.filled(0)")
    number = DTYPES.get(getattr(array.dtype, "name", ""))
    if number is None:
        raise InvalidArgument(f"{what}: dtype {array.dtype} is not supported; supported: {', '.join(DTYPES)}")
    if reduces:
        check_reduced(array.dtype.name, what)
    return number


def _is_foreign(array: Any) -> bool:
    """Return whether an array is not NumPy's: then it is on a GPU, and of another library."""
    return not isinstance(array, np.ndarray)


def readable(array: Array) -> Array:
    """Return the array as the runtime can read it: itself, or a copy."""
    if _is_foreign(array):
        return array if on_gpu.is_contiguous(array) else array.copy()
    if array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative:
        return array
    return np.array(array, dtype=array.dtype.newbyteorder("="), order="C", copy=True)


def like(array: Array, rows: int | None = None) -> Array:
    """Return fresh memory for a result of the same dtype and shape, but for the number of rows if that is given."""
    shape = array.shape if rows is None else (rows, *array.shape[1:])
    if _is_foreign(array):
        result: Array = on_gpu.empty(array, shape)
        return result
    return np.empty(shape, dtype=array.dtype.newbyteorder("="))


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
    if on_gpu.is_read_only(array) if _is_foreign(array) else not array.flags.writeable:
        raise InvalidArgument(f"{what}: the array is read-only, and its values are to be replaced")
    if not _is_foreign(array) and overlaps((*array.shape, array.itemsize), (*array.strides, 1)):
        raise InvalidArgument(
            f"{what}: elements of the array share memory (shape {list(array.shape)}, strides {list(array.strides)}), "
            "and each is to be replaced once: use array.copy()"
        )
    memory = readable(array)
    return Buffers(number, memory, memory, array)


def address(array: Array) -> int:
    """Return where the array's memory begins."""
    if _is_foreign(array):
        return on_gpu.address(array)
    return int(array.__array_interface__["data"][0])


def device_of(array: Array) -> Device:
    """Return on which GPU and in which stream an array is."""
    return on_gpu.device_of(array) if _is_foreign(array) else HOST


def join(ticket: int, array: Array) -> None:
    """Make later work of an array's library see the result of a finished operation in it."""
    if _is_foreign(array):
        on_gpu.join(ticket, array)


def received_splits(ticket: int, array: Array) -> Array:
    """Return how many rows of a finished alltoall came from each rank."""
    return np.array(session.require().received_splits(ticket, on_gpu=_is_foreign(array)), dtype=np.int32)


def gathered(ticket: int, array: Array) -> Array:
    """Return the result of a finished allgather or alltoall, an array like the one that was sent."""
    if _is_foreign(array):
        result: Array = on_gpu.deliver(ticket, array)
        return result
    dtype = array.dtype
    shape, buffer = session.require().take_gathered(ticket)
    if 0 in shape:
        return np.empty(shape, dtype=dtype)
    found: Array = buffer.view(dtype.newbyteorder("=")).reshape(shape)
    return found
