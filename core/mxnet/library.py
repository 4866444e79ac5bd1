"""MXNet as the native runtime uses it: arrays by their handles, and its engine."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, check_call

from ringtune import native
from ringtune.common.argument_checks import refuse
from ringtune.common.dtypes import NUMBERS, check_reduced
from ringtune.errors import InvalidArgument, NotSupported

_BFLOAT16 = np.dtype([("bfloat16", np.uint16)])
"""What MXNet takes for bfloat16."""


@functools.cache
def engine() -> Any:
    """Return the native module, which has been given MXNet's functions.

    Raises:
        InvalidArgument: MXNet's library lacks one.
    """
    loaded = native.load()
    with native.translated():
        loaded.use_mxnet(_LIB._handle)
    return loaded


def handles_of(arrays: Sequence[Any]) -> list[int]:
    """Return the addresses by which MXNet's C API knows arrays."""
    return [one.handle.value for one in arrays]


def push(plan: str, inputs: Sequence[Any], outputs: Sequence[Any], priority: int) -> None:
    """Put collectives into MXNet's engine, which runs them when their arrays are ready; returns at once.

    Args:
        plan: See `ringtune.common.call_plan`.
        inputs: An array for each name.
        outputs: Likewise; the input itself where it is done in place.
        priority: For the engine.

    Raises:
        InvalidArgument: An array does not travel.
        MXNetError: It has failed, where the engine runs everything at once (``MXNET_ENGINE_TYPE=NaiveEngine``).
    """
    with native.translated():
        failure = engine().push_to_mxnet(plan, handles_of(inputs), handles_of(outputs), priority)
    if failure:
        raise mx.base.MXNetError(failure)


def end_step_after(arrays: Sequence[Any]) -> None:
    """End a step of the training once all that was asked for so far has written these arrays."""
    with native.translated():
        engine().push_step_to_mxnet(handles_of(arrays))


def dtype_name(array: Any) -> str:
    """Return the name of an array's dtype."""
    dtype = np.dtype(array.dtype)
    return "bfloat16" if dtype == _BFLOAT16 else dtype.name


def check_array(value: Any, what: str) -> None:
    """Refuse what does not travel.

    Raises:
        InvalidArgument: It is no array of MXNet, or of a dtype that does not travel.
        NotSupported: It is sparse, or on a GPU.
    """
    if not isinstance(value, mx.nd.NDArray):
        refuse(what, value, "an array of MXNet (mx.nd.array makes one)")
    if value.stype != "default":
        raise NotSupported(f"{what} is sparse ({value.stype}): make it dense by tostype('default')")
    if not value.context.device_type.startswith("cpu"):
        raise NotSupported(f"{what} is on {value.context}: copy it by as_in_context(mx.cpu())")
    if dtype_name(value) not in NUMBERS:
        raise InvalidArgument(f"{what}: dtype {value.dtype} is not supported; supported: {', '.join(NUMBERS)}")


def check_reduced_array(value: Any, what: str) -> None:
    """Refuse what is not reduced; raises as `check_array`."""
    check_array(value, what)
    check_reduced(dtype_name(value), what)


def empty_like(array: Any, rows: int | None = None) -> Any:
    """Return a new array of the same kind, shape and dtype, but for the number of rows if that is given."""
    shape = array.shape if rows is None else (rows, *array.shape[1:])
    made = mx.nd.NDArray(mx.nd.ndarray._new_alloc_handle(shape, array.context, False, array.dtype))
    return _same_kind(made, array)


def _same_kind(made: Any, array: Any) -> Any:
    return made.as_np_ndarray() if isinstance(array, mx.np.ndarray) else made


def view_of(array: Any) -> np.ndarray[Any, Any]:
    """Return an array's memory as NumPy sees it, once its values are there; bfloat16 as uint16.

    Raises:
        MXNetError: What computes it has failed.
    """
    array.wait_to_read()
    dtype = np.dtype(np.uint16) if dtype_name(array) == "bfloat16" else np.dtype(array.dtype)
    address = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(address)))
    count = int(np.prod(array.shape))
    if count == 0 or address.value is None:
        return np.empty(array.shape, dtype)
    memory = np.asarray((ctypes.c_ubyte * (count * dtype.itemsize)).from_address(address.value))
    found: np.ndarray[Any, Any] = memory.view(dtype).reshape(array.shape)
    return found


def array_of(values: np.ndarray[Any, Any], like: Any) -> Any:
    """Return an array of MXNet with these values, of another's kind and dtype."""
    made = mx.nd.NDArray(mx.nd.ndarray._new_alloc_handle(values.shape, like.context, False, like.dtype))
    if values.size:
        view_of(made)[...] = values
    return _same_kind(made, like)
