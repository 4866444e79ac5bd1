"""`ringtune.mxnet` keeps the contract of all front ends, and MXNet's own: its engine, gluon, errors."""

from __future__ import annotations

import signal
from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("mxnet", reason="MXNet is not installed; `make test-frameworks` makes an environment with it")

from tests.frameworks import mxnet_cases as cases
from tests.frameworks import mxnet_elastic_cases as elastic_cases
from tests.frameworks.contract import Contract
from tests.jobs.launching import Job

FRONT = "mxnet"
GetJob = Callable[..., Job]


class TestMxnet(Contract):
    front = FRONT
    accepted = frozenset({"no tensors"})
    lacks = frozenset({"int16", "uint16", "uint32", "uint64", "complex64", "complex128"})
    test_what_is_only_moved_is_not_reduced = None  # it has no arrays of such dtypes


def test_arrays_of_all_kinds(job: GetJob) -> None:
    job(3).run(cases.in_place)


def test_compressions_of_the_script(job: GetJob) -> None:
    job().run(cases.compressed)


def test_the_engine_puts_collectives_in_order(job: GetJob) -> None:
    job().run(cases.late)


def test_what_makes_no_sense_is_refused_in_words(job: GetJob) -> None:
    expected = {
        "numpy": "allreduce: tensor is a ndarray, expected an array of MXNet",
        "sparse": "allreduce: tensor is sparse (row_sparse): make it dense",
        "no list": "grouped_allreduce: tensors",
        "priority": "priority='high' is a str, expected a whole number",
        "params": "invalid params of type: <class 'list'>",
        "param": "broadcast_parameters: params['w']=1.0 is a float",
        "root": "invalid root rank 99",
        "prefix": "broadcast_parameters: prefix=3 is an int",
        "predivide": "gradient_predivide_factor=0: expected more than 0",
        "groups": "num_groups=-1: expected 0 or more",
        "compression": "DistributedTrainer: compression=16 is an int",
        "trainer's prefix": "DistributedTrainer: prefix=1 is an int",
        "state": "expected a dict or ParameterDict",
    }
    for said in job().run(cases.refused):
        assert {name: said[name] for name, words in expected.items() if words not in said[name]} == {}


def test_parameters_and_objects(job: GetJob) -> None:
    job().run(cases.parameters)


@pytest.mark.parametrize("options", [{}, {"num_groups": 1}, {"gradient_predivide_factor": 2.0}], ids=str)
def test_trainers_average_and_leave_the_optimizer_alone(options: dict[str, object], job: GetJob) -> None:
    job().run(cases.trainers, **options)


def test_gradients_of_all_devices_count(job: GetJob) -> None:
    job().run(cases.several_devices)


@pytest.mark.parametrize("groups", [0, 2])
def test_an_optimizer_averages_where_it_updates(groups: int, job: GetJob) -> None:
    job().run(cases.optimizer, groups=groups)


def test_a_trainer_in_a_process_set(job: GetJob) -> None:
    assert job(3).run(cases.some_ranks) == [[-2.0], [-2.0], [-2.0]]


@pytest.mark.parametrize("hybrid", [False, True], ids=["imperative", "hybrid"])
def test_training_has_the_loss_of_one_process(hybrid: bool, job: GetJob) -> None:
    """With convolutions, whose gradients oneDNN lays out in its own way."""
    [alone] = job(1).run(cases.training, hybrid=hybrid)
    assert alone[-1] < alone[0] / 2
    for size in (2, 3):
        for losses in job(size).run(cases.training, hybrid=hybrid):
            np.testing.assert_allclose(losses, alone, rtol=2e-3)


def test_each_step_of_a_trainer_is_marked(fresh: GetJob) -> None:
    for found in fresh(2).run(cases.steps, count=5):
        assert found["steps"] == 5 and found["detected"] == 0 and found["bytes"] > 0


def test_a_job_can_be_left_and_joined_again(fresh: GetJob) -> None:
    for said in fresh(2).run(cases.once_more):
        assert said == "NotInitialized: Horovod has not been initialized; use hvd.init()."


def test_a_lost_rank_is_an_error_of_mxnet_that_says_so(fresh: GetJob) -> None:
    there = fresh(2)
    there.start(elastic_cases.reduce_until_it_fails)
    there.ranks[0].line_with("reducing")
    there.ranks[1].line_with("reducing")
    there.ranks[1].signal(signal.SIGKILL)
    kind, text, ours = there.ranks[0].answer()[0]
    assert kind == "MXNetError" and "rank 1" in text and ours == "PeerLost"


def test_a_lost_rank_leaves_the_elastic_loop_of_fixed_ranks(fresh: GetJob) -> None:
    there = fresh(2)
    there.start(elastic_cases.lost)
    said = there.ranks[0].answer()[0]
    assert said.startswith("PeerLost") and "rank 1" in said


def test_errors_in_elastic_training(job: GetJob) -> None:
    for said in job().run(elastic_cases.elastic_errors):
        assert said == {"a collective": "a new try", "MXNet": "MXNetError", "the script": "ValueError"}


def test_elastic_states(job: GetJob) -> None:
    job().run(elastic_cases.states)
