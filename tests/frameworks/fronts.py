"""What the cases need of a framework: how its arrays are made and read, and how a function is compiled."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Front:
    """A front end.

    Attributes:
        hvd: Its module.
        array: Makes the framework's array of one of NumPy's.
        compiled: Compiles a function of arrays; equal to calling it, but for speed.
        failures: Exceptions that a failed collective raises in compiled code; their text has ringtune's.
        always: Whether it does so in eager mode too.
        values: Makes NumPy's array of one of the framework's.
    """

    hvd: Any
    array: Callable[[Any], Any]
    compiled: Callable[[Callable[..., Any]], Callable[..., Any]]
    failures: tuple[type[BaseException], ...]
    always: bool = False
    values: Callable[[Any], Any] = np.asarray

    def call(self, mode: str, function: Callable[..., Any], *arrays: Any) -> Any:
        """Return what a function of arrays gives for NumPy's, run by "eager" or "compiled" code."""
        return (self.compiled(function) if mode == "compiled" else function)(*(self.array(one) for one in arrays))


def front_of(name: str) -> Front:
    return _MAKE[name]()


def _jax() -> Front:
    import jax

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_platforms", "cpu")
    hvd = importlib.import_module("ringtune.jax")
    return Front(hvd, jax.numpy.asarray, jax.jit, (jax.errors.JaxRuntimeError,))


def _tensorflow() -> Front:
    import tensorflow as tf

    hvd = importlib.import_module("ringtune.tensorflow")

    def values(one: Any) -> Any:
        # NumPy takes no scalar of bfloat16 from the tensor itself.
        return np.asarray(one.numpy() if hasattr(one, "numpy") else one)

    return Front(hvd, tf.convert_to_tensor, tf.function, (tf.errors.OpError,), always=True, values=values)


def _mxnet() -> Front:
    """Compiled code is called while MXNet's engine still computes its arrays."""
    import mxnet as mx

    mx.util.set_np_shape(True)  # scalars and arrays without elements are arrays too
    two_bytes = np.dtype([("bfloat16", np.uint16)])

    def array(one: Any) -> Any:
        one = np.asarray(one)
        if one.dtype.name == "bfloat16":
            return mx.nd.array(one.view(np.uint16).view(two_bytes), dtype=two_bytes)
        return mx.nd.array(one, dtype=one.dtype)

    def values(one: Any) -> Any:
        found = one.asnumpy() if hasattr(one, "asnumpy") else np.asarray(one)
        return found.view(numpy_dtype("bfloat16")) if found.dtype == two_bytes else found

    def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arrays: function(*(one.copy() for one in arrays))

    hvd = importlib.import_module("ringtune.mxnet")
    return Front(hvd, array, compiled, (mx.base.MXNetError,), always=True, values=values)


_MAKE = {"jax": _jax, "mxnet": _mxnet, "tensorflow": _tensorflow}


def numpy_dtype(name: str) -> Any:
    """Return NumPy's dtype of that name, ml_dtypes' bfloat16 among them."""
    if name != "bfloat16":
        return np.dtype(name)
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)
