"""Wrong arguments of every public function, over a fake world: function and argument are named, nothing runs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ringtune.numpy as arrays
import ringtune.torch as hvd
from ringtune.common.argument_checks import overlaps
from ringtune.errors import InvalidArgument
from ringtune.session import Session
from tests.core.fake_native import fake_of
from tests.jobs.cases.misuse import WRONG, calls, right

Open = Callable[..., Session]


@pytest.mark.parametrize("front", [hvd, arrays], ids=["torch", "numpy"])
def test_every_wrong_argument_is_named(front: Any, opened: Open) -> None:
    """Each argument of each function in turn is given each value that makes no sense for it."""
    now = opened(2)
    tried = 0
    for name, function in calls(front):
        for argument in inspect.signature(function).parameters:
            for value in WRONG.get(argument, ()):
                options = {**right(front, function), argument: value}
                before = len(fake_of(now).calls)
                try:
                    function(**options)
                    said = "nothing"
                except (InvalidArgument, TypeError) as error:
                    said = str(error)
                assert re.search(rf"{name.rstrip('_')}\w*: .*{argument.rstrip('s')}", said), (
                    name,
                    argument,
                    value,
                    said,
                )
                assert "incompatible function arguments" not in said and "std::" not in said, said
                assert len(fake_of(now).calls) == before, f"{name} has begun something"
                tried += 1
    assert tried > 300


@pytest.mark.parametrize("front", [hvd, arrays], ids=["torch", "numpy"])
def test_what_is_right_is_taken(front: Any, opened: Open) -> None:
    opened(2)
    for name, function in calls(front):
        result = function(**right(front, function))
        if "async" in name and name != "sparse_allreduce_async":
            front.synchronize(result)


@pytest.mark.parametrize("front", [hvd, arrays], ids=["torch", "numpy"])
@pytest.mark.parametrize("handle", [None, 1.5, "7", [1], True, np.ones(1)])
def test_what_is_no_handle_is_said_to_be_none(front: Any, handle: Any, opened: Open) -> None:
    opened()
    for function in (front.synchronize, front.poll):
        with pytest.raises(InvalidArgument, match=rf"{function.__name__}: handle.* expected the handle"):
            function(handle)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7)), max_size=4))
def test_elements_that_share_memory_are_found(dimensions: list[tuple[int, int]]) -> None:
    """Against the offsets of all elements, one by one."""
    shape, strides = [size for size, _ in dimensions], [stride for _, stride in dimensions]
    offsets = [sum(i * s for i, s in zip(index, strides, strict=True)) for index in np.ndindex(*shape)]
    assert overlaps(shape, strides) == (len(set(offsets)) < len(offsets))


def test_arrays_that_cannot_be_written_are_refused_in_place(opened: Open) -> None:
    opened()
    twice = np.lib.stride_tricks.as_strided(np.zeros(8), (4, 2), (8, 8))
    part = np.lib.stride_tricks.as_strided(np.zeros(8), (4,), (4,))
    for array in (twice, part):
        with pytest.raises(InvalidArgument, match="share memory"):
            arrays.allreduce_(array)
    assert arrays.allreduce(np.broadcast_to(np.ones(1), 3)).tolist() == [1, 1, 1]
    with pytest.raises(InvalidArgument, match="masked array"):
        arrays.allreduce(np.ma.masked_array([1.0, 2.0], [False, True]))


@pytest.mark.parametrize(
    "params", [[(1, 2, 3)], {"a": 5}, {"a": torch.ones(1, dtype=torch.complex32)}, {1: torch.ones(1)}]
)
def test_parameters_are_looked_at_before_any_is_sent(params: Any, opened: Open) -> None:
    now = opened(2)
    whole = {"0": torch.ones(1), **params} if isinstance(params, dict) else [torch.ones(1), *params]
    if isinstance(params, dict) and 1 in params:
        whole = dict(params)
    with pytest.raises(InvalidArgument, match="broadcast_parameters"):
        hvd.broadcast_parameters(whole, 0)
    assert not fake_of(now).calls
