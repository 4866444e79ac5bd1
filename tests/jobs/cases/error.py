"""What ranks do in the tests of errors inside one runtime, and of what is left of removed process sets."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

import torch

import ringtune.torch as hvd
from ringtune.errors import RingtuneError

GATHERED = 64 << 20  # bytes of each rank


def run_out_of_memory(victim: int) -> tuple[str, str, float]:
    """Gather more than one rank has memory for; return the error, its text and how long it took, or none of them.

    The victim's process lives on until the others have been told.
    """
    tensor = torch.zeros(GATHERED, dtype=torch.uint8)
    hvd.allreduce(torch.ones(3), name="before")
    begin = time.monotonic()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    if hvd.rank() == victim:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + GATHERED, limits[1]))
    try:
        hvd.allgather(tensor, name="too.much")
    except (RingtuneError, MemoryError) as error:
        return type(error).__name__, str(error), time.monotonic() - begin
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    return "none", "", 0.0


def open_descriptors(rounds: int) -> list[int]:
    """Add a process set, use all its links, remove it; return how many descriptors are open after each round."""
    hvd.init(process_sets="dynamic")
    counts = []
    for _ in range(rounds):
        made = hvd.add_process_set([0, 1])
        if made.included():
            for count in (10, 100_000):
                total = hvd.allreduce(torch.ones(count), op=hvd.Sum, process_set=made, name=f"sum.{count}")
                assert total[0].item() == 2.0
            hvd.alltoall(torch.arange(4), process_set=made, name="exchange")
        hvd.remove_process_set(made)
        hvd.barrier()
        counts.append(len(os.listdir("/proc/self/fd")))
    return counts
