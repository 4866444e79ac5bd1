"""A training whose data loader is slow on one rank, on purpose: something for the timeline to find.

    ringtune run -np 2 --name slow --timeline slow.json python slow_rank.py --slow-rank 1 --slow-ms 6
    ringtune timeline stragglers slow.json

`timeline/README.md` walks from there to the cause.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

import ringtune.torch as hvd
from ringtune import range as recorded


def build_model() -> nn.Module:
    """Returns a network from [N, 256] to 10 classes with a few gradients of half a megabyte."""
    layers: list[nn.Module] = [nn.Linear(256, 384), nn.ReLU()]
    for _ in range(3):
        layers += [nn.Linear(384, 384), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(384, 10))


def load_batch(slow_ms: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a batch [64, 256] and its classes [64], `slow_ms` later than needed, as from a disk that others use."""
    with recorded("load batch"):
        time.sleep(slow_ms / 1000)
        return torch.randn(64, 256), torch.randint(10, (64,))


def main() -> None:
    """Trains for some steps."""
    parser = argparse.ArgumentParser(description="A training with one slow rank.")
    parser.add_argument("--slow-rank", type=int, default=1)
    parser.add_argument("--slow-ms", type=float, default=0.0, help="what loading a batch takes longer on that rank")
    parser.add_argument("--steps", type=int, default=120)
    options = parser.parse_args()
    torch.manual_seed(42)
    torch.set_num_threads(1)
    hvd.init()
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    slow_ms = options.slow_ms if hvd.rank() == options.slow_rank else 0.0
    for _ in range(options.steps):
        images, classes = load_batch(slow_ms)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), classes).backward()
        optimizer.step()
    hvd.shutdown()


if __name__ == "__main__":
    main()
