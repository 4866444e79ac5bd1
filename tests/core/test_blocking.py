"""Calls that wait for what they submit tell the runtime so, and calls that go on do not. What follows of it over real
ranks: tests/native/runtime/blocking_test.cc, tests/jobs/test_fast_path.py."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import ringtune.numpy as in_numpy
import ringtune.torch as hvd
from ringtune.errors import InvalidArgument
from ringtune.torch.distributed.blocking import may_block
from tests.core.fake_native import fake_of
from tests.core.test_torch_operations import ASYNCHRONOUS, SYNCHRONOUS, Open, call

BLOCKING: dict[str, Callable[[], Any]] = {
    **{form: lambda form=form: call(form, torch.ones(2)) for form in SYNCHRONOUS},  # type: ignore[misc]
    "grouped_allreduce": lambda: hvd.grouped_allreduce([torch.ones(2), torch.ones(3)]),
    "grouped_allreduce_": lambda: hvd.grouped_allreduce_([torch.ones(2), torch.ones(3)]),
    "grouped_allgather": lambda: hvd.grouped_allgather([torch.ones(2), torch.ones(3)]),
    "allgather_object": lambda: hvd.allgather_object("x"),
    "broadcast_object": lambda: hvd.broadcast_object("x"),
    "alltoall": lambda: hvd.alltoall(torch.ones(2)),
    "reducescatter": lambda: hvd.reducescatter(torch.ones(2)),
    "grouped_reducescatter": lambda: hvd.grouped_reducescatter([torch.ones(2), torch.ones(3)]),
    "barrier": hvd.barrier,
    "numpy allreduce": lambda: in_numpy.allreduce(np.ones(2)),
    "numpy allreduce_": lambda: in_numpy.allreduce_(np.ones(2)),
    "numpy grouped_allreduce": lambda: in_numpy.grouped_allreduce([np.ones(2), np.ones(3)]),
    "numpy allgather": lambda: in_numpy.allgather(np.ones(2)),
    "numpy broadcast": lambda: in_numpy.broadcast(np.ones(2), 0),
    "numpy broadcast_": lambda: in_numpy.broadcast_(np.ones(2), 0),
    "numpy alltoall": lambda: in_numpy.alltoall(np.ones(2)),
    "numpy reducescatter": lambda: in_numpy.reducescatter(np.ones(2)),
    "numpy barrier": in_numpy.barrier,
}


@pytest.mark.parametrize("form", list(BLOCKING))
def test_a_caller_that_waits_wakes_nobody(form: str, opened: Open) -> None:
    now = opened()
    BLOCKING[form]()
    assert fake_of(now).awaited and all(fake_of(now).awaited)
    assert fake_of(now).blocking == 0


@pytest.mark.parametrize("form", [form for form in SYNCHRONOUS if form not in ("allgather",)])
def test_a_gradient_may_flow_and_the_caller_waits_all_the_same(form: str, opened: Open) -> None:
    now = opened()
    call(form, torch.ones(2).requires_grad_(not form.endswith("_")))
    assert all(fake_of(now).awaited) and fake_of(now).blocking == 0


@pytest.mark.parametrize("form", ASYNCHRONOUS)
def test_a_caller_that_goes_on_leaves_it_to_the_background(form: str, opened: Open) -> None:
    now = opened()
    call(form, torch.ones(2))
    assert not any(fake_of(now).awaited)


@pytest.mark.parametrize("form", SYNCHRONOUS)
def test_a_call_that_fails_waits_no_more(form: str, opened: Open) -> None:
    now = opened()
    with pytest.raises((InvalidArgument, RuntimeError)):
        call(form, torch.ones(2).to_sparse(), name="w")
    fake_of(now).failing.add(f"{form.removesuffix('_')}.w")
    with pytest.raises(hvd.HorovodInternalError):
        call(form, torch.ones(2), name="w")
    assert fake_of(now).blocking == 0


class Group:
    """A process group that counts."""

    def __init__(self) -> None:
        self.session = self
        self.blocking = 0
        self.seen: list[int] = []
        self.waited = 0
        self.fails = False

    def begin_blocking(self) -> None:
        self.blocking += 1

    def end_blocking(self) -> None:
        self.blocking -= 1

    def wait(self) -> None:
        self.seen.append(self.blocking)
        self.waited += 1
        if self.fails:
            raise hvd.HorovodInternalError("lost")

    @may_block
    def collective(self, tensors: list[int], opts: Any = None) -> Group:
        """Do nothing."""
        assert tensors == [1]
        self.seen.append(self.blocking)
        return self


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("asynchronously", [False, True, None])
def test_options_of_a_process_group_say_who_waits(asynchronously: bool | None, named: bool) -> None:
    group, opts = Group(), SimpleNamespace(asyncOp=asynchronously)
    if asynchronously is None:  # of a torch that says nothing, or no options at all
        opts = SimpleNamespace() if named else None
    found = group.collective([1], opts=opts) if named else group.collective([1], opts)
    assert found is group
    assert group.waited == (asynchronously is False)
    assert group.seen == ([1, 1] if asynchronously is False else [0])
    assert group.blocking == 0
    assert group.collective([1]) is group and group.seen[-1] == 0


def test_a_blocking_collective_that_fails_raises_and_blocks_no_more() -> None:
    group = Group()
    group.fails = True
    with pytest.raises(hvd.HorovodInternalError):
        group.collective([1], SimpleNamespace(asyncOp=False))
    assert group.blocking == 0
