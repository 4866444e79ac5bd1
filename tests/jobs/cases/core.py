"""What ranks do that may use different cores. Values are small integers, so that every sum is exact."""

from __future__ import annotations

import os

import torch

import ringtune.torch as hvd

SIZES = (256, 4096, 100_000, 2_000_000)  # elements: one for each way that two ranks have of sharing memory


def sums(cores: list[list[int]]) -> list[float]:
    """Bind rank i to ``cores[i]``, open the session and reduce; return what every element of each size came to."""
    os.sched_setaffinity(0, cores[int(os.environ["RINGTUNE_RANK"])])
    hvd.init()
    found = []
    for size in SIZES:
        for step in range(5):
            tensor = torch.full((size,), float(hvd.rank() + step))
            hvd.allreduce_(tensor, op=hvd.Sum, name=f"size {size}")
            assert bool((tensor == tensor[0]).all()), f"{size} elements, step {step}: {tensor.unique().tolist()}"
        found.append(float(tensor[0]))
    hvd.shutdown()
    return found
