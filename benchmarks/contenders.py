"""The ways to sum tensors over all ranks that the micro benchmarks race, each through its public Python call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
import torch.distributed as dist

import ringtune.torch as hvd

# The defaults of torch's DDP: `bucket_cap_mb=25`, and a smaller first bucket so that the first reduction starts early.
BUCKET_BYTES = 25 * 1024 * 1024
FIRST_BUCKET_BYTES = 1024 * 1024


class Contender(Protocol):
    """Sums tensors in place over all ranks."""

    def reduce(self) -> None:
        """Sums all tensors it was opened with; returns when they hold the result on this rank."""


class RingtuneBlocking:
    """One blocking `hvd.allreduce_` per tensor."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._named = [(tensor, f"bench.{index}") for index, tensor in enumerate(tensors)]

    def reduce(self) -> None:
        for tensor, name in self._named:
            hvd.allreduce_(tensor, name=name, op=hvd.Sum)


class RingtuneAsync:
    """All tensors submitted in order, then waited for."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._named = [(tensor, f"bench.{index}") for index, tensor in enumerate(tensors)]

    def reduce(self) -> None:
        handles = [hvd.allreduce_async_(tensor, name=name, op=hvd.Sum) for tensor, name in self._named]
        for handle in handles:
            hvd.synchronize(handle)


class GlooBlocking:
    """One blocking `torch.distributed.all_reduce` per tensor."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = list(tensors)

    def reduce(self) -> None:
        for tensor in self._tensors:
            dist.all_reduce(tensor)


class GlooAsync:
    """All tensors submitted in order with `async_op=True`, then waited for."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = list(tensors)

    def reduce(self) -> None:
        works = [dist.all_reduce(tensor, async_op=True) for tensor in self._tensors]
        for work in works:
            assert work is not None
            work.wait()


class GlooBuckets:
    """As torch's DDP: tensors are copied into 25 MB buckets, each bucket is reduced as soon as it is full."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._buckets: list[tuple[torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]]] = []
        for members in plan_buckets(tensors):
            flat = torch.empty(sum(tensor.numel() for tensor in members), dtype=members[0].dtype)
            views = flat.split([tensor.numel() for tensor in members])
            self._buckets.append((flat, list(zip(members, views, strict=True))))

    def reduce(self) -> None:
        works = []
        for flat, members in self._buckets:
            for tensor, view in members:
                view.copy_(tensor)
            works.append(dist.all_reduce(flat, async_op=True))
        for work, (_, members) in zip(works, self._buckets, strict=True):
            assert work is not None
            work.wait()
            for tensor, view in members:
                tensor.copy_(view)


def plan_buckets(tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Returns `tensors` in order, cut where a bucket has reached its size (1 MiB the first, 25 MiB all others)."""
    buckets: list[list[torch.Tensor]] = [[]]
    filled_bytes = 0
    for tensor in tensors:
        limit_bytes = FIRST_BUCKET_BYTES if len(buckets) == 1 else BUCKET_BYTES
        if filled_bytes >= limit_bytes:
            buckets.append([])
            filled_bytes = 0
        buckets[-1].append(tensor)
        filled_bytes += tensor.nbytes
    return buckets


class _Opens(Protocol):
    def __call__(self, tensors: Sequence[torch.Tensor]) -> Contender:
        """Returns a contender over `tensors`."""


CONTENDERS: Mapping[str, Mapping[str, _Opens]] = {
    "allreduce": {"ringtune": RingtuneBlocking, "gloo": GlooBlocking},
    "gradients": {"ringtune": RingtuneAsync, "gloo": GlooAsync, "gloo-buckets": GlooBuckets},
}
