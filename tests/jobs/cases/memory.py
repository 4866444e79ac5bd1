"""What ranks do in the tests of tensors whose memory is not what they mean, and of what Gloo does with tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist


def _odd(kind: str) -> torch.Tensor:
    """Return a tensor of four elements, as views make them; the rank's number is in its values."""
    rank = dist.get_rank() + 1
    plain = torch.arange(1.0, 5.0) * rank
    made: dict[str, Callable[[], torch.Tensor]] = {
        "plain": lambda: plain,
        "neg": lambda: torch._neg_view(plain),
        "imaginary": lambda: torch.complex(plain, plain).conj().imag,
        "strided": lambda: torch.stack([plain, plain], 1)[:, 0],
        "float8": lambda: plain.to(torch.float8_e4m3fn),
        "uint16": lambda: plain.to(torch.int32).to(torch.uint16),
    }
    return made[kind]()


def _meaning(tensor: torch.Tensor) -> list[Any]:
    found: list[Any] = tensor.tolist()
    return found


def moved(kind: str) -> dict[str, Any]:
    """Move a tensor in every way, in place and not; what there is then, and what the other rank had."""
    mine, peer = _odd(kind), 1 - dist.get_rank()
    found: dict[str, Any] = {"mine": _meaning(mine)}
    rows = [torch.empty_like(_odd(kind)) for _ in range(2)]
    dist.all_gather(rows, mine)
    found["all_gather"] = [_meaning(row) for row in rows]
    shared = _odd(kind)
    dist.broadcast(shared, 1)
    found["broadcast"] = _meaning(shared)
    single = torch.empty_like(mine)
    dist.all_to_all_single(single, mine)
    found["all_to_all"] = _meaning(single)
    work, came = dist.isend(mine, peer), _odd(kind)
    dist.recv(came)
    assert work is not None
    work.wait()
    found["recv"] = _meaning(came)
    if kind not in ("float8", "uint16"):
        total = _odd(kind)
        dist.all_reduce(total)
        found["all_reduce"] = _meaning(total)
    return found


REFUSED: dict[str, Callable[[], Any]] = {
    "share memory": lambda: dist.all_reduce(torch.ones(1).expand(4)),
    "all_gather: the output": lambda: dist.all_gather([torch.ones(1).expand(4) for _ in range(2)], torch.ones(4)),
    "is on meta": lambda: dist.all_reduce(torch.ones(4, device="meta")),
    "torch.sparse_csr": lambda: dist.all_reduce(torch.eye(2).to_sparse_csr()),
    "quantised": lambda: dist.all_reduce(torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)),
}


def refused() -> dict[str, str]:
    """Give what cannot be taken; what is said by what is expected. The group goes on."""
    said = {}
    for words, call in REFUSED.items():
        try:
            call()
            said[words] = "no error"
        except (RuntimeError, ValueError) as error:
            said[words] = f"{type(error).__name__}: {error}"
    dist.barrier()
    return said


def bitwise() -> list[list[int]]:
    """Reduce with every bitwise operation, whole and in parts."""
    found = []
    for op in (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR):
        tensor, part = torch.tensor([6, 12]) >> dist.get_rank(), torch.zeros(1, dtype=torch.int64)
        dist.reduce_scatter_tensor(part, tensor.clone(), op)
        dist.all_reduce(tensor, op)
        assert part.item() == tensor[dist.get_rank()]
        found.append(tensor.tolist())
    return found
