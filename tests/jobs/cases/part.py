"""What ranks do to compare collectives that give the ranks different parts with Gloo's."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

from tests.jobs.cases.group import keep_world, mine

_gloo: list[Any] = []


def beside_gloo(what: str, dtype: str, strided: bool) -> tuple[Any, Any]:
    """Do the same in ringtune's world and in a group of Gloo's over the same ranks; return both results.

    Gloo's tensors are always dense: it takes no others.
    """
    if not _gloo:
        _gloo.append(dist.new_group(backend="gloo"))
    return CASES[what](None, dtype, strided), CASES[what](_gloo[0], dtype, False)


def _numbers(count: int, dtype: str, strided: bool) -> torch.Tensor:
    """Return numbers that differ by rank; strided: every second element of memory."""
    numbers = torch.complex(mine(count), -mine(count)) if dtype == "complex64" else mine(count, dtype)
    return _laid_out(numbers, strided)


def _laid_out(tensor: torch.Tensor, strided: bool) -> torch.Tensor:
    return torch.stack([tensor, tensor], -1)[..., 0] if strided else tensor


def _zeros(count: int, dtype: str, strided: bool) -> torch.Tensor:
    return _laid_out(torch.zeros(count, dtype=getattr(torch, dtype)), strided)


def _reduce_scatter_single(group: Any, dtype: str, strided: bool) -> list[Any]:
    out = _zeros(3, dtype, strided)
    dist.reduce_scatter_tensor(out, _numbers(3 * dist.get_world_size(), dtype, strided), group=group)
    return out.tolist()


def _reduce_scatter_inside(group: Any, dtype: str, strided: bool) -> list[Any]:
    """As FSDP may do: the output is this rank's part of the input."""
    joined = _numbers(3 * dist.get_world_size(), dtype, strided).contiguous()
    out = joined.chunk(dist.get_world_size())[dist.get_rank()]
    dist.reduce_scatter_tensor(out, joined if group is None else joined.clone(), group=group)
    return out.tolist()


def _scatter(group: Any, dtype: str, strided: bool) -> list[Any]:
    root = dist.get_world_size() - 1
    out = _zeros(4, dtype, strided)
    parts = [_numbers(4, dtype, strided) + rank for rank in range(dist.get_world_size())]
    dist.scatter(out, parts if dist.get_rank() == root else None, src=root, group=group)
    return out.tolist()


def _gather(group: Any, dtype: str, strided: bool) -> list[Any]:
    root = dist.get_world_size() - 1
    outputs = [_zeros(4, dtype, strided) for _ in range(dist.get_world_size())]
    dist.gather(_numbers(4, dtype, strided), outputs if dist.get_rank() == root else None, dst=root, group=group)
    return [output.tolist() for output in outputs]


def _all_to_all_single(group: Any, dtype: str, strided: bool) -> list[Any]:
    """Rank i sends j + 1 rows to rank j, rows of two elements."""
    rank, size = dist.get_rank(), dist.get_world_size()
    rows = _laid_out(_numbers(size * (size + 1), dtype, False).view(-1, 2), strided)
    out = torch.zeros((rank + 1) * size, 2, dtype=rows.dtype)
    dist.all_to_all_single(out, rows, [rank + 1] * size, [j + 1 for j in range(size)], group=group)
    return out.tolist()


def _all_to_all_even(group: Any, dtype: str, strided: bool) -> list[Any]:
    size = dist.get_world_size()
    out = torch.zeros(2 * size, dtype=getattr(torch, dtype))
    dist.all_to_all_single(out, _numbers(2 * size, dtype, strided).contiguous(), group=group)
    return out.tolist()


CASES = {
    "reduce_scatter": _reduce_scatter_single,
    "reduce_scatter inside its input": _reduce_scatter_inside,
    "scatter": _scatter,
    "gather": _gather,
    "all_to_all": _all_to_all_single,
    "even all_to_all": _all_to_all_even,
}


def refused(backend: str, store: str) -> str:
    """Ask for a world with several backends and return what was said."""
    rank, size = int(os.environ["TEST_RANK"]), int(os.environ["TEST_SIZE"])
    try:
        dist.init_process_group(backend, store=dist.FileStore(store, size), rank=rank, world_size=size)
    except RuntimeError as error:
        return str(error)
    return "nothing"


def mixed(backend: str, elsewhere: str, store: str) -> dict[str, Any]:
    """Use a world and a group of its own that have another backend for another device, which does nothing."""
    import torch.testing._internal.distributed.fake_pg  # torch's backend "fake" registers itself

    rank, size = int(os.environ["TEST_RANK"]), int(os.environ["TEST_SIZE"])
    dist.init_process_group(backend, store=dist.FileStore(store, size), rank=rank, world_size=size)
    found: dict[str, Any] = {"devices": [str(device) for device in dist.group.WORLD._device_types]}  # type: ignore[union-attr]
    group = dist.new_group(list(range(size)), backend=backend)
    _gloo.extend((dist.group.WORLD, group))  # they may have one of Gloo's (see group.py)
    for name, where in (("world", None), ("group", group)):
        tensor = mine(3)
        dist.all_reduce(tensor, group=where)
        objects: list[Any] = [None] * size
        dist.all_gather_object(objects, rank, group=where)
        found[name] = [tensor.tolist(), objects]
    if elsewhere:
        there, parts = torch.ones(2, device=elsewhere), torch.ones(2 * size, device=elsewhere)
        pieces = list(parts.chunk(size))
        work: Any = dist.all_reduce(there, async_op=True)
        dist.gather(there, pieces if rank == 0 else None)
        dist.all_gather(pieces, there)
        dist.reduce_scatter(there, pieces, group=group)
        dist.broadcast(there, 0, group=group)
        found["elsewhere"] = [type(work).__name__, work.wait()]
    dist.destroy_process_group(group)
    dist.barrier()
    dist.destroy_process_group()
    return found


def every_bit(dtype: str, count: int, root: int) -> bool:
    """Broadcast all patterns of bits, signs of zeros and what is no number among them; True if they arrived."""
    bits = torch.arange(count * 8).mul(0x9E37_79B9_7F4A_7C15 >> 1).view(torch.uint8)
    sent = (bits[:count] > 127) if dtype == "bool" else bits.view(getattr(torch, dtype))[:count].clone()
    tensor = sent.clone() if dist.get_rank() == root else torch.zeros_like(sent)
    dist.broadcast(tensor, src=root)
    return torch.equal(tensor.view(torch.uint8), sent.view(torch.uint8))


def beside_another_world(store: str) -> list[list[float]]:
    """Reduce in a world of Gloo's and in a group of ringtune's over the same ranks."""
    rank, size = int(os.environ["TEST_RANK"]), int(os.environ["TEST_SIZE"])
    dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size)
    keep_world()
    group = dist.new_group(backend="ringtune")
    theirs, ours = mine(3), mine(3)
    dist.all_reduce(theirs)
    dist.all_reduce(ours, group=group)
    dist.destroy_process_group()
    return [theirs.tolist(), ours.tolist()]


def uneven_reduce_scatter() -> list[float]:
    """Reduce a list whose tensors differ in size; Gloo cannot."""
    rank, size = dist.get_rank(), dist.get_world_size()
    out = torch.zeros(rank + 1)
    dist.reduce_scatter(out, [torch.full((i + 1,), float(10 * i + rank)) for i in range(size)])
    found: list[float] = out.tolist()
    return found


def nothing_at_all() -> list[list[int]]:
    """Call all_to_all and scatter with tensors without elements."""
    size = dist.get_world_size()
    rows = torch.zeros(0, 3)
    dist.all_to_all_single(rows, torch.zeros(0, 3), [0] * size, [0] * size)
    part = torch.zeros(0)
    dist.reduce_scatter_tensor(part, torch.zeros(0))
    return [list(rows.shape), list(part.shape)]


def splits_that_disagree() -> str:
    """Expect more rows than the others send."""
    size = dist.get_world_size()
    try:
        dist.all_to_all_single(torch.zeros(2 * size), torch.zeros(size), [2] * size, [1] * size)
    except ValueError as error:
        return str(error)
    return "no error"
