"""What ranks do in the tests of stall reports."""

from __future__ import annotations

import ctypes
import time

import torch

import ringtune.torch as hvd

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
