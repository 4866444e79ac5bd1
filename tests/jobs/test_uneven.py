"""Gradients that not every rank has: the optimizer steps as one process on the joined data, or says why not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.jobs.cases import gradient as single
from tests.jobs.cases import uneven as cases
from tests.jobs.conftest import Pool
from tests.jobs.launching import Job

GetJob = Callable[..., Job]

_ACTIONS = ["freeze", "thaw", "prune", "add", "replace", "copy", "rewrap", "rewrap and keep"]


_REMEMBERED = ["freeze", "thaw", "add", "copy", "rewrap"]
"""What can be done under a compression that remembers the shapes of the parameters."""
_TOUCHES = ["drop", "replace", "change", "move"]


@st.composite
def programs(draw: Any, size: int, *, in_set: bool = False) -> cases.Program:
    compression = draw(st.sampled_from(["none", "none", "topk", "powersgd"]))
    options = {"named": draw(st.booleans()), "groups": draw(st.sampled_from([None, 1, 2]))}
    ranks = st.lists(st.integers(0, size - 1), min_size=1, max_size=size, unique=True)
    everyone = st.just(list(range(size)))
    actions = _ACTIONS if compression == "none" else _REMEMBERED
    action = st.tuples(st.sampled_from(actions), st.integers(0, 5), st.one_of(everyone, ranks))
    by_rank = st.lists(
        st.lists(st.sampled_from([True, True, False]), min_size=6, max_size=6), min_size=size, max_size=size
    )
    touch = st.tuples(st.sampled_from(_TOUCHES), st.integers(0, 5), st.integers(0, size - 1))
    # As many backward passes as there are in the step before, as a rule.
    passes = draw(st.lists(st.sampled_from([0, 0, 0, 1, 2]), min_size=1, max_size=14))
    steps = []
    for wanted in passes:
        count = wanted or (len(steps[-1].used) if steps else 1)
        used = st.lists(by_rank, min_size=count, max_size=count)
        steps.append(draw(st.builds(cases.Step, st.lists(action, max_size=2), used, st.lists(touch, max_size=2))))
    members = draw(st.sampled_from([[0, 1], [0, 2], [1, 2], [2]])) if in_set else []
    return cases.Program(options, draw(st.booleans()), steps, compression, members)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("examples", [6, pytest.param(40, marks=pytest.mark.long)])
def test_any_training_is_that_of_one_process(examples: int, size: int, job: GetJob, pool: Pool) -> None:
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(programs(size))
    def check(program: cases.Program) -> None:
        try:
            first, *others = job(size).run(cases.train, timeout_s=20, program=program)
        except AssertionError:
            pool.discard()  # the next program, a shorter one as a rule, needs ranks that are not stuck in this one
            raise
        _assert_alike(program, first, others)

    check()


def _assert_alike(program: cases.Program, first: list[torch.Tensor], others: list[list[torch.Tensor]]) -> None:
    """All ranks end with the same bits, unless the program gave one of them a gradient of the joined data instead."""
    same = partial(torch.allclose, rtol=1e-4, atol=1e-4) if any(step.touched for step in program.steps) else torch.equal
    for other in others:
        assert all(same(mine, its) for mine, its in zip(first, other, strict=True))


def test_any_training_of_some_ranks_is_that_of_one_process(fresh: GetJob) -> None:
    started: list[Job] = []

    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(programs(3, in_set=True))
    def check(program: cases.Program) -> None:
        if not started:
            started.append(fresh(3, dynamic_process_sets=1))
        try:
            found = started[0].run(cases.train, timeout_s=20, program=program)
        except AssertionError:
            started.clear()
            raise
        first, *others = (found[rank] for rank in program.members)
        _assert_alike(program, first, others)

    check()


@pytest.mark.parametrize("op", ["Average", "Sum", "Min", "Max", "Product"])
def test_operations_leave_out_ranks_without_the_gradient(op: str, job: GetJob) -> None:
    """What a rank without a gradient contributes is neutral."""
    assert job(3).run(single.some_ranks, op=op) == [single.EXPECTED[op]] * 3


@pytest.mark.parametrize("compression", ["none", "fp16", "by hand", "topk", "powersgd"])
def test_gradients_that_some_ranks_have_are_compressed(compression: str, job: GetJob) -> None:
    assert job(2).run(single.compressed, compression=compression) == [[None, 1.5, None, 3.0]] * 2


def test_a_gradient_that_is_changed_in_flight_is_an_error(job: GetJob) -> None:
    for messages, dropped in job(2).run(single.touched_in_flight):
        for message, what in zip(messages, ["changed", "replaced", *["given other memory"] * 2], strict=True):
            assert f"'touched1' was {what} after backward" in message and "optimizer.synchronize()" in message
        assert dropped is None


@pytest.mark.parametrize("compression", list(cases.EXACT))
def test_ranks_go_on_without_one_whose_gradient_is_refused(compression: str, job: GetJob) -> None:
    first, second = job(2).run(single.refused_on_one_rank, compression=compression)
    assert "'refused' has a graph of its own" in second[0] and first[0] == ""
    assert first[1] == [pytest.approx(0.5), pytest.approx(1.5)] and second[1] == [2.0, pytest.approx(1.5)]


def test_models_of_the_same_names_train_in_sets_that_share_a_rank(fresh: GetJob) -> None:
    """A rank does not know what optimizers others have made for sets without it."""
    assert fresh(3, dynamic_process_sets=1).run(single.in_two_sets) == [[-2.0], [-3.0], [-3.0, -2.0]]


def test_copies_and_pickles_train_on(job: GetJob) -> None:
    for kinds, pickled in job(2).run(single.copied):
        assert kinds == [True, True, True]
        assert pickled == [0.5, 0.5]


def test_a_collected_optimizer_takes_its_hooks_and_flights_with_it(job: GetJob) -> None:
    assert job(2).run(single.collected) == [([1, 0], [3.0, 3.0])] * 2


def test_an_optimizer_whose_parameter_was_taken_says_so(job: GetJob) -> None:
    for message in job(2).run(single.taken):
        assert message.startswith("parameter 'taken' was given to a DistributedOptimizer later")


def test_power_sgd_refuses_a_parameter_of_another_shape(job: GetJob) -> None:
    for message in job(2).run(single.reshaped_under_compression):
        assert "is of shape [40, 30], the compression remembers [50, 30]" in message


def test_adasum_moves_what_is_thawed_or_added_on_every_rank(job: GetJob) -> None:
    first, second = job(2).run(single.adasum_thawed)
    assert first == second and first[0] != first[1]
