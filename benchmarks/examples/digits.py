"""Trains a small convolutional network on handwritten digits, on any number of ranks.

    python digits.py                           # one rank
    ringtune run -np 2 python digits.py        # two ranks, the same loss

The data (1,797 images of 8 x 8 pixels) ships with scikit-learn. Every step uses one global batch; each rank takes its
share of it and ringtune averages the gradients, so the number of ranks changes the speed and nothing else.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional

import ringtune.torch as hvd

# In double precision the rounding of sums in another order stays far below what is printed.
torch.set_default_dtype(torch.float64)


def parse_arguments() -> argparse.Namespace:
    """Returns the options of the command line."""
    parser = argparse.ArgumentParser(description="Handwritten digits on any number of ranks.")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--global-batch", type=int, default=64, help="images per step, over all ranks")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write loss and accuracy to this file")
    return parser.parse_args()


def load_data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns training images [N, 1, 8, 8] in 0..1, test images, training labels and test labels."""
    digits = load_digits()
    images = torch.tensor(digits.images / 16.0).unsqueeze(1)
    labels = torch.tensor(digits.target)
    split = train_test_split(images, labels, test_size=0.2, random_state=0, stratify=labels)
    return split[0], split[1], split[2], split[3]


def build_model() -> nn.Module:
    """Returns the network: two convolutions and two linear layers."""
    return nn.Sequential(
        nn.Conv2d(1, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def main() -> None:
    """Trains and prints the final loss and accuracy."""
    args = parse_arguments()
    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    if args.global_batch % hvd.size():
        raise SystemExit(f"--global-batch {args.global_batch} must be a multiple of the number of ranks, {hvd.size()}")

    train_images, test_images, train_labels, test_labels = load_data()
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    share = args.global_batch // hvd.size()
    for epoch in range(args.epochs):
        # The same order on every rank; each rank takes its slice of every global batch.
        order = torch.randperm(len(train_images), generator=torch.Generator().manual_seed(args.seed + epoch))
        for batch in order.split(args.global_batch)[: len(order) // args.global_batch]:
            mine = batch[hvd.rank() * share : (hvd.rank() + 1) * share]
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(train_images[mine]), train_labels[mine])
            loss.backward()
            optimizer.step()
        mean_loss = hvd.allreduce(loss.detach(), name="epoch_loss")
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss of the last batch {mean_loss.item():.6f}")

    if hvd.rank() == 0:
        report(args, model, (train_images, train_labels), (test_images, test_labels))
    hvd.shutdown()


def report(
    args: argparse.Namespace,
    model: nn.Module,
    train: tuple[torch.Tensor, torch.Tensor],
    test: tuple[torch.Tensor, torch.Tensor],
) -> None:
    """Prints the loss on all training images and the accuracy on the test images; writes them to `--json`."""
    with torch.no_grad():
        loss = functional.cross_entropy(model(train[0]), train[1]).item()
        accuracy = (model(test[0]).argmax(dim=1) == test[1]).double().mean().item()
    print(f"ranks {hvd.size()}, final loss {loss:.9f}, test accuracy {accuracy:.2%}")
    if args.json:
        result = {"ranks": hvd.size(), "epochs": args.epochs, "loss": loss, "accuracy": accuracy}
        args.json.write_text(json.dumps(result) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
