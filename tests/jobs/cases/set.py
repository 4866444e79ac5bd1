"""What the ranks of the tests' jobs do with process sets and join. Small integers: everything is exact."""

from __future__ import annotations

import time
from typing import Any

import torch

import ringtune.torch as hvd
from ringtune.common import process_sets
from ringtune.errors import RingtuneError


def start(lists: list[list[int]]) -> list[int | None]:
    """Join a job with these sets; return their numbers."""
    sets = [hvd.ProcessSet(ranks) for ranks in lists]
    hvd.init(process_sets=sets)
    return [one.process_set_id for one in sets]


def _set_of(ranks: list[int]) -> hvd.ProcessSet:
    made = hvd.ProcessSet(ranks)
    process_sets.register(made)  # finds the one that is there
    return made


def collectives(lists: list[list[int]], rounds: int) -> list[Any]:
    """Run every collective in each set this rank is in; return the results by set."""
    found: list[Any] = []
    for ranks in lists:
        if hvd.rank() not in ranks:
            continue
        one = _set_of(ranks)
        for _ in range(rounds):
            found.append(_in_set(one))
    return found


def _in_set(one: hvd.ProcessSet) -> list[Any]:
    rank, size = hvd.rank(), one.size()
    assert size is not None
    mine = torch.full((2,), rank + 1.0)
    hvd.barrier(process_set=one)
    return [
        hvd.allreduce(mine, op=hvd.Sum, process_set=one).tolist(),
        hvd.allreduce(mine, process_set=one, name="same name in every set").tolist(),
        [t.tolist() for t in hvd.grouped_allreduce([mine, mine], op=hvd.Max, process_set=one)],
        hvd.allgather(mine[:1], process_set=one).tolist(),
        hvd.broadcast(mine, one.ranks[-1], process_set=one).tolist(),  # type: ignore[index]
        hvd.alltoall(torch.full((size,), float(rank)), process_set=one).tolist(),
        hvd.reducescatter(torch.ones(size), op=hvd.Sum, process_set=one).tolist(),
        hvd.broadcast_object({"rank": rank}, one.ranks[0], process_set=one),  # type: ignore[index]
        hvd.allgather_object(rank, process_set=one),
    ]


def gradients(ranks: list[int]) -> dict[str, list[float]] | None:
    """Return gradients of collectives in a set; None outside it."""
    if hvd.rank() not in ranks:
        return None
    one = _set_of(ranks)
    found = {}
    calls = {
        "allreduce": lambda x: hvd.allreduce(x, op=hvd.Sum, process_set=one),
        "allgather": lambda x: hvd.allgather(x, process_set=one),
        "broadcast": lambda x: hvd.broadcast(x, ranks[1], process_set=one),
        "alltoall": lambda x: hvd.alltoall(x, process_set=one),
        "reducescatter": lambda x: hvd.reducescatter(x, op=hvd.Sum, process_set=one),
    }
    for name, call in calls.items():
        tensor = torch.ones(len(ranks), requires_grad=True)
        (call(tensor) * float(hvd.rank())).sum().backward()
        assert tensor.grad is not None
        found[name] = tensor.grad.tolist()
    return found


def train_in_set(ranks: list[int]) -> float:
    """Step once with gradients reduced in a set; others step on their own. Return the parameter."""
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("w", weight)], process_set=_set_of(ranks))
    (weight * (hvd.rank() + 1)).sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return float(weight.item())


def misuse(ranks: list[int]) -> dict[str, str]:
    """Do what a set refuses; return the errors' classes."""
    one, unknown = _set_of(ranks), hvd.ProcessSet([0, 1])
    tensor = torch.ones(2)
    calls = {
        "unregistered": lambda: hvd.allreduce(tensor, process_set=unknown),
        "not a member": lambda: hvd.allreduce(tensor, process_set=one),
        "barrier of others": lambda: hvd.barrier(process_set=one),
        "rank of others": one.rank,
        "adasum": lambda: hvd.allreduce(tensor, op=hvd.Adasum, process_set=one),
        "static": lambda: hvd.add_process_set([0]),
        "no integer": lambda: hvd.ProcessSet(["a"]),
    }
    return {what: _error_of(call) for what, call in calls.items()}


def _error_of(call: Any) -> str:
    try:
        call()
    except Exception as error:
        return ", ".join(kind.__name__ for kind in type(error).__mro__)
    return "nothing"


def duplicates() -> tuple[str, dict[int, list[int]], list[int | None]]:
    """Give init a list with a duplicate, then a good one."""
    message = ""
    try:
        hvd.init(process_sets=[hvd.ProcessSet([0]), hvd.ProcessSet([1, 0]), hvd.ProcessSet([0])])
    except ValueError as error:
        message = str(error)
    good = [hvd.ProcessSet([0]), hvd.ProcessSet([1])]
    hvd.init(process_sets=good)
    return message, process_sets.ids_and_ranks(), [one.process_set_id for one in good]


def dynamic() -> list[Any]:
    """Add, use and remove sets; return what was seen."""
    hvd.init(process_sets="dynamic")
    seen: list[Any] = []
    first, second = hvd.add_process_set([1, 0]), hvd.add_process_set(hvd.ProcessSet([2]))
    seen.append((first.process_set_id, first.ranks, second.process_set_id))
    seen.append(_error_of(lambda: hvd.add_process_set([0, 1])))
    if first.included():
        seen.append(hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=first).item())
    seen.append((hvd.remove_process_set(first), first.process_set_id, hvd.remove_process_set(first)))
    seen.append(hvd.remove_process_set(hvd.global_process_set))
    again = hvd.add_process_set([0, 2])
    seen.append(again.process_set_id)
    if again.included():
        seen.append(hvd.allreduce(torch.full((1,), hvd.rank() + 1.0), op=hvd.Sum, process_set=again).item())
    seen.append(float(hvd.allreduce(torch.ones(1), op=hvd.Sum).item()))
    return seen


class FakeCommunicator:
    """What an mpi4py communicator is used for, over two halves of the job."""

    def __init__(self, ranks: list[int]) -> None:
        self._ranks = ranks

    def Get_group(self) -> None:  # noqa: N802 - mpi4py's name
        """Mark it as a communicator."""

    def allgather(self, value: int) -> list[int]:
        assert value in self._ranks
        return self._ranks[::-1]


def from_communicators() -> tuple[dict[int, list[int]], list[float]]:
    """Register the set of each rank's half of the job, made of communicators that differ between ranks."""
    hvd.init()
    half = [rank for rank in range(hvd.size()) if rank % 2 == hvd.rank() % 2]
    one = hvd.ProcessSet(FakeCommunicator(half))
    hvd.init(process_sets=[one])
    found: list[float] = hvd.allgather(torch.tensor([float(hvd.rank())]), process_set=one).tolist()
    return process_sets.ids_and_ranks(), found


def join_after(steps: list[int], op: int, dtype: str) -> tuple[list[list[float]], int, float]:
    """Reduce as often as this rank has data, join; return the results, who came last, and a sum made afterwards."""
    kind = getattr(torch, dtype)
    mine = torch.tensor([hvd.rank() + 1, -hvd.rank() - 1], dtype=kind)
    found = [hvd.allreduce(mine, op=op).tolist() for _ in range(steps[hvd.rank()])]
    time.sleep(0.02 * hvd.rank())
    last = hvd.join()
    return found, last, float(hvd.allreduce(torch.ones(1), op=hvd.Sum).item())


def gather_while_joined() -> tuple[str, int]:
    """Gather on the ranks but 0, which has joined; return the error and who joined last."""
    error = "nothing"
    if hvd.rank() > 0:
        time.sleep(0.05)
        try:
            hvd.allgather(torch.ones(1), name="while joined")
        except RingtuneError as caught:
            error = type(caught).__name__
    return error, hvd.join()
