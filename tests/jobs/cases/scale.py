"""What the ranks of larger jobs do. Values are small integers, so that every sum is exact."""

from __future__ import annotations

import os
import time

import torch

import ringtune.torch as hvd
from ringtune import session


def sums(rounds: int, tensors: int) -> list[float]:
    """Reduce the same tensors again and again, as training does; return one element of each of the last results."""
    values: list[float] = []
    for _ in range(rounds):
        handles = [
            hvd.allreduce_async(torch.full((257,), float(hvd.rank() + index)), name=f"scale.{index}", op=hvd.Sum)
            for index in range(tensors)
        ]
        values = [float(hvd.synchronize(handle)[13]) for handle in handles]
    return values


def sockets() -> int:
    """Return how many sockets this process has open."""
    count = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{number}").startswith("socket:")
        except FileNotFoundError:  # the one that listed the folder
            continue
    return count


def control_messages(rounds: int) -> list[float]:
    """Return the control messages of this rank per blocking allreduce of a tensor that has been reduced before.

    Four times: what a starved rank does late may cost others a message more.
    """
    tensor, found = torch.ones(3), []
    hvd.allreduce(tensor, name="counted")
    for _ in range(4):
        before = session.require().counters()["control_messages"]
        for _ in range(rounds):
            hvd.allreduce(tensor, name="counted")
        found.append(float(session.require().counters()["control_messages"] - before) / rounds)
    return found


def processor_time(size_bytes: int, calls: int) -> float:
    """Return the processor seconds of this rank per blocking allreduce."""
    tensor = torch.ones(size_bytes // 4)
    name = f"burst.{size_bytes}"
    hvd.allreduce_(tensor, name=name, op=hvd.Max)
    hvd.barrier()
    begin = time.process_time()
    for _ in range(calls):
        hvd.allreduce_(tensor, name=name, op=hvd.Max)
    return (time.process_time() - begin) / calls
