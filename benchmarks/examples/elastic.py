"""Elastic training: ranks that fail are replaced, and training goes on from the last commit.

    ringtune run -np 2 --min-np 1 python elastic.py
    ringtune run -np 2 --min-np 1 python elastic.py --fail-at 30   # rank 1 dies in step 30 of its first start

The state is committed every ten steps. When a rank is lost, the others catch it in `hvd.elastic.run`, go back to the
last commit and go on with the ranks that are there then.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

import ringtune.torch as hvd

COMMIT_STEPS = 10


def main() -> None:
    """Trains elastically and prints the loss."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--fail-at", type=int, metavar="STEP", help="rank 1 ends in this step, once")
    parser.add_argument("--failed", type=Path, default=Path("failed"), help="file that remembers that it has failed")
    args = parser.parse_args()
    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs = torch.randn(64, 16)
    targets = inputs @ torch.randn(16, 1)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    @hvd.elastic.run
    def train(state: Any) -> float:
        loss = torch.zeros(())
        while state.step < args.steps:
            if state.step == args.fail_at and hvd.rank() == 1 and not args.failed.exists():
                args.failed.touch()
                os._exit(1)
            optimizer.zero_grad()
            mine = slice(hvd.rank(), None, hvd.size())
            loss = nn.functional.mse_loss(state.model(inputs[mine]), targets[mine])
            loss.backward()
            optimizer.step()
            state.step += 1
            if state.step % COMMIT_STEPS == 0:
                state.commit()
        return loss.item()

    last = train(hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0))
    if hvd.rank() == 0:
        print(f"ranks {hvd.size()}, {args.steps} steps, loss {last:.4f}", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
