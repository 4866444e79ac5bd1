"""One rank of a job that a dashboard watches: a past of many small steps, then a model is trained until it is ended.

Started by `ringtune bench dashboard --live` as ``python -m ringtune.benchmarks.viewer.live_worker CONFIG`` where CONFIG
is the JSON form of `LiveRun`.
"""

from __future__ import annotations

import sys
import time

import torch

import ringtune.torch as hvd
from ringtune.benchmarks.harness.marks import read_config
from ringtune.benchmarks.viewer.config import LiveRun
from ringtune.session import Session

_WIDTH, _BATCH, _CLASSES = 256, 64, 10


def main(config: str) -> None:
    """Runs this rank until it is ended."""
    run = read_config(LiveRun, config)
    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(hvd.rank())
    _past(run)
    _train(run.period_s)


def _past(run: LiveRun) -> None:
    session = Session.current()
    assert session is not None
    named = [(torch.zeros(64), f"past.{index}") for index in range(run.tensors)]
    for _ in range(run.past):
        handles = [hvd.allreduce_async_(tensor, name=name, op=hvd.Sum) for tensor, name in named]
        for handle in handles:
            hvd.synchronize(handle)
        session.end_step()


def _train(period_s: float) -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(_WIDTH, _WIDTH), torch.nn.ReLU(), torch.nn.Linear(_WIDTH, _WIDTH), torch.nn.ReLU(),
        torch.nn.Linear(_WIDTH, _CLASSES),
    )  # fmt: skip
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    descent = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(descent, named_parameters=model.named_parameters())
    inputs, labels = torch.randn(_BATCH, _WIDTH), torch.randint(_CLASSES, (_BATCH,))
    while True:
        next_at = time.monotonic() + period_s
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        time.sleep(max(0.0, next_at - time.monotonic()))


if __name__ == "__main__":
    main(sys.argv[1])
