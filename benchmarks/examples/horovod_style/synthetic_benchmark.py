"""Images per second on random images, in the style of Horovod's synthetic benchmark.

ringtune run -np 2 --as-horovod python synthetic_benchmark.py --model resnet18 --batch-size 8
"""

from __future__ import annotations

import argparse
import timeit
from collections.abc import Callable

import horovod.torch as hvd
import numpy as np
import torch
from torch.nn import functional

from ringtune.benchmarks.training.vision import build_model


def parse_arguments() -> argparse.Namespace:
    """Returns the options of the command line."""
    parser = argparse.ArgumentParser(description="Synthetic benchmark in Horovod's style")
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
    parser.add_argument("--use-adasum", action="store_true", help="combine gradients with Adasum")
    parser.add_argument("--model", default="resnet50", help="a classification model of torchvision")
    parser.add_argument("--batch-size", type=int, default=8, help="images per rank")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--num-warmup-batches", type=int, default=5)
    parser.add_argument("--num-batches-per-iter", type=int, default=5)
    parser.add_argument("--num-iters", type=int, default=10)
    return parser.parse_args()


def make_step(args: argparse.Namespace) -> Callable[[], None]:
    """Returns a call that trains one step on one random batch."""
    model = build_model(args.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * (1 if args.use_adasum else hvd.size()))
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    data = torch.randn(args.batch_size, 3, args.image_size, args.image_size)
    target = torch.randint(1000, (args.batch_size,))

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(data), target).backward()
        optimizer.step()

    return step


def log(text: str) -> None:
    """Prints on rank 0."""
    if hvd.rank() == 0:
        print(text, flush=True)


def main() -> None:
    """Measures and prints images per second of each rank and of all."""
    args = parse_arguments()
    hvd.init()
    torch.set_num_threads(1)
    step = make_step(args)
    log(f"Model: {args.model}\nBatch size: {args.batch_size}\nNumber of CPUs: {hvd.size()}\nRunning warmup...")
    timeit.timeit(step, number=args.num_warmup_batches)
    log("Running benchmark...")
    rates = []
    for index in range(args.num_iters):
        seconds = timeit.timeit(step, number=args.num_batches_per_iter)
        rates.append(args.batch_size * args.num_batches_per_iter / seconds)
        log(f"Iter #{index}: {rates[-1]:.1f} img/sec per CPU")
    mean, spread = np.mean(rates), 1.96 * np.std(rates)
    log(f"Img/sec per CPU: {mean:.1f} +-{spread:.1f}")
    log(f"Total img/sec on {hvd.size()} CPU(s): {hvd.size() * mean:.1f} +-{hvd.size() * spread:.1f}")


if __name__ == "__main__":
    main()
