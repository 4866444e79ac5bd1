"""The ways to train a model that the training benchmarks race: same model, data and optimizer, other communication."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Protocol

import torch
from torch.nn.parallel import DistributedDataParallel

import ringtune.torch as hvd
from ringtune.benchmarks.harness import devices
from ringtune.benchmarks.harness.process_groups import group_of, open_group
from ringtune.benchmarks.training.config import TrainingTask
from ringtune.benchmarks.training.models import Batch, build_model

LEARNING_RATE = 0.01


class Trainer:
    """Trains one step at a time on one fixed batch."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, task: TrainingTask) -> None:
        self._model = model
        self._optimizer = optimizer
        self._batch = Batch(task)
        self.settle = devices.settle_of(task.device)
        self._loss = torch.zeros(())

    def step(self) -> None:
        """Forward, backward, reduction and update."""
        self._optimizer.zero_grad()
        loss = self._batch.loss(self._model)
        loss.backward()
        self._optimizer.step()
        self._loss = loss.detach()

    def before_update(self, act: Callable[[], None]) -> None:
        """Calls `act` in every step when the gradients are there."""
        self._optimizer.register_step_pre_hook(lambda *_: act())

    @property
    def loss(self) -> float:
        """Loss of the last step."""
        return self._loss.item()


def open_alone(task: TrainingTask) -> Trainer:
    """Returns a trainer that does not communicate: the limit of all others."""
    model = build_model(task)
    return Trainer(model, torch.optim.SGD(model.parameters(), lr=LEARNING_RATE), task)


def open_in_step(task: TrainingTask) -> Trainer:
    """Returns a trainer that sends nothing, and waits for the other ranks in every step."""
    trainer = open_alone(task)
    trainer.before_update(hvd.barrier)
    return trainer


def open_ringtune(task: TrainingTask, compression: Any = hvd.Compression.none) -> Trainer:
    """Returns a trainer whose gradients go through `ringtune.torch.DistributedOptimizer`."""
    model = build_model(task)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if task.fp16_allreduce else compression,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    return Trainer(model, optimizer, task)


def open_ddp(task: TrainingTask, backend: str = "") -> Trainer:
    """Returns a trainer under torch's DistributedDataParallel; its process group must be open."""
    # Statistics of batch normalisation stay local, as in the other trainers and in Horovod.
    model = DistributedDataParallel(build_model(task), broadcast_buffers=False, process_group=group_of(backend))
    return Trainer(model, torch.optim.SGD(model.parameters(), lr=LEARNING_RATE), task)


def open_ddp_hook(task: TrainingTask) -> Trainer:
    """Returns a trainer under DDP on another group, whose buckets ringtune reduces (`ringtune.torch.ddp_hook`)."""
    return _hooked(task, hvd.ddp_hook)


def open_ddp_alone(task: TrainingTask) -> Trainer:
    """Returns a trainer under DDP that reduces nothing: the cost of DDP itself, with its copies to and from buckets."""
    return _hooked(task, _reduce_nothing)


def _hooked(task: TrainingTask, hook: Any) -> Trainer:
    model = DistributedDataParallel(build_model(task), broadcast_buffers=False)
    model.register_comm_hook(None, hook)
    return Trainer(model, torch.optim.SGD(model.parameters(), lr=LEARNING_RATE), task)


def _reduce_nothing(state: Any, bucket: Any) -> Any:
    buffer = bucket.buffer()
    done: Any = torch.futures.Future(devices=None if buffer.is_cpu else [buffer.device])
    done.set_result(buffer)
    return done


# DDP compares the annotations of a hook with its own classes.
_reduce_nothing.__annotations__ = {}


class _Opens(Protocol):
    def __call__(self, task: TrainingTask) -> Trainer:
        """Returns a trainer for `task`."""


TRAINERS: Mapping[str, _Opens] = {
    "alone": open_alone,
    "ringtune-in-step": open_in_step,
    "ringtune": open_ringtune,
    "ringtune-fp16": partial(open_ringtune, compression=hvd.Compression.fp16),
    "ringtune-bf16": partial(open_ringtune, compression=hvd.Compression.bf16),
    "ringtune-powersgd": partial(open_ringtune, compression=hvd.Compression.powersgd(start_iteration=2)),
    "ringtune-topk": partial(open_ringtune, compression=hvd.Compression.topk()),
    "ringtune-ddp": open_ddp,
    "ringtune-hook": open_ddp_hook,
    "ddp-alone": open_ddp_alone,
    "ddp-gloo": partial(open_ddp, backend="gloo"),
    "ddp-nccl": partial(open_ddp, backend="nccl"),
}


def group_for(contenders: list[str]) -> AbstractContextManager[None]:
    """Returns the context in which `contenders` can be opened and run."""
    backends = [name.removeprefix("ddp-") for name in contenders if name in ("ddp-gloo", "ddp-nccl")]
    return open_group(*backends) if backends else nullcontext()
