"""What ranks do in the tests of recording: steps in which one rank comes late, recordings that start and stop."""

from __future__ import annotations

import time

import numpy as np
import torch

import ringtune.numpy as numpy_hvd
import ringtune.torch as hvd
from ringtune import session
from tests.jobs.cases import step_schedule as step_schedule_cases

# Longer than a busy machine keeps a rank from its processor: a rank that submitted and got none is waited for too.
LATE_S = 0.02


def steps_with_a_late_rank(steps: int, late: int) -> None:
    """The same tensors step after step; rank `late` begins every step later than the others."""
    for number in range(steps):
        if hvd.rank() == late:
            time.sleep(LATE_S)
        step_schedule_cases.step(number, 5)
        session.require().end_step()


def schedules_that_one_rank_leaves(count: int, steps: int) -> None:
    """Step schedules that rank 1 leaves, by a tensor that is none of them, when others have begun the next step."""
    for number in range(count):
        for _ in range(steps):
            for name in ("a", "b"):
                hvd.allreduce(torch.ones(16), name=name)
        handles = []
        for name in (f"extra.{number}", "a") if hvd.rank() == 1 else ("a", f"extra.{number}"):
            time.sleep(LATE_S * (1 + hvd.rank()))
            handles.append(hvd.allreduce_async(torch.ones(16), name=name))
        for handle in handles:
            hvd.synchronize(handle)
        hvd.allreduce(torch.ones(16), name="b")


def recordings(count: int, steps: int) -> None:
    """Some recordings one after the other, with steps in and between them."""
    for _ in range(count):
        for recording in (True, False):
            if recording:
                hvd.start_timeline(str(session.require().planned_folder / "trace.json"))
            for number in range(steps):
                step_schedule_cases.step(number, 3)
                session.require().end_step()
            if recording:
                hvd.stop_timeline()


def steps_with_casts(steps: int) -> None:
    """Reduce one tensor as it is and two that travel as float16, by name, in every step."""
    for _ in range(steps):
        hvd.allreduce(torch.ones(1000), name="plain", op=hvd.Sum)
        for number in range(2):
            hvd.allreduce(torch.ones(1000), name=f"cast.{number}", op=hvd.Sum, compression=hvd.Compression.fp16)
        session.require().end_step()


def unmarked_steps(steps: int) -> int:
    """Reduce three unnamed arrays again and again; nobody says where a step ends. How many ended nevertheless."""
    for number in range(steps):
        time.sleep(0.003)
        for size in (5, 7, 9):
            assert numpy_hvd.allreduce(np.full(size, float(number)), op=numpy_hvd.Sum)[0] == numpy_hvd.size() * number
    return int(session.require().end_step().step)
