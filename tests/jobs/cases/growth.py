"""What ranks do in the tests of memory that must not grow with the number of calls."""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import ringtune.numpy as arrays
import ringtune.torch as hvd

TENSOR = torch.ones(4)
ARRAY = np.ones(4, np.float32)
PAGE = os.sysconf("SC_PAGE_SIZE")
_counter = itertools.count()
SIZES = 2**14  # far more than any test remembers


class _MallInfo(ctypes.Structure):
    """``struct mallinfo2`` of glibc."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keep",
        )
    ]


_libc = ctypes.CDLL(None)
_libc.mallinfo2.restype = _MallInfo


def _memory() -> tuple[int, int]:
    """Return the bytes that are allocated and not freed, exactly, and those of this process that lie in memory."""
    gc.collect()
    info = _libc.mallinfo2()
    small = sys.getallocatedblocks() * 64  # of Python's own allocator, which malloc knows as whole arenas
    with open("/proc/self/statm") as statm:
        resident = int(statm.read().split()[1]) * PAGE
    return int(info.uordblks + info.hblkhd) + small, resident


def _sparse(name: str | None) -> None:
    tensor = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), torch.ones(2), (4,))
    hvd.sparse_allreduce_async(tensor, name=name, op=hvd.Sum)()


def _polled(name: str | None) -> None:
    handle = hvd.allreduce_async(TENSOR, name=name)
    hvd.poll(handle)
    hvd.synchronize(handle)


def _another_size() -> torch.Tensor:
    """Return a tensor of a size that has not come for `SIZES` calls.

    The sizes do not rise from call to call: a tensor that is larger than all before it makes memory grow by itself.
    """
    return torch.ones(1 + next(_counter) * 10_007 % SIZES)


def _sizes(name: str | None) -> None:
    """One name whose tensor has another size in every step."""
    hvd.allreduce(_another_size(), name="sizes")


def _failed(name: str | None) -> None:
    """An operation that the ranks do not agree on."""
    try:
        hvd.allreduce(torch.ones(1 + hvd.rank()), name=name)
    except RuntimeError:
        return
    raise AssertionError("no error")


CALLS: dict[str, Callable[[str | None], Any]] = {
    "allreduce": lambda name: hvd.allreduce(TENSOR, name=name),
    "allreduce_": lambda name: hvd.allreduce_(TENSOR, op=hvd.Min, name=name),
    "allreduce_async_": lambda name: hvd.synchronize(hvd.allreduce_async_(TENSOR, op=hvd.Min, name=name)),
    "poll": _polled,
    "grouped_allreduce": lambda name: hvd.grouped_allreduce([TENSOR, TENSOR], name=name),
    "grouped_allreduce_": lambda name: hvd.grouped_allreduce_([TENSOR, TENSOR.clone()], op=hvd.Min, name=name),
    "allgather": lambda name: hvd.allgather(TENSOR, name=name),
    "broadcast": lambda name: hvd.broadcast(TENSOR, 0, name=name),
    "broadcast_": lambda name: hvd.broadcast_(TENSOR, 0, name=name),
    "broadcast_object": lambda name: hvd.broadcast_object({"a": 1}, name=name),
    "alltoall": lambda name: hvd.alltoall(TENSOR, name=name),
    "alltoall splits": lambda name: hvd.alltoall(TENSOR, torch.tensor([1, 3], dtype=torch.int32), name=name),
    "reducescatter": lambda name: hvd.reducescatter(TENSOR, name=name),
    "barrier": lambda name: hvd.barrier(),
    "sparse": _sparse,
    "adasum": lambda name: hvd.allreduce(TENSOR, op=hvd.Adasum, name=name),
    "sizes": _sizes,
    "mismatch": _failed,
    "numpy allreduce": lambda name: arrays.allreduce(ARRAY, name=name),
    "numpy allreduce_": lambda name: arrays.allreduce_(ARRAY, op=arrays.Min, name=name),
    "numpy grouped_allreduce": lambda name: arrays.grouped_allreduce([ARRAY, ARRAY], name=name),
    "numpy allgather": lambda name: arrays.allgather(ARRAY, name=name),
    "numpy broadcast": lambda name: arrays.broadcast(ARRAY, 0, name=name),
    "numpy alltoall": lambda name: arrays.alltoall(ARRAY, name=name),
    "numpy reducescatter": lambda name: arrays.reducescatter(ARRAY, name=name),
}


def _rows() -> list[torch.Tensor]:
    return [torch.empty(4), torch.empty(4)]


GROUP_CALLS: dict[str, Callable[[], Any]] = {
    "all_reduce": lambda: dist.all_reduce(TENSOR.clone()),
    "all_reduce of sizes": lambda: dist.all_reduce(_another_size()),
    "all_gather": lambda: dist.all_gather(_rows(), TENSOR),
    "broadcast": lambda: dist.broadcast(TENSOR.clone(), 0),
    "reduce_scatter": lambda: dist.reduce_scatter_tensor(torch.empty(2), TENSOR),
    "all_to_all": lambda: dist.all_to_all_single(torch.empty(4), TENSOR),
    "send and receive": lambda: (
        dist.send(TENSOR, 1 - dist.get_rank(), tag=0) if dist.get_rank() else dist.recv(torch.empty(4), 1)
    ),
    "objects": lambda: dist.all_gather_object([None, None], {"step": next(_counter)}),
    "barrier": lambda: dist.barrier(),
}


def _growth(call: Callable[[int], Any], warm_up: int, calls: int) -> tuple[float, float]:
    """Return by how many bytes a call grows what is allocated, and what is resident.

    What is remembered is forgotten many at a time, so the highest of many looks in each half count.
    """
    gc.collect()
    gc.freeze()  # what is there already is not looked through at every look
    for step in range(warm_up):
        call(step)
    highest = [[0, 0], [0, 0]]
    for step in range(calls):
        call(warm_up + step)
        if step % (calls // 64) == 0:
            half = highest[step >= calls // 2]
            half[:] = map(max, half, _memory())
    gc.unfreeze()
    allocated, resident = ((last - first) / (calls // 2) for first, last in zip(*highest, strict=True))
    return allocated, resident


def growth(kinds: Sequence[str], named: bool, warm_up: int, calls: int) -> tuple[float, float]:
    """Grow by rounds of one call of each kind; `named`: by names that count the rounds."""

    def call(step: int) -> None:
        for kind in kinds:
            CALLS[kind](f"{kind} of step {step}" if named else None)

    return _growth(call, warm_up, calls)


def group_growth(kinds: Sequence[str], warm_up: int, calls: int) -> tuple[float, float]:
    """Grow by rounds of one call of each kind on a process group."""

    def call(step: int) -> None:
        for kind in kinds:
            GROUP_CALLS[kind]()

    return _growth(call, warm_up, calls)
