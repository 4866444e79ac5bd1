"""What ranks do to compare every function of torch.distributed with a group of Gloo's over the same ranks."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

from tests.jobs.cases.gloo_layer import LAYERS
from tests.jobs.cases.gloo_setting import Call, Setting, ranks, sparse

_groups: list[Any] = []

DTYPES = (
    *("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "bool"),
    *("complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64"),
)
OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")


def _all_reduce(at: Setting) -> Any:
    tensor = at.numbers(2, 3)
    dist.all_reduce(tensor, at.op, group=at.group)
    return tensor


def _all_reduce_coalesced(at: Setting) -> Any:
    tensors = [at.numbers(4), at.numbers(2, 3)]
    dist.all_reduce_coalesced(tensors, at.op, group=at.group)
    return tensors


def _coalescing(at: Setting) -> Any:
    tensors = [at.numbers(count) for count in (3, 5, 7)]
    with _coalescing_manager(at.group):
        for tensor in tensors:
            dist.all_reduce(tensor, at.op, group=at.group)
    return tensors


def _coalescing_later(at: Setting) -> Any:
    tensors = [at.numbers(count) for count in (3, 5, 7)]
    with _coalescing_manager(at.group, async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor, at.op, group=at.group)
    manager.wait()
    return tensors


def _coalesced_parts(at: Setting) -> Any:
    wholes = [at.blank(2 * at.size), at.blank(3 * at.size)]
    with _coalescing_manager(at.group):
        for whole in wholes:
            dist.all_gather_into_tensor(whole, at.numbers(whole.numel() // at.size), group=at.group)
    return wholes


def _reduce(at: Setting) -> Any:
    found = []
    for root in ranks(at.size):
        tensor = at.numbers(5)
        dist.reduce(tensor, root, at.op, group=at.group)
        found.append(tensor if at.rank == root else None)  # Gloo leaves anything with the others
    return found


def _reduce_scatter(at: Setting) -> Any:
    out = at.blank(2, 2)
    dist.reduce_scatter(out, [at.numbers(2, 2, more=i) for i in ranks(at.size)], at.op, group=at.group)
    return out


def _reduce_scatter_tensor(at: Setting) -> Any:
    out = at.blank(3)
    dist.reduce_scatter_tensor(out, at.numbers(3 * at.size), at.op, group=at.group)
    return out


def _broadcast(at: Setting) -> Any:
    tensor = at.numbers(6)
    dist.broadcast(tensor, at.size - 1, group=at.group)
    return tensor


def _all_gather(at: Setting) -> Any:
    outputs = at.blanks(2, 2)
    dist.all_gather(outputs, at.numbers(2, 2), group=at.group)
    return outputs


def _all_gather_uneven(at: Setting) -> Any:
    outputs = [at.blank(rank + 1) for rank in ranks(at.size)]
    dist.all_gather(outputs, at.numbers(at.rank + 1), group=at.group)
    return outputs


def _all_gather_coalesced(at: Setting) -> Any:
    outputs = [[at.blank(3), at.blank(2, 2)] for _ in ranks(at.size)]
    dist.all_gather_coalesced(outputs, [at.numbers(3), at.numbers(2, 2)], group=at.group)
    return outputs


def _all_gather_into(at: Setting, *shape: int) -> Any:
    whole = at.blank(*shape)
    dist.all_gather_into_tensor(whole, at.numbers(2, 3), group=at.group)
    return whole


def _gather(at: Setting) -> Any:
    found = []
    for root in ranks(at.size):
        outputs = at.blanks(4) if at.rank == root else None
        dist.gather(at.numbers(4), outputs, root, group=at.group)
        found.append(outputs)
    return found


def _scatter(at: Setting) -> Any:
    found = []
    for root in ranks(at.size):
        out = at.blank(4)
        given = [at.numbers(4, more=i) for i in ranks(at.size)] if at.rank == root else None
        dist.scatter(out, given, root, group=at.group)
        found.append(out)
    return found


def _all_to_all(at: Setting) -> Any:
    outputs = [at.blank(at.rank + 1) for _ in ranks(at.size)]
    dist.all_to_all(outputs, [at.numbers(i + 1) for i in ranks(at.size)], group=at.group)
    return outputs


def _all_to_all_single(at: Setting) -> Any:
    out = at.blank(2 * at.size, 2)
    dist.all_to_all_single(out, at.numbers(2 * at.size, 2), group=at.group)
    return out


def _all_to_all_splits(at: Setting) -> Any:
    gives, takes = [i for i in ranks(at.size)], [at.rank] * at.size
    out = at.blank(sum(takes), 2)
    dist.all_to_all_single(out, at.numbers(sum(gives), 2), takes, gives, group=at.group)
    return out


def _passed(at: Setting) -> Any:
    outputs = at.blanks(3)
    sends = [dist.isend(at.numbers(3, more=tag), at.following, at.group, tag) for tag in ranks(at.size)]
    receives = [dist.irecv(outputs[tag], at.preceding, at.group, tag) for tag in reversed(ranks(at.size))]
    for work in (*receives, *sends):
        assert work is not None and work.wait()
    return outputs


def _by_group_rank(at: Setting) -> Any:
    output = at.blank(3)
    if at.rank == 0:
        dist.send(at.numbers(3), group=at.group, group_dst=1)
    elif at.rank == 1:
        assert dist.recv(output, group=at.group, group_src=0) == 0
    return output


def _batch(at: Setting) -> Any:
    output, other = at.blank(3), at.blank(2)
    given = [
        dist.P2POp(dist.isend, at.numbers(3), at.following, at.group),
        dist.P2POp(dist.isend, at.numbers(2), at.following, at.group, 5),
        dist.P2POp(dist.irecv, other, at.preceding, at.group, 5),
        dist.P2POp(dist.irecv, output, at.preceding, at.group),
    ]
    for work in dist.batch_isend_irecv(given):
        work.wait()
    return output, other


def _sparse_all_reduce(at: Setting) -> Any:
    tensor = sparse(at)
    dist.all_reduce(tensor, at.op, group=at.group)
    return tensor.to_dense(), tensor.is_coalesced()


REDUCTIONS: dict[str, Call] = {
    "all_reduce": _all_reduce,
    "all_reduce_coalesced": _all_reduce_coalesced,
    "coalescing": _coalescing,
    "coalescing later": _coalescing_later,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_tensor": _reduce_scatter_tensor,
    "sparse": _sparse_all_reduce,
}
MOVES: dict[str, Call] = {
    "coalesced parts": _coalesced_parts,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "all_gather uneven": _all_gather_uneven,
    "all_gather_coalesced": _all_gather_coalesced,
    "all_gather_into_tensor": lambda at: _all_gather_into(at, 2 * at.size, 3),
    "all_gather_into_tensor stacked": lambda at: _all_gather_into(at, at.size, 2, 3),
    "all_gather_into_tensor flat": lambda at: _all_gather_into(at, at.size * 6),
    "gather": _gather,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
    "all_to_all_single": _all_to_all_single,
    "all_to_all_single with splits": _all_to_all_splits,
    "isend": _passed,
    "send by rank in the group": _by_group_rank,
    "batch_isend_irecv": _batch,
}


def _same(ours: Any, theirs: Any) -> bool:
    """Return whether two results are the same, but for the order in which float16 numbers are added."""
    if isinstance(theirs, torch.Tensor):
        wide = torch.complex128 if theirs.is_complex() else torch.float64
        alike = isinstance(ours, torch.Tensor) and (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        return alike and torch.allclose(ours.to(wide), theirs.to(wide), rtol=1e-3, atol=1e-3, equal_nan=True)
    if isinstance(theirs, list | tuple):
        return type(ours) is type(theirs) and len(ours) == len(theirs) and all(map(_same, ours, theirs))
    return bool(ours == theirs)


def _outcome(call: Call, at: Setting) -> Any:
    try:
        return call(at)
    except Exception as error:
        return error


def differences(calls: str, dtypes: Sequence[str], ops: Sequence[str]) -> list[str]:
    """Make calls in a group of ringtune's and one of Gloo's; return what Gloo does and ringtune does otherwise."""
    warnings.simplefilter("ignore")
    if not _groups:
        _groups.extend([dist.new_group(), dist.new_group(backend="gloo")])
    wrong = []
    for name, call in {"reductions": REDUCTIONS, "moves": MOVES, "layers": LAYERS}[calls].items():
        for dtype in dtypes:
            for op in ops:
                ours, theirs = (_outcome(call, Setting(group, dtype, op)) for group in _groups)
                if not isinstance(theirs, Exception) and not _same(ours, theirs):
                    wrong.append(f"{name} {dtype} {op}: {ours} beside Gloo's {theirs}")
    return wrong
