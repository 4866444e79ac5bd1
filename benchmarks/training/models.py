"""What the training benchmarks train: a model by name, one fixed random batch per rank, and the loss."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch.nn import functional

from ringtune.benchmarks.harness.devices import CPU
from ringtune.benchmarks.training import vision
from ringtune.benchmarks.training.config import TrainingTask
from ringtune.benchmarks.training.gpt import Gpt
from ringtune.errors import UsageError

GPT = "gpt"
CLASSES = 1000


def check_task(task: TrainingTask) -> None:
    """Checks that there is such a model, and that it takes what the task gives it.

    Raises:
        UsageError: unknown, or sequences longer than the model's context.
    """
    if task.model != GPT:
        vision.check_model(task.model)
    elif task.sequence_length > (context := Gpt().shape.context):
        raise UsageError(f"{GPT} takes sequences of at most {context} tokens, not {task.sequence_length}")


def build_model(task: TrainingTask) -> torch.nn.Module:
    """Returns the model with random weights from torch's current seed.

    Raises:
        UsageError: unknown name.
    """
    made: Any = Gpt() if task.model == GPT else vision.build_model(task.model)
    if task.device == CPU:
        model: torch.nn.Module = made
    else:
        layout = torch.preserve_format if task.model == GPT else torch.channels_last
        model = made.to(task.device, memory_format=layout)
    return model


class Batch:
    """One fixed random batch."""

    def __init__(self, task: TrainingTask) -> None:
        if task.model == GPT:
            tokens = torch.randint(Gpt().shape.vocabulary, (task.batch_size, task.sequence_length + 1))
            self._inputs, self._labels = tokens[:, :-1].contiguous(), tokens[:, 1:].reshape(-1)
        else:
            self._inputs = torch.randn(task.batch_size, 3, task.image_size, task.image_size)
            self._labels = torch.randint(CLASSES, (task.batch_size,))
        self._device = task.device
        if task.device != CPU:
            layout = torch.preserve_format if task.model == GPT else torch.channels_last
            self._inputs = self._inputs.to(task.device, memory_format=layout)
            self._labels = self._labels.to(task.device)

    def loss(self, model: torch.nn.Module) -> torch.Tensor:
        """Returns the model's loss on this batch; on a GPU the forward pass computes in bfloat16 where it may."""
        with nullcontext() if self._device == CPU else torch.autocast(self._device, torch.bfloat16):
            logits = _logits(model(self._inputs)).float()
        return functional.cross_entropy(logits.view(len(self._labels), -1), self._labels)


def items_per_step(task: TrainingTask) -> int:
    """Returns how many images (tokens of a language model) a rank trains on in a step."""
    return task.batch_size * (task.sequence_length if task.model == GPT else 1)


def unit(task: TrainingTask) -> str:
    """Returns the unit of a rate."""
    return "tokens/s" if task.model == GPT else "images/s"


def describe(task: TrainingTask) -> str:
    """Returns what is trained, for tables."""
    size = f"{task.sequence_length} tokens" if task.model == GPT else f"{task.image_size} px"
    place = "" if task.device == CPU else f", {task.dtype} on {task.device}"
    return f"{task.model}, batch {task.batch_size}, {size}{place}"


def _logits(output: Any) -> torch.Tensor:
    # GoogLeNet and Inception return their auxiliary classifiers too while they train.
    logits = output if isinstance(output, torch.Tensor) else output.logits
    assert isinstance(logits, torch.Tensor)
    return logits
