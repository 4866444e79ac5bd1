"""Arrays in a GPU's memory, of any library with ``__cuda_array_interface__`` (CuPy, Numba, JAX).

The stream is that of the interface's version 3: the one in which the library computes. The runtime reads the array
after the work queued in that stream, and later work in it sees the result; no call waits for a GPU.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np

from ringtune import native, session
from ringtune.errors import InvalidArgument
from ringtune.operations import Device

_LEGACY_DEFAULT = 1  # the stream that all of CUDA's ordinary streams wait for


def is_on_gpu(array: Any) -> bool:
    """Return whether an object is an array in a GPU's memory.

    Raises:
        InvalidArgument: It is, but without ``__cuda_array_interface__``.
    """
    if hasattr(array, "__cuda_array_interface__"):
        return True
    kind = getattr(array, "__dlpack_device__", None)
    if kind is not None and int(kind()[0]) == 2:  # kDLCUDA
        raise InvalidArgument(
            f"a {type(array).__name__} on a GPU has no __cuda_array_interface__: hand over cupy.from_dlpack(array), "
            "which shares its memory"
        )
    return False


def address(array: Any) -> int:
    """Return where the array's memory begins."""
    return int(array.__cuda_array_interface__["data"][0])


def is_contiguous(array: Any) -> bool:
    """Return whether its elements are contiguous."""
    return array.__cuda_array_interface__.get("strides") is None


def is_read_only(array: Any) -> bool:
    """Return whether its values must not be replaced."""
    return bool(array.__cuda_array_interface__["data"][1])


def device_of(array: Any) -> Device:
    """Return on which GPU and in which stream the array is.

    Raises:
        DeviceError: There is no driver.
        InvalidArgument: The address is no GPU's.
    """
    number = getattr(getattr(array, "device", None), "id", None)
    if number is None:
        with native.translated():
            number = native.load().cuda_device_of(address(array), session.require().config.cuda_driver)
    return int(number), stream_of(array)


def stream_of(array: Any) -> int:
    """Return the stream that the array's library computes in."""
    return int(array.__cuda_array_interface__.get("stream") or _LEGACY_DEFAULT)


def empty(array: Any, shape: Any) -> Any:
    """Return fresh memory for a result, made by the array's own library on its device.

    Raises:
        InvalidArgument: The library makes none: it has neither NumPy's ``__array_function__`` (CuPy) nor an array
            namespace of the Python array API standard.
    """
    device: Any = getattr(array, "device", None)
    if hasattr(array, "__array_function__"):
        with device if hasattr(device, "__enter__") else nullcontext():
            return np.empty_like(array, order="C", shape=tuple(shape))
    if not hasattr(array, "__array_namespace__"):
        raise InvalidArgument(
            f"a {type(array).__name__} does not say how to make another one (neither __array_function__ nor "
            "__array_namespace__): use an in-place form"
        )
    namespace = array.__array_namespace__()
    return namespace.empty(tuple(shape), dtype=array.dtype, **({} if device is None else {"device": device}))


def join(ticket: int, array: Any) -> None:
    """Make the array's stream wait for the result of a finished operation."""
    session.require().join_stream(ticket, stream_of(array))


def deliver(ticket: int, array: Any) -> Any:
    """Return the result of a finished allgather or alltoall as an array like the one that was sent."""
    now = session.require()
    result = empty(array, now.gathered_shape(ticket))
    now.deliver(ticket, address(result), stream_of(array))
    return result
