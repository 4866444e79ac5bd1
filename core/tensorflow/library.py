"""The library of ops, loaded into TensorFlow once: asynchronous kernels on the native runtime.

It is built with ringtune and knows TensorFlow by its exported C interface only (``native/frameworks/``).
"""

from __future__ import annotations

import ctypes
import functools
import warnings
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from ringtune import native
from ringtune.errors import RingtuneError
from ringtune.tensorflow.python_ops import PythonOps

_LIBRARY = "libringtune_tensorflow.so"


def ops() -> Any:
    """Return the module of Python functions that TensorFlow makes of the ops.

    Raises:
        tf.errors.InvalidArgumentError: They are wanted in a function that XLA shall compile.
        RingtuneError: See `load`.
    """
    if not tf.executing_eagerly() and control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise tf.errors.InvalidArgumentError(
            None,
            None,
            "collectives of ringtune's cannot be compiled by XLA: trace this function with jit_compile=False "
            "(tf.function, Model.compile), and let the functions that it calls be compiled (jit_compile=True)",
        )
    return load()


@functools.cache
def load() -> Any:
    """Load the library into TensorFlow, once.

    Where TensorFlow has no asynchronous kernels for others, their place is taken by calls of Python.

    Raises:
        RingtuneError: The library is not there.
    """
    runtime = native.load().__file__
    # The library takes its kernels from the runtime's module, which Python has loaded for itself only.
    ctypes.CDLL(runtime, mode=ctypes.RTLD_GLOBAL)
    path = Path(runtime).with_name(_LIBRARY)
    if not path.exists():
        raise RingtuneError(f"{path} is missing: build ringtune anew (`make setup`, or `pip install .`)")
    module = tf.load_op_library(str(path))
    fault = ctypes.CDLL(str(path)).ringtune_tensorflow_fault
    fault.restype = ctypes.c_char_p
    if text := fault():
        warnings.warn(
            f"ringtune.tensorflow: TensorFlow {tf.__version__} does not take ringtune's ops ({text.decode()}): "
            "collectives go through Python, all dense gradients of a step in one call; TensorFlow 2.13 and later do",
            stacklevel=2,
        )
        return PythonOps()
    _let_ops_run_in_any_order()
    return module


def through_python() -> bool:
    """Return whether collectives wait in Python, so that what is to be in flight together must be one op."""
    return isinstance(load(), PythonOps)


def _let_ops_run_in_any_order() -> None:
    """Keep traced functions from running collectives one after another, as they run ops with effects.

    Then no two would be in flight at once, and ranks that made them in different orders would wait for each other.
    They still all run, whether or not their results are used.
    """
    from tensorflow.python.framework import auto_control_deps

    kinds = ("Allreduce", "Reducescatter", "Allgather", "Broadcast", "Alltoall", "Ask", "EndStep")
    ours = {f"Ringtune{kind}" for kind in kinds}
    auto_control_deps.MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS |= ours
