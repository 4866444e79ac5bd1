"""Training that goes on while ranks fail and come, in the style of Horovod's elastic examples.

    ringtune run -np 2 --min-np 1 --as-horovod python elastic.py

The state is committed every few batches; when a rank is lost, the others go back to the last commit and go on with the
images that were not seen yet.
"""

from __future__ import annotations

import argparse
from typing import Any

import horovod.torch as hvd
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


def parse_arguments() -> argparse.Namespace:
    """Returns the options of the command line."""
    parser = argparse.ArgumentParser(description="Elastic training in Horovod's style")
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.02, help="per rank")
    parser.add_argument("--batches-per-commit", type=int, default=10)
    return parser.parse_args()


def load_data() -> TensorDataset:
    """Returns images as 64 numbers in 0..1, with their labels."""
    digits = load_digits()
    return TensorDataset(torch.tensor(digits.data / 16.0, dtype=torch.float32), torch.tensor(digits.target))


def train_epoch(args: argparse.Namespace, state: Any, loader: DataLoader[tuple[torch.Tensor, ...]]) -> None:
    """Trains on what this epoch has left."""
    for index, (data, target) in enumerate(loader):
        state.optimizer.zero_grad()
        loss = functional.cross_entropy(state.model(data), target)
        loss.backward()
        state.optimizer.step()
        state.sampler.record_batch(index, args.batch_size)
        state.batch += 1
        if state.batch % args.batches_per_commit == 0:
            state.commit()


def main() -> None:
    """Trains elastically and prints the accuracy of each epoch."""
    args = parse_arguments()
    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(42)
    dataset = load_data()
    sampler = hvd.elastic.ElasticSampler(dataset)
    loader = DataLoader(dataset, args.batch_size, sampler=sampler)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, batch=0)

    def on_state_reset() -> None:
        # The learning rate follows the number of ranks.
        for group in optimizer.param_groups:
            group["lr"] = args.lr * hvd.size()

    @hvd.elastic.run
    def train(state: Any) -> None:
        while state.epoch < args.epochs:
            state.sampler.set_epoch(state.epoch)
            train_epoch(args, state, loader)
            state.epoch += 1
            state.commit()
            right = (state.model(dataset.tensors[0]).argmax(dim=1) == dataset.tensors[1]).float().mean()
            if hvd.rank() == 0:
                print(f"epoch {state.epoch}, ranks {hvd.size()}, accuracy {right.item():.3f}", flush=True)

    state.register_reset_callbacks([on_state_reset])
    train(state)


if __name__ == "__main__":
    main()
