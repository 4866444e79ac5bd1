"""One rank that times backward passes with empty hooks and with those of `DistributedOptimizer`, in turn.

Started by `ringtune bench hook` as ``python -m ringtune.benchmarks.comm.hook_worker CONFIG`` where CONFIG is the JSON
form of `HookRun`.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Sequence

import torch

import ringtune.torch as hvd
from ringtune.benchmarks.comm.config import HookRun
from ringtune.benchmarks.harness import marks
from ringtune.benchmarks.harness.marks import read_config

# Steps until the tensors are known and negotiated, and stand in the schedule of a steady state.
_WARMUPS = 20


def main(config: str) -> None:
    """Runs this rank; prints the marked line ``passes``."""
    run = read_config(HookRun, config)
    hvd.init()
    torch.set_num_threads(1)
    plain, hooked = _parameters(run), _parameters(run)
    for param in plain:
        param.register_post_accumulate_grad_hook(_nothing)
    names = [(f"hook.{index}", param) for index, param in enumerate(hooked)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(hooked, lr=0.0), named_parameters=names)
    gc.disable()
    empty_ns, hooked_ns = [], []
    for _ in range(_WARMUPS + run.passes):
        empty_ns.append(_time(plain))
        hooked_ns.append(_time(hooked))
        optimizer.synchronize()
    marks.send("passes", rank=hvd.rank(), empty_ns=empty_ns[_WARMUPS:], hooked_ns=hooked_ns[_WARMUPS:])
    hvd.shutdown()


def _parameters(run: HookRun) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.zeros(run.size_bytes // 4)) for _ in range(run.gradients)]


def _nothing(_: torch.Tensor) -> None:
    return None


def _time(params: Sequence[torch.nn.Parameter]) -> int:
    grads = [torch.zeros_like(param) for param in params]
    begin_ns = time.perf_counter_ns()
    torch.autograd.backward(params, grads)
    return time.perf_counter_ns() - begin_ns


if __name__ == "__main__":
    main(sys.argv[1])
