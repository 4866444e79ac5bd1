"""What ranks do in the tests of stall reports."""

from __future__ import annotations

import ctypes
import time

import torch

import ringtune.torch as hvd
from ringtune import session
from ringtune.operations import Allreduce

FLOAT32 = 7
STEPS = 40  # after which the ranks follow a schedule


def sum_of(name: str) -> float:
    total: float = hvd.allreduce(torch.ones(100), name=name, op=hvd.Sum)[0].item()
    return total


def repeat_steps() -> None:
    for _ in range(STEPS):
        for number in range(3):
            sum_of(f"grad.{number}")


def one_step() -> float:
    handles = [hvd.allreduce_async(torch.ones(100), name=f"grad.{number}", op=hvd.Sum) for number in range(3)]
    return float(sum(hvd.synchronize(handle)[0].item() for handle in handles))


def load_a_batch(seconds: float) -> float:
    """Be late in Python."""
    time.sleep(seconds)
    return one_step()


def hold_the_interpreter(seconds: int) -> float:
    """Be late in native code that keeps the interpreter's lock: no other thread of this process runs Python."""
    ctypes.PyDLL(None).sleep(seconds)
    return one_step()


def cross(names: list[str], pause_s: float) -> float:
    """Submit one tensor, compute, then submit the others and wait for all."""
    first, *others = [lambda name=name: hvd.allreduce_async(torch.ones(2), name=name, op=hvd.Sum) for name in names]
    handles = [first()]
    time.sleep(pause_s)
    handles += [submit() for submit in others]
    return float(sum(hvd.synchronize(handle)[0].item() for handle in handles))


_TENSORS = [torch.ones(100) for _ in range(3)]


def _begin_raw_step() -> list[int]:
    current = session.require()
    return [
        current.submit(Allreduce(f"raw.{number}", tensor.data_ptr(), tensor.data_ptr(), [100], FLOAT32))
        for number, tensor in enumerate(_TENSORS)
    ]


def repeat_raw_steps() -> None:
    """Reduce by the session itself, so that there are tickets to ask about."""
    current = session.require()
    for _ in range(STEPS):
        for ticket in _begin_raw_step():
            current.wait(ticket)
            current.release(ticket)


def awaited_in_a_step(timeout_s: float) -> list[int]:
    """Wait for a while, then ask who is missing."""
    current = session.require()
    tickets = _begin_raw_step()
    assert not current.wait_for(tickets[0], 500_000_000)
    return current.awaited(tickets[0], int(timeout_s * 1e9))
