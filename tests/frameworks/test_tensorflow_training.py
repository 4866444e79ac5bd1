"""`ringtune.tensorflow` in training: tapes, optimizers, layers, over real ranks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="make test-frameworks runs this where TensorFlow is installed")

from tests.frameworks import tensorflow_python_cases as python_cases
from tests.frameworks import tensorflow_training_cases as cases
from tests.jobs.launching import Job

FRONT = "tensorflow"
GetJob = Callable[..., Job]

MODES = pytest.mark.parametrize("traced", [False, True], ids=["eager", "function"])


@MODES
def test_a_tape_in_every_form(traced: bool, job: GetJob) -> None:
    job().run(cases.tape, traced=traced)


def test_variables_of_one_name_are_told_apart_in_groups(job: GetJob) -> None:
    job().run(cases.same_names_in_groups)


@MODES
def test_gradients_of_local_sources_are_not_reduced(traced: bool, job: GetJob) -> None:
    job().run(cases.local_sources, traced=traced)


def test_two_tapes_in_one_function(job: GetJob) -> None:
    job().run(cases.two_tapes_in_one_function)


def test_what_makes_no_sense_is_refused_in_words(job: GetJob) -> None:
    expected = [
        "expected a tf.GradientTape",
        "gradient_predivide_factor not supported with op != Average",
        "groups=-1",
        "list of lists of variables",
        "tf.keras.layers.Layer",
        "an optimizer of Keras",
        "not supported for eager execution",
        "Adasum",
        "session must be None",
        "fused=True",
    ]
    for said in job().run(cases.refused_of_tapes):
        for words, text in zip(expected, said, strict=True):
            assert words in text


@pytest.mark.parametrize("op", ["Average", "Sum"])
def test_optimizers_of_tensorflow_1(op: str, job: GetJob) -> None:
    job().run(cases.v1_optimizer, op=op)


def test_operation_and_groups_reach_optimizers_of_keras(job: GetJob) -> None:
    job().run(cases.keras_optimizer)


@pytest.mark.parametrize("average", [False, True])
def test_gradients_of_several_passes(average: bool, job: GetJob) -> None:
    job().run(cases.v1_passes, average=average)


@MODES
def test_batch_normalisation_over_all_ranks(traced: bool, job: GetJob) -> None:
    job().run(cases.synchronized_batch_norm, traced=traced)


def test_horovod_s_own_example(job: GetJob) -> None:
    for losses in job().run(cases.horovod_example):
        assert sum(losses[-5:]) < sum(losses[:5]) / 2


@MODES
def test_a_loop_reaches_the_loss_of_one_process(traced: bool, job: GetJob) -> None:
    [alone] = job(1).run(cases.loop, traced=traced)
    assert alone[-1] < alone[0] / 2
    for size in (2, 3):
        for losses in job(size).run(cases.loop, traced=traced):
            np.testing.assert_allclose(losses, alone, rtol=2e-4)


def test_without_ops_of_its_own_it_goes_through_python(fresh: GetJob) -> None:
    for said, failure in fresh().run(python_cases.collectives):
        assert "TF_NewAsyncKernelBuilder is missing): collectives go through Python" in said
        assert failure.startswith("Mismatched ALLREDUCE tensor shapes")


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "function"])
def test_through_python_a_step_reduces_in_one_call(traced: bool, fresh: GetJob) -> None:
    assert fresh().run(python_cases.training, traced=traced) == [[2, 0], [2, 0]], "the gradients, and the step's end"


def test_through_python_it_reaches_the_loss_of_one_process(job: GetJob, fresh: GetJob) -> None:
    [alone] = job(1).run(cases.loop, traced=True)
    for losses in fresh().run(python_cases.losses):
        np.testing.assert_allclose(losses, alone, rtol=2e-4)
