"""One rank that plays a step's gradients: sleeps until each is ready, submits it, waits for all at backward's end.

Started as ``python -m ringtune.benchmarks.workers.replayed WORKLOAD STEPS`` with the job in the environment. WORKLOAD
is a file of `{"ready_ns": [...], "bytes": [...], "backward_end_ns": ..., "after_ns": ...}`. It computes nothing, so
that ranks share no core for it: what is measured is the runtime and the links.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

import ringtune.torch as hvd
from ringtune import session


def main(workload: str, steps: str) -> None:
    """Runs this rank for so many steps."""
    hvd.init()
    torch.set_num_threads(1)
    plan = json.loads(Path(workload).read_text(encoding="utf-8"))
    tensors = [torch.zeros(size // 4) for size in plan["bytes"]]
    current = session.require()
    for _ in range(int(steps)):
        begin = time.monotonic_ns()
        handles = []
        for index, (ready, tensor) in enumerate(zip(plan["ready_ns"], tensors, strict=True)):
            _sleep_until(begin + ready)
            handles.append(hvd.allreduce_async_(tensor, op=hvd.Sum, name=f"gradient.{index}"))
        _sleep_until(begin + plan["backward_end_ns"])
        for handle in handles:
            hvd.synchronize(handle)
        time.sleep(plan["after_ns"] / 1e9)
        current.end_step()
    hvd.shutdown()


def _sleep_until(moment_ns: float) -> None:
    left = moment_ns - time.monotonic_ns()
    if left > 0:
        time.sleep(left / 1e9)


if __name__ == "__main__":
    main(*sys.argv[1:])
