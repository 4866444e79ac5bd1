"""Jobs with a planted fault, and what must be said of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.timeline.scenario import Scenario

MS = 1_000_000


def job(ranks: int, steps: int, compute_ms: int, late: dict[tuple[int, int], int], **more: Any) -> Scenario:
    """A job with a start-up of 0.6 s, and computing that varies by a sixth."""
    start = {(rank, 0): 600 * MS for rank in range(ranks)}
    jitter = compute_ms * MS // 6
    return Scenario(
        ranks=ranks,
        steps=steps,
        compute_ns=compute_ms * MS,
        jitter_ns=jitter,
        transfer_ns=MS,
        pauses=start | late,
        **more,
    )


UNEQUAL = {(1, step): 20 * MS for step in range(1, 200)}


PLANTED: dict[str, tuple[Scenario, int, str, float]] = {
    "one-sleep": (job(2, 80, 18, {(1, 40): 14_000 * MS}), 1, "in 1 stall (step 40)", 0.88),
    "two-pauses": (
        job(2, 200, 10, {(0, 60): 1_000 * MS, (0, 120): 1_000 * MS}), 0, "in 2 stalls (steps 60, 120)", 0.40
    ),
    "late-steps": (job(3, 200, 20, {(1, step): 12 * MS for step in range(60, 120)}), 1, "in steps 60-119", 0.10),
    "unequal": (job(2, 200, 10, UNEQUAL), 1, "always (in 199 of 199 steps)", 0.56),
}  # fmt: skip
"""The job, the rank that is late, when, and the share of the job that it costs."""


def profile(rank: int, ranks: int, late: Callable[[int, int], float], steps: int = 16) -> dict[str, Any]:
    """What PyTorch's profiler says of a rank on a GPU: loading, kernels, one NCCL kernel a step, in microseconds."""
    noise = [random.Random(other) for other in range(ranks)]
    events: list[dict[str, Any]] = []
    at = 0.0
    for step in range(steps):
        loads = [1_500 + noise[other].gauss(0, 80) + late(other, step) for other in range(ranks)]
        ready = [at + load + 30_000 + noise[other].gauss(0, 60) for other, load in enumerate(loads)]
        begin, end = at, max(ready) + 2_500
        rows = [
            ("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", begin, loads[rank], 100),
            ("kernel", "sm80_xmma_gemm_f32f32", begin + loads[rank], ready[rank] - begin - loads[rank], 7),
            ("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", ready[rank], end - ready[rank], 20),
            ("user_annotation", f"ProfilerStep#{step}", begin, end + 1_000 - begin, 100),
        ]
        for category, name, ts, length, track in rows:
            event = {"ph": "X", "cat": category, "name": name, "pid": rank, "tid": track, "ts": ts, "dur": length}
            events.append(event)
        at = end + 1_000
    world = {"backend": "nccl", "rank": rank, "world_size": ranks}
    about = {"schemaVersion": 1, "distributedInfo": world, "baseTimeNanoseconds": 1_700_000_000_000_000_000}
    return {**about, "host_name": "here", "traceEvents": events}


def late_loader(rank: int, step: int) -> float:
    """Microseconds by which the data loader of rank 2 takes longer: 20 ms in steps 6 to 11."""
    return 20_000 if rank == 2 and 6 <= step < 12 else 0
