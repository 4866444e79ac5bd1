"""Alltoall and reducescatter: the asynchronous forms, which no gradient flows through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ringtune import session
from ringtune.common.process_sets import ProcessSet, global_process_set, number_of, own_rows
from ringtune.errors import HorovodInternalError, InvalidArgument
from ringtune.operations import Alltoall, Reducescatter
from ringtune.torch import devices, handles
from ringtune.torch.arguments import Average, Sum, resolve_op
from ringtune.torch.checked_calls import checked
from ringtune.torch.handles import Pending, Reduction
from ringtune.torch.memory_check import contents

Splits = Sequence[int] | torch.Tensor


@checked
def alltoall_async(
    tensor: torch.Tensor,
    splits: Splits | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start sending rows of the tensor to every rank and taking theirs.

    Args:
        tensor: Its first dimension is split; the others agree on all ranks.
        splits: Rows for each rank of the set, in order: a list or an int32 tensor. Rows beyond their sum are not sent.
            None: equal shares.
        name: Name by which ranks match the operation; counted if missing.
        process_set: The ranks that take part.

    Returns:
        Handle for `synchronize`, which returns the rows from all ranks in order, and how many came from each.

    Raises:
        InvalidArgument: The splits do not fit the tensor or the set.
    """
    number = number_of(process_set)
    counts = _counts(splits)
    dtype = handles.dtype_number(tensor)
    source = contents(tensor)
    wire, device = handles.wire_name("alltoall", name, number), devices.device_of(source)
    ticket = session.require().submit(
        Alltoall(wire, source.data_ptr(), tuple(tensor.shape), dtype, counts, number, device)
    )

    def finish() -> tuple[torch.Tensor, torch.Tensor]:
        came = session.require().received_splits(ticket, on_gpu=not tensor.is_cpu)
        received = torch.tensor(came, dtype=torch.int32)
        if isinstance(splits, torch.Tensor):
            received = received.to(splits)
        return handles.gathered(ticket, tensor.dtype, source), received

    return handles.register(Pending([ticket], finish, [source]))


@checked
def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start a reduction of the tensor of which every rank gets its rows.

    Args:
        tensor: This rank's contribution; same shape and dtype on all ranks, at least one dimension.
        name: Name by which ranks match the operation; counted if missing.
        op: ``Average`` or ``Sum``.
        process_set: The ranks that take part.
        prescale_factor: Multiplies each contribution.
        postscale_factor: Multiplies the result.

    Returns:
        Handle for `synchronize`, which returns the own rows: ``dim0 // size``, on the first ``dim0 % size`` ranks one
        more.

    Raises:
        InvalidArgument: The tensor is a scalar.
        HorovodInternalError: Another operation.
    """
    reduction = _reduction(op, (prescale_factor, postscale_factor), process_set)
    operation, kept = _make_reducescatter(tensor, reduction, process_set, "reducescatter")
    operation.name = handles.wire_name("reducescatter", name, reduction.process_set)
    return handles.register_one(session.require().submit(operation), kept)


@checked
def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start reducescatters of several tensors that run only when all of them are ready on all ranks.

    Returns:
        One handle; `synchronize` returns the list of results.
    """
    reduction = _reduction(op, (prescale_factor, postscale_factor), process_set)
    if not tensors:
        raise InvalidArgument("grouped_reducescatter: got no tensors, expected at least one")
    made = [_make_reducescatter(tensor, reduction, process_set, "grouped_reducescatter") for tensor in tensors]
    return handles.start_group(handles.wire_name("grouped_reducescatter", name, reduction.process_set), made)


def _reduction(op: int, factors: tuple[float, float], process_set: ProcessSet) -> Reduction:
    if resolve_op(None, op) not in (Average, Sum):
        raise HorovodInternalError("Reducescatter currently only supports AVERAGE and SUM.")
    return Reduction(op, float(factors[0]), float(factors[1]), number_of(process_set))


def _make_reducescatter(
    tensor: torch.Tensor, reduction: Reduction, process_set: ProcessSet, what: str
) -> tuple[Reducescatter, list[Any]]:
    """Describe a reducescatter that has no name yet; returns it and what must be kept, as `handles.make_allreduce`."""
    number = handles.dtype_number(tensor, what, reduces=True)
    if tensor.dim() == 0:
        raise InvalidArgument(f"{what} of a scalar: it needs at least one dimension to split along")
    source = contents(tensor)
    output = handles.new_result(tensor, (own_rows(tensor.shape[0], process_set), *tensor.shape[1:]))
    operation = Reducescatter(
        "", source.data_ptr(), output.data_ptr(), tuple(tensor.shape), number, *reduction[:3],
        process_set=reduction.process_set, device=devices.device_of(source),
    )  # fmt: skip
    return operation, [source, output, output]


def _counts(splits: Splits | None) -> list[int]:
    """Return the splits as a list, empty for equal shares.

    Raises:
        InvalidArgument: They are no list or int32 tensor of one dimension.
    """
    if splits is None:
        return []
    if isinstance(splits, torch.Tensor):
        if splits.dtype is not torch.int32:
            raise InvalidArgument(f"alltoall expects splits to contain 32-bit integers, got {splits.dtype}")
        if splits.dim() != 1:
            raise InvalidArgument(f"alltoall expects a 1D splits tensor, got {splits.dim()} dimensions")
    return [int(one) for one in splits]
