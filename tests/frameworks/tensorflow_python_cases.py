"""Collectives of TensorFlow through Python, as in a version that takes no ops of others."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

import ringtune.tensorflow as hvd
from ringtune.errors import Mismatch
from ringtune.tensorflow import library
from tests.frameworks import tensorflow_cases as cases
from tests.frameworks import tensorflow_function_cases as function_cases
from tests.frameworks import tensorflow_training_cases as training_cases


def _refuse_ops() -> str:
    """Let the library find no asynchronous kernels; return what is said."""
    tell = SimpleNamespace(ringtune_tensorflow_fault=lambda: b"TF_NewAsyncKernelBuilder is missing")
    real = library.ctypes
    library.ctypes = SimpleNamespace(CDLL=lambda *args, **more: tell, RTLD_GLOBAL=0, c_char_p=None)
    library.load.cache_clear()
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            assert library.through_python()
    finally:
        library.ctypes = real
    [one] = said
    return str(one.message)


def collectives() -> tuple[str, str]:
    """Return what is said of it, and of ranks that disagree; ranks go on after that."""
    said = _refuse_ops()
    for traced in (False, True):
        for dtype in ("float32", "bfloat16", "int32"):
            cases.allreduced(dtype, "Sum", traced)
            cases.moved(dtype, traced)
            cases.scattered(dtype, traced)
        cases.grouped(traced)
        cases.sparse(traced)
        cases.gradients(traced)
    cases.factors(True)
    cases.process_sets()
    cases.joined()
    function_cases.function_called_twice()

    @tf.function
    def disagree() -> Any:
        return hvd.allreduce(tf.zeros(hvd.rank() + 1), op=hvd.Sum, name="shape")

    try:
        disagree()
    except tf.errors.OpError as error:
        failure = library_failure(error)
    return said, failure


def library_failure(error: Exception) -> str:
    """Return ringtune's error in one of TensorFlow's."""
    from ringtune.common.framework_errors import failure_of

    found = failure_of(error)
    assert isinstance(found, Mismatch) and "Traceback" not in str(found), found
    return str(found)


def training(traced: bool) -> list[int]:
    """Train as on one rank; return the numbers of calls of Python that a step of a tape has."""
    _refuse_ops()
    training_cases.tape(traced)
    training_cases.two_tapes_in_one_function()
    weights = [tf.Variable(tf.ones(3)) for _ in range(5)]

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(one**2) for one in weights])
        return hvd.DistributedGradientTape(tape).gradient(loss, weights)

    for gradient in step():
        cases.same(gradient, 2 * tf.ones(3))
    kinds = [op.type for op in step.get_concrete_function().graph.get_operations()]
    return [kinds.count("PyFunc"), kinds.count("RingtuneAllreduce")]


def losses() -> list[float]:
    """Return those of a training."""
    _refuse_ops()
    return training_cases.loop(traced=True)
