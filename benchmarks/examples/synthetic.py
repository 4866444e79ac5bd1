"""Images per second of a small residual network on random images, in the style of Horovod's synthetic benchmark.

    ringtune run -np 2 python synthetic.py --batch-size 16

A script of your own can be measured in the same way; `ringtune bench resnet` does it with torchvision's models and
computes scaling efficiency.
"""

from __future__ import annotations

import argparse
import statistics
import timeit

import torch
from torch import nn
from torch.nn import functional

import ringtune.torch as hvd


class Block(nn.Module):
    """Two convolutions around a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns a tensor of the shape of `x`, [N, channels, height, width]."""
        return functional.relu(x + self.body(x))


def build_model(channels: int, blocks: int) -> nn.Module:
    """Returns a network for images [N, 3, height, width] and 1,000 classes."""
    return nn.Sequential(
        nn.Conv2d(3, channels, 7, stride=4, padding=3),
        *(Block(channels) for _ in range(blocks)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, 1000),
    )


def parse_arguments() -> argparse.Namespace:
    """Returns the options of the command line."""
    parser = argparse.ArgumentParser(description="Synthetic benchmark.")
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
    parser.add_argument("--batch-size", type=int, default=16, help="images per rank")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--num-warmup-batches", type=int, default=5)
    parser.add_argument("--num-batches-per-iter", type=int, default=5)
    parser.add_argument("--num-iters", type=int, default=10)
    return parser.parse_args()


def main() -> None:
    """Trains on one random batch over and over and prints images per second."""
    args = parse_arguments()
    hvd.init()
    torch.set_num_threads(1)

    model = build_model(args.channels, args.blocks)
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01),
        named_parameters=model.named_parameters(),
        compression=compression,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    data = torch.randn(args.batch_size, 3, args.image_size, args.image_size)
    target = torch.randint(1000, (args.batch_size,))

    def benchmark_step() -> None:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()

    def log(text: str) -> None:
        if hvd.rank() == 0:
            print(text, flush=True)

    log(f"Batch size: {args.batch_size}, ranks: {hvd.size()}")
    timeit.timeit(benchmark_step, number=args.num_warmup_batches)
    rates = []
    for index in range(args.num_iters):
        seconds = timeit.timeit(benchmark_step, number=args.num_batches_per_iter)
        rates.append(args.batch_size * args.num_batches_per_iter / seconds)
        log(f"Iter #{index}: {rates[-1]:.1f} img/sec per rank")
    mean, spread = statistics.mean(rates), 1.96 * statistics.pstdev(rates)
    log(f"Img/sec per rank: {mean:.1f} +- {spread:.1f}")
    log(f"Total img/sec on {hvd.size()} rank(s): {hvd.size() * mean:.1f} +- {hvd.size() * spread:.1f}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
