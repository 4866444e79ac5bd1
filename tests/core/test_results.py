"""Tensors that collectives return, over a fake world: they own their memory and may be changed in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import ringtune.torch as hvd
from ringtune.session import Session
from ringtune.torch import handles
from ringtune.torch.handles import DTYPES

Open = Callable[..., Session]
MAKE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "allreduce": hvd.allreduce,
    "grouped_allreduce": lambda tensor: hvd.grouped_allreduce([tensor])[0],
    "allgather": hvd.allgather,
    "grouped_allgather": lambda tensor: hvd.grouped_allgather([tensor])[0],
    "broadcast": lambda tensor: hvd.broadcast(tensor, 0),
    "alltoall": hvd.alltoall,
    "reducescatter": lambda tensor: hvd.reducescatter(tensor, op=hvd.Sum),
}
LARGE = handles.REUSED_BYTES // 4


@pytest.mark.parametrize("count", [4, LARGE])
@pytest.mark.parametrize("what", list(MAKE))
def test_it_may_be_changed_in_place_where_gradients_flow(what: str, count: int, opened: Open) -> None:
    opened()
    tensor = torch.ones(count, requires_grad=True)
    result = MAKE[what](tensor)
    result += 1
    result.mul_(3)
    result.sum().backward()
    assert tensor.grad is not None
    assert tensor.grad.unique().tolist() == [3.0]


@pytest.mark.parametrize("dtype", list(DTYPES), ids=str)
@pytest.mark.parametrize("shape", [(LARGE,), (2, 3, LARGE // 4), (LARGE * 4, 1)], ids=str)
def test_a_large_one_has_dtype_and_shape(shape: tuple[int, ...], dtype: torch.dtype, opened: Open) -> None:
    opened()
    like = torch.zeros(1, dtype=dtype)
    result = handles.new_result(like, shape)
    assert tuple(result.shape) == shape and result.dtype == dtype
    assert result.is_contiguous() and not result._is_view() and not result.requires_grad
    result.fill_(1)
    assert bool((result == 1).all())


@pytest.mark.parametrize("shape", [(0,), (3, 0), ()], ids=str)
def test_a_small_one_too(shape: tuple[int, ...], opened: Open) -> None:
    opened()
    result: Any = handles.new_result(torch.zeros(1, dtype=torch.bfloat16), shape)
    assert tuple(result.shape) == shape and result.dtype == torch.bfloat16
