"""What a call of torch.distributed is made with, on ringtune or on Gloo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

ranks = range


class Setting:
    """What a call is made with.

    Args:
        group: Whose ranks call.
        dtype: Of the tensors.
        op: Name of the reduction.
    """

    def __init__(self, group: Any, dtype: str = "float32", op: str = "SUM") -> None:
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.op: Any = getattr(dist.ReduceOp, op)

    def numbers(self, *shape: int, more: int = 0) -> torch.Tensor:
        """Return numbers that differ by rank and by index."""
        count = int(torch.Size(shape).numel())
        found = (torch.arange(count) * 3 + self.rank + more) % 7 + (0 if self.dtype == torch.bool else 1)
        if self.dtype.is_complex:
            return torch.complex(found.double(), -found.double() - 1).to(self.dtype).view(shape)
        return found.to(self.dtype).view(shape)

    def blank(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=self.dtype)

    def blanks(self, *shape: int) -> list[torch.Tensor]:
        return [self.blank(*shape) for _ in ranks(self.size)]

    @property
    def following(self) -> int:
        return (self.rank + 1) % self.size

    @property
    def preceding(self) -> int:
        return (self.rank - 1) % self.size


Call = Callable[[Setting], Any]


def sparse(at: Setting) -> torch.Tensor:
    """Return rows that only some ranks have, one of them twice."""
    index = torch.tensor([[at.rank, at.rank, at.size]])
    return torch.sparse_coo_tensor(index, at.numbers(3, 2), (at.size + 2, 2))
