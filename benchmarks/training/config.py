"""The orders of a command for its workers: plain dataclasses that travel as JSON, importable without torch."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class TrainingTask:
    """What is trained: a model on one fixed synthetic batch per rank.

    Args:
        model: torchvision's name, or ``gpt`` for the small one of `gpt.py`.
        batch_size: images per rank and step.
        image_size: height and width in pixels.
        fp16_allreduce: ringtune sends gradients as float16.
        sequence_length: tokens per sequence of a language model, whose batch is of sequences.
        device: ``cpu``; ``cuda``: with bfloat16 (autocast), images' channels last.
    """

    model: str
    batch_size: int
    image_size: int
    fp16_allreduce: bool = False
    sequence_length: int = 128
    device: str = "cpu"

    @property
    def dtype(self) -> str:
        """What is computed in."""
        return "float32" if self.device == "cpu" else "bfloat16"


@dataclass(frozen=True)
class TrainingRun:
    """What a rank of a training benchmark does.

    Args:
        task: what is trained.
        contenders: keys of `trainers.TRAINERS`.
        warmup_batches: unmeasured steps per contender.
        batches_per_iter: steps of one iteration, that is of one sample.
        iters: measured iterations per contender.
        threads: of torch, per rank.
        seed: of weights and data; the rank is added.
    """

    task: TrainingTask
    contenders: list[str]
    warmup_batches: int
    batches_per_iter: int
    iters: int
    threads: int
    seed: int

    @classmethod
    def from_json(cls, text: str) -> TrainingRun:
        """Returns what `dataclasses.asdict` and `json.dumps` made of a `TrainingRun`."""
        fields = json.loads(text)
        return cls(**{**fields, "task": TrainingTask(**fields["task"])})


@dataclass(frozen=True)
class TrainRank:
    """The place of a rank of `ringtune bench train`.

    Args:
        way: key of `trainers.TRAINERS`.
        threads: of torch.
        seed: of weights and data; the rank is added.
        store_file: file of the store through which torch's process groups find each other; they create it.
        rank: this rank, of jobs that `ringtune run` does not start.
        size: number of ranks, likewise.
        device: where it trains.
    """

    way: str
    threads: int
    seed: int
    store_file: str = ""
    rank: int = 0
    size: int = 1
    device: str = "cpu"
