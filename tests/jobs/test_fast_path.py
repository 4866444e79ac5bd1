"""The fast path of repeated calls over real ranks: no Python on it, and nothing different when a call is not alike."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ringtune.torch as hvd
from ringtune.timeline.reading.reader import read
from ringtune.timeline.vocabulary import Stage
from ringtune.torch import asynchronous, persistent
from tests.jobs.cases import fast_path as fast_path_cases
from tests.jobs.cases import fast_path_kinds as fast_path_kinds_cases
from tests.jobs.cases import fast_path_outputs as fast_path_outputs_cases
from tests.jobs.launching import LOST_WITHIN_S, STARVED_S, Job, variables

GetJob = Callable[..., Job]
FORMS = pytest.mark.parametrize("form", ["blocking", "asynchronous", "grouped"])
QUICK = [
    "allreduce_",
    "allreduce_async_",
    "grouped_allreduce_async_",
    "synchronize",
    *fast_path_kinds_cases.CALLS,
    "barrier",
]


def test_this_torch_has_a_short_path() -> None:
    assert persistent.make_path() is not None


def test_an_older_torch_keeps_the_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(persistent.torch.Tensor, "__dlpack_c_exchange_api__")
    assert persistent.make_path() is None


@pytest.mark.parametrize("name", QUICK)
def test_it_looks_like_the_function_behind_it(name: str) -> None:
    call = getattr(hvd, name)
    behind = call.__wrapped__
    assert inspect.isfunction(behind)
    assert inspect.signature(call) == inspect.signature(behind)
    for attribute in ("__name__", "__qualname__", "__module__", "__doc__"):
        assert getattr(call, attribute) == getattr(behind, attribute)
    assert pickle.loads(pickle.dumps(call)) is call
    assert name in repr(call)
    assert callable(call)


def test_as_a_class_attribute_it_is_a_method() -> None:
    class Holder:
        reduce = asynchronous.allreduce_

    assert Holder.reduce is asynchronous.allreduce_
    assert inspect.ismethod(Holder().reduce)


@pytest.mark.parametrize("size", [1, 2, 3], scope="module")
@pytest.mark.parametrize("form", ["blocking", "asynchronous", "positional"])
def test_repeated_calls_enter_no_python(form: str, size: int, job: GetJob) -> None:
    job(size).run(fast_path_cases.alike, form=form)


@pytest.mark.parametrize("size", [1, 2, 3], scope="module")
@pytest.mark.parametrize("what", list(fast_path_outputs_cases.NEW))
def test_tensors_are_reduced_into_new_ones(what: str, size: int, job: GetJob) -> None:
    for entered in job(size).run(fast_path_outputs_cases.into_new, what=what):
        assert (entered == []) == (what in fast_path_outputs_cases.SHORT), entered
        assert ("start_allreduce" in entered) == (what in fast_path_outputs_cases.LONG), entered  # others: by a copy


@pytest.mark.parametrize("size", [1, 2, 3], scope="module")
@pytest.mark.parametrize("what", list(fast_path_outputs_cases.KEPT))
def test_large_results_that_are_held_stay_as_they_are(what: str, size: int, job: GetJob) -> None:
    job(size).run(fast_path_outputs_cases.kept, what=what)


def test_a_caller_that_is_interrupted_before_it_waits_holds_nobody_up(job: GetJob) -> None:
    job(2).run(fast_path_outputs_cases.stopped_before_the_wait, name="stopped")


@pytest.mark.parametrize("what", fast_path_cases.UNLIKE)
def test_a_call_that_differs_goes_the_long_way(what: str, job: GetJob) -> None:
    for entered in job(2).run(fast_path_cases.unlike, what=what):
        assert "allreduce_" in entered


@pytest.mark.parametrize("what", ["parameter", "part of a storage"])
def test_a_call_that_only_looks_different_does_not(what: str, job: GetJob) -> None:
    assert job(2).run(fast_path_cases.still_alike, what=what) == [[], []]


def test_what_is_refused_is_refused_in_the_same_words(job: GetJob) -> None:
    for messages in job(2).run(fast_path_cases.refused):
        for message, expected in zip(
            messages,
            [
                "TypeError: allreduce_() got an unexpected keyword argument 'colour'",
                "TypeError: allreduce_() got multiple values for argument 'name'",
                "TypeError: allreduce_() missing 1 required positional argument: 'tensor'",
                "InvalidArgument: allreduce_: tensor is of layout torch.sparse_coo",
                "InvalidArgument: allreduce_: tensor of shape [4] is on meta",
                "InvalidArgument: allreduce_: op=99: expected one of",
                "InvalidArgument: Handle 1000000000000000000000000000000 was not created",
                "InvalidArgument: Handle 5 was not created or has been cleared.",
                "TypeError: synchronize() missing 1 required positional argument: 'handle'",
            ],
            strict=True,
        ):
            assert message.startswith(expected)


def test_a_name_in_flight_is_refused(job: GetJob) -> None:
    first, second = job(2).run(fast_path_cases.in_flight_twice)
    assert [message.split(":")[0] for message in first] == ["Duplicate tensor name 'allreduce.twice'"] * 2
    assert second == []


def test_ranks_that_disagree_are_told(job: GetJob) -> None:
    first, second = job(2).run(fast_path_cases.disagree)
    assert first == second
    assert "allreduce.disagree" in first


@FORMS
def test_other_threads_run_while_a_rank_waits(form: str, job: GetJob, tmp_path: Path) -> None:
    assert job(2).run(fast_path_cases.threads_run_meanwhile, form=form, folder=str(tmp_path))[0] > 20


@FORMS
def test_an_interrupt_ends_the_wait_alone(form: str, fresh: GetJob, tmp_path: Path) -> None:
    first, second = fresh(2).run(fast_path_cases.interrupted, form=form, folder=str(tmp_path))
    assert first["kind"] == "KeyboardInterrupt"
    assert first["after_s"] < 0.7 + STARVED_S
    assert first["result"] == second["result"] == [2.0] * 4


def test_every_call_is_counted_and_recorded(job: GetJob, tmp_path: Path) -> None:
    for found in job(2).run(fast_path_cases.counted, folder=str(tmp_path)):
        assert (found["collectives"], found["bytes"]) == (50, 50 * 32)
        assert min(found["communicate_ns"], found["negotiate_ns"], found["wait_ns"]) > 0
        spans = read(found["timeline"]).spans
        named = spans.take(np.array(["counted" in tensor for tensor in spans.tensor_texts()]))
        for stage in (Stage.NEGOTIATE, Stage.QUEUE, Stage.COMMUNICATE, Stage.WAIT):
            assert len(named.of_stage(stage)) == 10, stage


def test_shutdown_and_init(fresh: GetJob) -> None:
    assert fresh(2).run(fast_path_cases.again_after_shutdown) == [["NotInitialized"] * 4] * 2


def test_process_sets_that_come_and_go(fresh: GetJob) -> None:
    environ = variables(3) | {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}
    assert fresh(3, environ=environ).run(fast_path_cases.sets_come_and_go) == [["TypeError"] * 4] * 3


@pytest.mark.parametrize(("victim", "form"), [(0, "blocking"), (1, "blocking"), (1, "grouped")])
def test_a_killed_rank_is_known_in_two_seconds(victim: int, form: str, fresh: GetJob) -> None:
    found = fresh(2).attempt(fast_path_cases.killed, victim=victim, form=form)
    (report,) = found[1 - victim]
    assert report["kind"] == "PeerLost"
    assert report["after_s"] < LOST_WITHIN_S


@FORMS
def test_threads_share_it(form: str, job: GetJob) -> None:
    assert job(2).run(fast_path_cases.many_threads, form=form) == [3, 3]


def test_gradients_take_it_from_the_second_step_on(job: GetJob) -> None:
    for steps in job(2).run(fast_path_cases.gradients):
        assert steps[0].count("_submit") == 2
        for number in (4, 5):  # not contiguous
            assert steps[number].count("_start_dense") == 1
        for number in (1, 2, 3, 6, 7):
            assert steps[number] == ["hook", "start"] * 2, number
