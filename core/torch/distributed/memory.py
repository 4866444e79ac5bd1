"""The memory of the tensors of a process group: what the runtime may read, and what it may write."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from ringtune.torch.handles import DTYPES
from ringtune.torch.memory_check import check_target, check_tensor, contents, is_traced

__all__ = ["as_numbers", "contents", "reduced", "source", "sources", "target", "targets"]


def source(tensor: Any, what: str) -> torch.Tensor:
    """Return a tensor that is only read; one that a functional collective has left pending is waited for.

    Args:
        tensor: As the caller gave it.
        what: The collective, for messages.

    Raises:
        InvalidArgument: Its memory does not hold its values.
    """
    return check_tensor(_waited(tensor), f"{what}: the input")


def target(tensor: Any, what: str) -> torch.Tensor:
    """Return a tensor that a result is written to; see `source`.

    Raises:
        InvalidArgument: Nothing can be written to it: also where several of its elements share memory.
    """
    return check_target(_waited(tensor), f"{what}: the output")


def sources(tensors: Iterable[Any], what: str) -> list[torch.Tensor]:
    """Return tensors that are only read."""
    return [source(tensor, what) for tensor in tensors]


def targets(tensors: Iterable[Any], what: str) -> list[torch.Tensor]:
    """Return tensors that results are written to."""
    return [target(tensor, what) for tensor in tensors]


def reduced(tensors: Iterable[Any], what: str) -> list[torch.Tensor]:
    """Return tensors that are reduced in place: strided ones, and sparse ones that list their elements (COO)."""
    found = [_waited(tensor) for tensor in tensors]
    return [tensor if _is_listed(tensor) else check_target(tensor, f"{what}: the output") for tensor in found]


def _is_listed(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.layout is torch.sparse_coo and not is_traced(tensor)


def as_numbers(memory: torch.Tensor) -> torch.Tensor:
    """Return contiguous memory as elements that the runtime knows: as bytes where it does not know the dtype."""
    return memory if memory.dtype in DTYPES else memory.reshape(-1).view(torch.uint8)


def _waited(tensor: Any) -> Any:
    return tensor.trigger_wait() if isinstance(tensor, AsyncCollectiveTensor) else tensor
