"""FSDP2 over ringtune: every rank keeps its share of parameters, gradients and the optimizer's state.

    ringtune run -np 2 python fsdp2.py
    torchrun --nproc-per-node 2 fsdp2.py

`fully_shard` gathers a layer's parameters before they are used and scatters its reduced gradients afterwards. Needs
torch 2.6 or later.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main() -> None:
    """Trains, and prints the loss and how much of the model a rank holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("ringtune")
    rank, size = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 1))
    whole = sum(parameter.numel() for parameter in model.parameters())
    mesh = init_device_mesh("cpu", (size,))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    # After sharding: the optimizer's state is then sharded too.
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    here = sum(parameter.to_local().numel() for parameter in model.parameters())  # type: ignore[attr-defined]

    inputs = torch.randn(64, 16)
    targets = inputs @ torch.randn(16, 1)
    losses = []
    for _ in range(args.steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs[rank::size]), targets[rank::size])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if rank == 0:
        print(f"ranks {size}, {here} of {whole} parameters on rank 0, loss {losses[0]:.4f} -> {losses[-1]:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
