"""What a command tells its workers: plain dataclasses that travel as JSON, importable without torch."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class TrainingTask:
    """What is trained: a torchvision model on one fixed synthetic batch per rank.

    Args:
        model: torchvision's name.
        batch_size: images per rank and step.
        image_size: height and width in pixels.
        fp16_allreduce: ringtune sends gradients as float16.
    """

    model: str
    batch_size: int
    image_size: int
    fp16_allreduce: bool = False


@dataclass(frozen=True)
class TrainingRun:
    """What a rank of a training benchmark does.

    Args:
        task: what is trained.
        contenders: keys of `training.TRAINERS`.
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
class LearnRun:
    """What a rank does that times the algorithms of allreduce.

    Args:
        sizes_bytes: tensor sizes.
        seconds: measured per size and algorithm.
    """

    sizes_bytes: list[int]
    seconds: float

    @classmethod
    def from_json(cls, text: str) -> LearnRun:
        """Returns what `dataclasses.asdict` and `json.dumps` made of a `LearnRun`."""
        return cls(**json.loads(text))
