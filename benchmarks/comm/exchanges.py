"""The collectives other than allreduce as torch's processes race them, each through its public Python call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

import ringtune.torch as hvd
from ringtune.benchmarks.comm.tensors import as_tensor
from ringtune.benchmarks.harness import devices
from ringtune.benchmarks.harness.race.bursts import Call, Contest
from ringtune.benchmarks.harness.race.exchanges import Exchange
from ringtune.benchmarks.harness.race.patterns import Array, Task
from ringtune.benchmarks.harness.race.rank import Unsupported

# Of a collective, what is given and where the result may go; the call returns the result if it goes elsewhere.
Make = Callable[[str, torch.Tensor, torch.Tensor], Call]


def ringtune_exchange(collective: str, given: torch.Tensor, received: torch.Tensor) -> Call:
    """Returns a blocking call of Horovod's interface, with what ringtune adds to it: memory for the result."""
    calls: dict[str, Call] = {
        "broadcast": partial(hvd.broadcast_, given, 0, "bench"),
        "allgather": partial(hvd.allgather, given, "bench", out=received),
        "reducescatter": partial(hvd.reducescatter, given, "bench", op=hvd.Sum, out=received),
        "alltoall": partial(hvd.alltoall, given, None, "bench", out=received),
        "barrier": hvd.barrier,
    }
    return calls[collective]


def gloo_exchange(collective: str, given: torch.Tensor, received: torch.Tensor) -> Call:
    """Returns a blocking call of torch.distributed, which writes into tensors that are at hand."""
    calls: dict[str, Call] = {
        "broadcast": partial(dist.broadcast, given, 0),
        "allgather": partial(dist.all_gather_into_tensor, received, given),
        "reducescatter": partial(dist.reduce_scatter_tensor, received, given),
        "alltoall": partial(dist.all_to_all_single, received, given),
        "barrier": dist.barrier,
    }
    return calls[collective]


def open_exchange(make: Make, task: Task) -> Contest:
    """Returns the contest of `make`.

    Raises:
        Unsupported: the library has no such collective for the dtype.
    """
    contest = TorchExchange(make, Exchange(task))
    try:
        contest.call()
    except (RuntimeError, NotImplementedError, ValueError) as error:
        raise Unsupported(f"no {task.collective} of {task.dtype}: {error}") from error
    return contest


class TorchExchange:
    """Does a collective on tensors; `exchange` is their image on the host, from which they are filled and checked.

    Args:
        make: gives the call.
        exchange: the image.
    """

    max_calls = 1 << 20

    def __init__(self, make: Make, exchange: Exchange) -> None:
        task = exchange.task
        self.settle = devices.settle_of(task.device)
        self._exchange = exchange
        self._host = as_tensor(exchange.given, task.dtype)
        self._given = self._host if task.device == devices.CPU else self._host.to(task.device)
        if exchange.received is exchange.given:
            self._received = self._given
        else:
            received = as_tensor(exchange.received, task.dtype)
            self._received = received if task.device == devices.CPU else received.to(task.device)
        self._run = make(task.collective, self._given, self._received)
        self._result: Any = None
        self.call: Call = self._call

    def _call(self) -> None:
        self._result = self._run()

    def fill(self) -> None:
        """Puts this rank's part in place."""
        self._exchange.fill()
        self._result = None
        if self._given is not self._host:
            self._received.zero_()
            self._given.copy_(self._host)

    def check(self, calls: int) -> None:
        """Raises ArithmeticError unless everything is as it must be after `calls` calls."""
        del calls
        result = self._result if isinstance(self._result, torch.Tensor) else self._received
        self._exchange.check(_as_array(result))


def _as_array(tensor: torch.Tensor) -> Array:
    host = tensor.detach().cpu()
    array: Array = host.view(torch.int16).numpy().view("uint16") if host.dtype is torch.bfloat16 else host.numpy()
    return array
