"""Handwritten digits, in the style of Horovod's MNIST example.

    ringtune run -np 2 --as-horovod python mnist.py

The data ships with scikit-learn. Every rank draws its own share of the images; the learning rate grows with the number
of ranks; metrics are averaged over the ranks.
"""

from __future__ import annotations

import argparse

import horovod.torch as hvd
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Net(nn.Module):
    """Two convolutions and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, kernel_size=3, padding=1)
        self.dropout = nn.Dropout2d(0.1)
        self.fc1 = nn.Linear(32 * 4 * 4, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns log-probabilities [N, 10] for images [N, 1, 8, 8]."""
        x = functional.relu(self.conv1(x))
        x = functional.relu(functional.max_pool2d(self.dropout(self.conv2(x)), 2))
        x = functional.relu(self.fc1(x.flatten(1)))
        return functional.log_softmax(self.fc2(x), dim=1)


def parse_arguments() -> argparse.Namespace:
    """Returns the options of the command line."""
    parser = argparse.ArgumentParser(description="Handwritten digits in Horovod's style")
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.05, help="per rank")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
    parser.add_argument("--use-adasum", action="store_true", help="combine gradients with Adasum")
    parser.add_argument("--gradient-predivide-factor", type=float, default=1.0)
    return parser.parse_args()


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Returns training and test images [1, 8, 8] in 0..1 with their labels."""
    digits = load_digits()
    images = torch.tensor(digits.images / 16.0, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(digits.target)
    return TensorDataset(images[:1437], labels[:1437]), TensorDataset(images[1437:], labels[1437:])


def make_optimizer(args: argparse.Namespace, model: nn.Module) -> torch.optim.Optimizer:
    """Returns the distributed optimizer; all ranks begin with rank 0's weights and state."""
    # Adasum needs no larger learning rate for more ranks.
    scale = 1 if args.use_adasum else hvd.size()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * scale, momentum=args.momentum)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    wrapped: torch.optim.Optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
        gradient_predivide_factor=args.gradient_predivide_factor,
    )
    return wrapped


def train(
    args: argparse.Namespace,
    epoch: int,
    loader: DataLoader[tuple[torch.Tensor, ...]],
    parts: tuple[nn.Module, torch.optim.Optimizer],
) -> None:
    """Trains one epoch on this rank's share."""
    model, optimizer = parts
    model.train()
    for index, (data, target) in enumerate(loader):
        optimizer.zero_grad()
        loss = functional.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        if hvd.rank() == 0 and index % args.log_interval == 0:
            print(f"Train Epoch: {epoch} [{index * len(data)}/{len(loader) * len(data)}]\tLoss: {loss.item():.6f}")


def metric_average(value: float, name: str) -> float:
    """Returns the mean of a metric over all ranks."""
    mean: float = hvd.allreduce(torch.tensor(value), name=name).item()
    return mean


def test(model: nn.Module, loader: DataLoader[tuple[torch.Tensor, ...]], share: int) -> None:
    """Prints loss and accuracy over the test images of all ranks."""
    model.eval()
    loss, right = 0.0, 0.0
    with torch.no_grad():
        for data, target in loader:
            output = model(data)
            loss += functional.nll_loss(output, target, reduction="sum").item()
            right += (output.argmax(dim=1) == target).float().sum().item()
    loss, accuracy = metric_average(loss / share, "avg_loss"), metric_average(right / share, "avg_accuracy")
    if hvd.rank() == 0:
        print(f"Test set: Average loss: {loss:.4f}, Accuracy: {100 * accuracy:.2f}%")


def main() -> None:
    """Trains and tests, epoch by epoch."""
    args = parse_arguments()
    hvd.init()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    train_data, test_data = load_data()
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(train_data, hvd.size(), hvd.rank())
    test_sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(test_data, hvd.size(), hvd.rank())
    loader = DataLoader(train_data, args.batch_size, sampler=sampler)
    test_loader = DataLoader(test_data, 100, sampler=test_sampler)
    model = Net()
    optimizer = make_optimizer(args, model)
    for epoch in range(1, args.epochs + 1):
        sampler.set_epoch(epoch)
        train(args, epoch, loader, (model, optimizer))
    test(model, test_loader, len(test_sampler))


if __name__ == "__main__":
    main()
