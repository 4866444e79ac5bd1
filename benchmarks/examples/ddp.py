"""DistributedDataParallel over ringtune: a script for any backend, with one line changed.

    ringtune run -np 2 python ddp.py
    torchrun --nproc-per-node 2 ddp.py

Every rank trains on its own share of a regression problem; DDP averages the gradients in buckets while backward runs.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH = 32


def main() -> None:
    """Trains, and prints the loss of all ranks before and after."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("ringtune")
    rank, size = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)  # the same problem on every rank; DDP sends rank 0's weights to all
    inputs = torch.randn(size * BATCH, 16)
    targets = inputs @ torch.randn(16, 1)
    mine = slice(rank * BATCH, (rank + 1) * BATCH)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    losses = []
    for _ in range(args.steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs[mine]), targets[mine])
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    ends = torch.stack([losses[0], losses[-1]])
    dist.all_reduce(ends)
    if rank == 0:
        first, last = (ends / size).tolist()
        print(f"ranks {size}, loss {first:.4f} -> {last:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
