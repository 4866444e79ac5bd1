"""Profiles as torch.profiler writes them of DDP on GPUs: 4 ranks, 16 steps of 20 kernels and 3 allreduces by NCCL.

The data loader of rank 2 takes 20 ms longer in steps 6 to 11: 120 of 683 ms.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count
from typing import Any

RANKS, STEPS = 4, 16
LATE_RANK, LATE_STEPS, LATE_US = 2, range(6, 12), 20_000
KERNELS, BUCKETS = 20, (12, 16, 19)
"""Kernels of a step, and after which of them a bucket of gradients is ready."""
START_US = 1_700_000_000_000_000.0
_COLLECTIVE = {
    "Collective name": "allreduce", "In msg nelems": 6_553_600, "Out msg nelems": 6_553_600, "Group size": RANKS,
    "dtype": "Float", "Process Group Name": "0", "Process Group Description": "default_pg",
}  # fmt: skip
_LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def profiles() -> Iterator[dict[str, Any]]:
    """Return the profile of each rank."""
    noise, correlations = random.Random(1), count(1)
    events: list[list[dict[str, Any]]] = [[] for _ in range(RANKS)]
    at = [0.0] * RANKS
    for step in range(STEPS):
        begun, ready = list(at), {}
        for rank in range(RANKS):
            late = LATE_US * (rank == LATE_RANK and step in LATE_STEPS)
            loading = 1_500 + noise.gauss(0, 80) + late
            events[rank].append(_event("user_annotation", _LOADER, 100 + rank, 100 + rank, at[rank], loading))
            host = at[rank] + loading
            at[rank] = host + 30
            for kernel in range(KERNELS):
                length, number = 1_500 + noise.gauss(0, 30), {"correlation": next(correlations)}
                launched = host + 40 * kernel
                events[rank] += [
                    _event("cpu_op", "aten::addmm", 100 + rank, 100 + rank, launched, 20, number),
                    _event("cuda_runtime", "cudaLaunchKernel", 100 + rank, 100 + rank, launched + 5, 8, number),
                    _event("kernel", "sm80_xmma_gemm_f32f32", rank, 7, at[rank], length, number | {"stream": 7}),
                ]
                at[rank] += length + 2
                if kernel in BUCKETS:
                    ready[kernel, rank] = at[rank], launched + 30
        ended = 0.0
        for bucket in BUCKETS:
            starts = [max(ready[bucket, rank][0] + 5, ended + 3) for rank in range(RANKS)]
            ended = max(starts) + 2_500
            for rank, start in enumerate(starts):
                number, launched = {"correlation": next(correlations)}, ready[bucket, rank][1]
                host, length = 101 + 2 * rank, ended - start + noise.uniform(0, 10)
                about = number | _COLLECTIVE | {"stream": 20}
                name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
                events[rank] += [
                    _event("cuda_runtime", "cudaLaunchKernel", 100 + rank, host, launched, 8, number),
                    _event("user_annotation", "nccl:all_reduce", 100 + rank, host, launched - 3, 14, number),
                    _event("kernel", name, rank, 20, start, length, about),
                ]
        for rank in range(RANKS):
            update = max(at[rank], ended) + 50
            number = {"correlation": next(correlations)}
            events[rank] += [
                _event("cpu_op", "Optimizer.step#SGD.step", 100 + rank, 100 + rank, update - 40, 30),
                _event("kernel", "multi_tensor_apply_kernel<SGD>", rank, 7, update, 900, number | {"stream": 7}),
                _event("user_annotation", f"ProfilerStep#{step}", 100 + rank, 100 + rank, begun[rank],
                       update + 950 - begun[rank]),
            ]  # fmt: skip
            at[rank] = update + 960
    for rank in range(RANKS):
        world = {"backend": "nccl", "rank": rank, "world_size": RANKS}
        yield {
            "schemaVersion": 1,
            "distributedInfo": world,
            "baseTimeNanoseconds": 0,
            "traceEvents": sorted(events[rank], key=lambda event: float(event["ts"])),
        }


def _event(
    category: str, name: str, pid: int, tid: int, at: float, length: float, args: dict[str, Any] | None = None
) -> dict[str, Any]:
    where = {"pid": pid, "tid": tid, "ts": START_US + at, "dur": length}
    return {"ph": "X", "cat": category, "name": name, **where, **({"args": args} if args else {})}
