"""What a command tells its workers: plain dataclasses that travel as JSON, importable without torch."""

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
class TrainRank:
    """Who a rank of `ringtune bench train` is.

    Args:
        way: key of `training.TRAINERS`.
        threads: of torch.
        seed: of weights and data; the rank is added.
        meeting: file through which torch's process groups meet; made by them.
        rank: this rank, of jobs that `ringtune run` does not start.
        size: number of ranks, likewise.
        device: where it trains.
    """

    way: str
    threads: int
    seed: int
    meeting: str = ""
    rank: int = 0
    size: int = 1
    device: str = "cpu"

    @classmethod
    def from_json(cls, text: str) -> TrainRank:
        """Returns what `dataclasses.asdict` and `json.dumps` made of a `TrainRank`."""
        return cls(**json.loads(text))


@dataclass(frozen=True)
class TraceRun:
    """What a rank does that times steps with the timeline on and off.

    Args:
        profiles: sizes in bytes of the tensors of a step, by case.
        rounds: bursts of each kind (off, on, off again) per case.
        seconds: of one burst.
    """

    profiles: list[list[int]]
    rounds: int
    seconds: float

    @classmethod
    def from_json(cls, text: str) -> TraceRun:
        """Returns what `dataclasses.asdict` and `json.dumps` made of a `TraceRun`."""
        return cls(**json.loads(text))


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


@dataclass(frozen=True)
class HookRun:
    """What a rank does that times gradient hooks.

    Args:
        gradients: parameters, each with one gradient per pass.
        size_bytes: of each.
        passes: measured pairs of backward passes.
    """

    gradients: int
    size_bytes: int
    passes: int

    @classmethod
    def from_json(cls, text: str) -> HookRun:
        """Returns what `dataclasses.asdict` and `json.dumps` made of a `HookRun`."""
        return cls(**json.loads(text))


@dataclass(frozen=True)
class LiveRun:
    """What a rank does that is watched by a dashboard.

    Args:
        past: small steps as fast as they go, before the steps that are watched.
        tensors: reduced in each of them.
        period_s: time from one watched step to the next; what is left of it is spent waiting, as if for data.
    """

    past: int
    tensors: int
    period_s: float

    @classmethod
    def from_json(cls, text: str) -> LiveRun:
        """Returns what `dataclasses.asdict` and `json.dumps` made of a `LiveRun`."""
        return cls(**json.loads(text))
