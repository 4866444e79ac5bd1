"""`ringtune.tensorflow`: Horovod's collectives on TensorFlow's tensors over real ranks, exactly."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("tensorflow", reason="make test-frameworks runs this where TensorFlow is installed")

from tests.frameworks import tensorflow_cases as cases
from tests.frameworks import tensorflow_function_cases as function_cases
from tests.jobs.launching import Job

FRONT = "tensorflow"
GetJob = Callable[..., Job]

REDUCED = ["uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
MOVED = [*REDUCED, "uint16", "uint32", "uint64", "bool", "complex64", "complex128"]
MODES = pytest.mark.parametrize("traced", [False, True], ids=["eager", "function"])


@MODES
@pytest.mark.parametrize("op", list(cases.OPS))
@pytest.mark.parametrize("dtype", REDUCED)
def test_every_dtype_is_reduced_by_every_operation(dtype: str, op: str, traced: bool, job: GetJob) -> None:
    job().run(cases.allreduced, dtype=dtype, op=op, traced=traced)


@MODES
@pytest.mark.parametrize("dtype", MOVED)
def test_every_dtype_is_gathered_broadcast_and_exchanged(dtype: str, traced: bool, job: GetJob) -> None:
    job().run(cases.moved, dtype=dtype, traced=traced)


@MODES
@pytest.mark.parametrize("dtype", ["int32", "int64", "float16", "bfloat16", "float32", "float64"])
def test_every_dtype_is_scattered(dtype: str, traced: bool, job: GetJob) -> None:
    job().run(cases.scattered, dtype=dtype, traced=traced)


@MODES
def test_three_ranks(traced: bool, job: GetJob) -> None:
    three = job(3)
    three.run(cases.allreduced, dtype="float32", op="Average", traced=traced)
    three.run(cases.moved, dtype="float32", traced=traced)
    three.run(cases.scattered, dtype="float32", traced=traced)
    three.run(cases.gradients, traced=traced)


@MODES
def test_groups_of_any_dtypes(traced: bool, job: GetJob) -> None:
    job().run(cases.grouped, traced=traced)


@MODES
def test_slices_keep_their_own_shapes(traced: bool, job: GetJob) -> None:
    job().run(cases.sparse, traced=traced)


@MODES
def test_factors_have_double_precision(traced: bool, job: GetJob) -> None:
    job().run(cases.factors, traced=traced)


@MODES
def test_adasum_of_a_group(traced: bool, job: GetJob) -> None:
    job().run(cases.adasum_of_a_group, traced=traced)


@MODES
def test_gradients_of_every_collective(traced: bool, job: GetJob) -> None:
    job().run(cases.gradients, traced=traced)


def test_hundreds_of_ops_in_any_order_do_not_deadlock(job: GetJob) -> None:
    job().run(function_cases.hundreds_in_any_order)


def test_names_agree_however_a_function_was_traced(job: GetJob) -> None:
    job().run(function_cases.names_agree_after_retracing)


def test_a_function_that_is_called_twice(job: GetJob) -> None:
    job().run(function_cases.function_called_twice)


def test_what_makes_no_sense_is_refused_by_class_and_in_words(job: GetJob) -> None:
    expected = {
        "shape": ("FailedPreconditionError", "shape [2] on rank 0; shape [3] on rank 1"),
        "shape in a function": ("FailedPreconditionError", "shape [2] on rank 0; shape [3] on rank 1"),
        "dtype": ("FailedPreconditionError", "t.dtype"),
        "root": ("FailedPreconditionError", "t.root"),
        "kind": ("FailedPreconditionError", "allreduce.k"),
        "splits": ("InvalidArgumentError", "splits"),
        "scalar allgather": ("InvalidArgumentError", "at least one"),
        "string": ("InvalidArgument", "dtype string does not travel"),
        "complex": ("InvalidArgument", "complex128 is not reduced"),
        "op and average": ("InvalidArgument", "supersedes average"),
        "no such op": ("InvalidArgument", "expected one of Average"),
        "no such root": ("InvalidArgument", "invalid root rank 99"),
        "scatter by Max": ("InvalidArgument", "only supports AVERAGE and SUM"),
        "compression": ("InvalidArgument", "hvd.Compression.none"),
        "unregistered set": ("TypeError", "is not registered"),
        "global variables": ("RuntimeError", "broadcast_variables"),
        "jit": ("InvalidArgumentError", "trace this function with jit_compile=False"),
        "jit within": ("InvalidArgumentError", "trace this function with jit_compile=False"),
    }
    for said in job().run(cases.refused):
        for name, (kind, words) in expected.items():
            assert said[name][0] == kind and words in said[name][1], (name, said[name])


def test_a_name_is_in_flight_once(job: GetJob) -> None:
    for kind, text in job().run(function_cases.duplicate_name):
        assert kind == "InvalidArgumentError" and "allreduce.twice" in text


def test_nothing_works_before_init(fresh: GetJob) -> None:
    [said] = fresh(1).run(cases.without_session)
    assert said[-1] == "-1" and len(said) == 4
    assert all("use hvd.init()" in one for one in said[:3])


@pytest.mark.parametrize("size", [2, 3])
def test_process_sets(size: int, job: GetJob) -> None:
    job(size).run(cases.process_sets)


def test_ranks_join_when_they_are_through(job: GetJob) -> None:
    assert job().run(cases.joined) == [1, 1]


@pytest.mark.parametrize("name", ["none", "fp16", "bf16", "own"])
def test_compression(name: str, job: GetJob) -> None:
    job().run(cases.compressed, name=name)


def test_variables_objects_and_figures(job: GetJob) -> None:
    job().run(cases.states)
