"""The ways to train a model that the training benchmarks race: same model, data and optimizer, other communication."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import ringtune.torch as hvd
from ringtune.benchmarks.control import open_gloo
from ringtune.benchmarks.vision import build_model
from ringtune.benchmarks.workers.config import TrainingTask

LEARNING_RATE = 0.01
CLASSES = 1000


class Trainer(Protocol):
    """Trains one step at a time."""

    def step(self) -> None:
        """Forward, backward, reduction and update on one batch."""


class _ModelTrainer:
    """The part that all trainers share."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, task: TrainingTask) -> None:
        self._model = model
        self._optimizer = optimizer
        self._images = torch.randn(task.batch_size, 3, task.image_size, task.image_size)
        self._labels = torch.randint(CLASSES, (task.batch_size,))

    def step(self) -> None:
        self._optimizer.zero_grad()
        loss = functional.cross_entropy(_logits(self._model(self._images)), self._labels)
        loss.backward()
        self._optimizer.step()


def _logits(output: Any) -> torch.Tensor:
    # GoogLeNet and Inception return their auxiliary classifiers too while they train.
    logits = output if isinstance(output, torch.Tensor) else output.logits
    assert isinstance(logits, torch.Tensor)
    return logits


def open_ringtune(task: TrainingTask) -> Trainer:
    """Returns a trainer whose gradients go through `ringtune.torch.DistributedOptimizer`."""
    model = build_model(task.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if task.fp16_allreduce else hvd.Compression.none,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    return _ModelTrainer(model, optimizer, task)


def open_ddp_gloo(task: TrainingTask) -> Trainer:
    """Returns a trainer under torch's DistributedDataParallel on gloo; its process group must be open."""
    # Statistics of batch normalisation stay local, as in the other trainers and in Horovod.
    model = DistributedDataParallel(build_model(task.model), broadcast_buffers=False)
    return _ModelTrainer(model, torch.optim.SGD(model.parameters(), lr=LEARNING_RATE), task)


class _Opens(Protocol):
    def __call__(self, task: TrainingTask) -> Trainer:
        """Returns a trainer for `task`."""


TRAINERS: Mapping[str, _Opens] = {"ringtune": open_ringtune, "ddp-gloo": open_ddp_gloo}
_NEED_GLOO = frozenset({"ddp-gloo"})


def group_for(contenders: list[str]) -> AbstractContextManager[None]:
    """Returns the context in which `contenders` can be opened and run."""
    return open_gloo() if _NEED_GLOO.intersection(contenders) else nullcontext()
