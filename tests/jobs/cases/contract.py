"""What ranks do for the rows of Horovod's contract that need several of them and have no place elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import ringtune.torch as hvd
from ringtune.errors import RingtuneError

Call = Callable[[torch.Tensor], Any]


def logical(op: int) -> list[bool]:
    """Reduce truth values: true everywhere, nowhere, on rank 0 alone, on all but rank 0."""
    first = hvd.rank() == 0
    found: list[bool] = hvd.allreduce(torch.tensor([True, False, first, not first]), op=op).tolist()
    return found


_LOOSE: dict[str, Call] = {
    "allreduce": lambda tensor: hvd.allreduce(tensor, op=hvd.Sum),
    "allreduce_": lambda tensor: hvd.allreduce_(tensor, op=hvd.Sum),
    "grouped_allreduce": lambda tensor: hvd.grouped_allreduce([tensor], op=hvd.Sum)[0],
    "grouped_allreduce_": lambda tensor: hvd.grouped_allreduce_([tensor], op=hvd.Sum)[0],
    "broadcast": lambda tensor: hvd.broadcast(tensor, 1),
    "broadcast_": lambda tensor: hvd.broadcast_(tensor, 1),
    "allgather": hvd.allgather,
    "grouped_allgather": lambda tensor: hvd.grouped_allgather([tensor])[0],
}
LOOSE = tuple(_LOOSE)


def loose(what: str) -> tuple[list[Any], list[Any]]:
    """Hand in a column of a matrix, 10 * rank and 10 * rank + 1; return the result and the matrix afterwards."""
    matrix = torch.tensor([[0.0, 0.0, 7.0], [1.0, 1.0, 7.0]]) + 10 * hvd.rank() * torch.tensor([1.0, 1.0, 0.0])
    column = matrix[:, 1]
    assert not column.is_contiguous()
    return _LOOSE[what](column).tolist(), matrix.tolist()


_DIFFERENTIABLE: dict[str, Call] = {
    "allreduce, its sum": lambda x: hvd.allreduce(x).sum(),  # the gradient that comes is expanded
    "allreduce": lambda x: (hvd.allreduce(x, op=hvd.Sum) * _weight()).sum(),
    "allreduce with factors": lambda x: (
        hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0, postscale_factor=3.0) * _weight()
    ).sum(),
    "average": lambda x: (hvd.allreduce(x, op=hvd.Average) * _weight()).sum(),
    "grouped_allreduce": lambda x: sum(
        (one * _weight()).sum() for one in hvd.grouped_allreduce([x, 2 * x], op=hvd.Sum)
    ),
    "allgather": lambda x: (hvd.allgather(x) * _weight()).sum(),
    "grouped_allgather": lambda x: sum((one * _weight()).sum() for one in hvd.grouped_allgather([x, 2 * x])),
    "broadcast": lambda x: (hvd.broadcast(x, 1) * _weight()).sum(),
}
DIFFERENTIABLE = tuple(_DIFFERENTIABLE)


def _weight() -> float:
    return hvd.rank() + 1.0


def gradient(what: str) -> list[float]:
    """Return the gradient of a weighted sum of a collective's result; the weights are rank + 1."""
    tensor = torch.ones(2, requires_grad=True)
    _DIFFERENTIABLE[what](tensor).backward()
    assert tensor.grad is not None
    found: list[float] = tensor.grad.tolist()
    return found


_WHILE_JOINED: dict[str, Call] = {
    "allgather": hvd.allgather,
    "grouped_allgather": lambda tensor: hvd.grouped_allgather([tensor]),
    "broadcast": lambda tensor: hvd.broadcast(tensor, 1),
    "alltoall": hvd.alltoall,
    "reducescatter": hvd.reducescatter,
}
WHILE_JOINED = tuple(_WHILE_JOINED)


def while_joined(what: str) -> tuple[str, list[float], float]:
    """Join at once on rank 0; the others do what needs all, then a group of sums, and join.

    Returns:
        The error's class, the sums, and the sum of an operation without a name when all are back.
    """
    error, sums = "nothing", []
    if hvd.rank() > 0:
        try:
            _WHILE_JOINED[what](torch.ones(6))
        except RingtuneError as caught:
            error = type(caught).__name__
        sums = [one.item() for one in hvd.grouped_allreduce([torch.ones(1), torch.ones(1)], op=hvd.Sum)]
    hvd.join()
    return error, sums, float(hvd.allgather(torch.ones(1)).sum().item())


def unnamed_after_sets() -> list[float]:
    """Do operations without names in a set of all ranks but the last, then with everybody."""
    hvd.init(process_sets="dynamic")
    first = hvd.add_process_set(range(hvd.size() - 1))
    if first.included():
        for _ in range(3):
            hvd.allreduce(torch.ones(1), process_set=first)
            hvd.allgather(torch.ones(1), process_set=first)
            hvd.broadcast(torch.ones(1), 0, process_set=first)
    one = torch.ones(12)
    return [
        hvd.allreduce(one, op=hvd.Sum)[0].item(),
        hvd.allgather(one).sum().item(),
        hvd.broadcast(one * hvd.rank(), 1)[0].item(),
        hvd.alltoall(one).sum().item(),
        hvd.reducescatter(one, op=hvd.Sum)[0].item(),
    ]


def objects_of_other_types() -> Any:
    """Send rank 0's dict to ranks that hold other things."""
    return hvd.broadcast_object({"a": 1} if hvd.rank() == 0 else [hvd.rank()], root_rank=0)


def roots_outside_a_set() -> str:
    """Broadcast in the set of the last two ranks from rank 0."""
    hvd.init(process_sets="dynamic")
    last = hvd.add_process_set([hvd.size() - 2, hvd.size() - 1])
    try:
        if last.included():
            hvd.broadcast(torch.ones(1), 0, process_set=last)
    except ValueError as error:
        return str(error)
    return "nothing"


def embedding(sparse_as_dense: bool, sparse: bool) -> tuple[list[list[float]], bool]:
    """Step with gradients of some rows, which differ by rank; return the rows and whether the gradient was sparse."""
    table = torch.nn.Embedding(5, 2, sparse=sparse)
    with torch.no_grad():
        table.weight.zero_()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(table.parameters(), lr=1.0), table.named_parameters(), sparse_as_dense=sparse_as_dense
    )
    table(torch.tensor([hvd.rank(), 4, 4])).sum().backward()
    optimizer.step()
    assert table.weight.grad is not None
    return table.weight.tolist(), table.weight.grad.is_sparse


def left_alone() -> str:
    """Wait for what rank 1 never submits: it leaves instead."""
    hvd.barrier()
    if hvd.rank() == 1:
        hvd.shutdown()
        return "nothing"
    try:
        hvd.allreduce(torch.ones(3), name="left alone")
    except hvd.HorovodInternalError as error:
        return type(error).__name__
    return "nothing"
