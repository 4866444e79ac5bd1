"""One rank of `ringtune bench train`: trains when the driver of the race says so, and sleeps in between.

Started as ``python -m ringtune.benchmarks.training.train_worker JOIN CONFIG``; JOIN is where the driver listens, CONFIG
the JSON form of `TrainRank`. One job trains in one way, so that none shares its cores with another's threads; a job
that does not train with ringtune does not open it.
"""

from __future__ import annotations

import gc
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

import ringtune
import ringtune.torch as hvd
import ringtune.torch.distributed
from ringtune.benchmarks.harness import devices
from ringtune.benchmarks.harness.marks import read_config
from ringtune.benchmarks.harness.race.bursts import Call, Contest
from ringtune.benchmarks.harness.race.rank import Seat, serve
from ringtune.benchmarks.training.config import TrainingTask, TrainRank
from ringtune.benchmarks.training.trainers import TRAINERS, Trainer

_MANY = 1 << 20


class TrainingContest:
    """Training steps, one after the other."""

    max_calls = _MANY

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.call: Call = trainer.step
        self.settle = trainer.settle

    def fill(self) -> None:
        """Leaves everything as it is: the model goes on learning."""

    def check(self, calls: int) -> None:
        """Raises ArithmeticError when the loss is no number any more."""
        if not math.isfinite(self._trainer.loss):
            raise ArithmeticError(f"the loss became {self._trainer.loss} within {calls} steps")


def open_contest(way: str, seed: int, task: TrainingTask) -> Contest:
    """Returns the contest of one way to train; `seed` is that of weights and data."""
    # The collector stays on, as in any training script: garbage of a trainer is part of its cost.
    gc.enable()
    torch.manual_seed(seed)
    return TrainingContest(TRAINERS[way](task))


def _store(path: str, size: int) -> Any:
    """Returns torch's store in a file; torch's stubs do not know it."""
    return dist.FileStore(path, size)  # type: ignore[attr-defined]


@contextmanager
def _ringtune(rank: TrainRank) -> Iterator[tuple[int, int]]:
    hvd.init()
    yield hvd.rank(), hvd.size()
    hvd.shutdown()


@contextmanager
def _ringtune_ddp(rank: TrainRank) -> Iterator[tuple[int, int]]:
    with _ringtune(rank) as (own, size):
        dist.init_process_group(
            ringtune.torch.distributed.BACKEND, store=_store(rank.store_file, size), rank=own, world_size=size
        )
        yield own, size
        dist.destroy_process_group()


@contextmanager
def _gloo(rank: TrainRank) -> Iterator[tuple[int, int]]:
    # Gloo otherwise takes the address of the host's name, which on some machines is unreachable.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=_store(rank.store_file, rank.size), rank=rank.rank, world_size=rank.size)
    yield rank.rank, rank.size
    dist.destroy_process_group()


@contextmanager
def _nccl(rank: TrainRank) -> Iterator[tuple[int, int]]:
    devices.take(rank.device, rank.rank)
    dist.init_process_group("nccl", store=_store(rank.store_file, rank.size), rank=rank.rank, world_size=rank.size)
    yield rank.rank, rank.size
    dist.destroy_process_group()


@contextmanager
def _ringtune_hook(rank: TrainRank) -> Iterator[tuple[int, int]]:
    with _ringtune(rank) as (own, size), _gloo(replace(rank, rank=own)):
        yield own, size


@contextmanager
def _nobody(rank: TrainRank) -> Iterator[tuple[int, int]]:
    yield rank.rank, rank.size


_Opens = Callable[[TrainRank], Any]
_LIBRARIES: Mapping[str, tuple[str, _Opens]] = {
    **{
        f"ringtune-{way}": (f"ringtune {ringtune.__version__}, {way}", _ringtune)
        for way in ("fp16", "bf16", "powersgd", "topk")
    },
    "alone": (f"torch {torch.__version__}", _nobody),
    "ringtune-in-step": (f"torch {torch.__version__}, ranks wait for one another", _ringtune),
    "ringtune": (f"ringtune {ringtune.__version__}", _ringtune),
    "ringtune-ddp": (f"ringtune {ringtune.__version__} under DDP of torch {torch.__version__}", _ringtune_ddp),
    "ringtune-hook": (f"ringtune {ringtune.__version__} as hook of DDP of torch {torch.__version__}", _ringtune_hook),
    "ddp-alone": (f"DDP of torch {torch.__version__}, nothing is reduced", _gloo),
    "ddp-gloo": (f"gloo of torch {torch.__version__}", _gloo),
    "ddp-nccl": (f"nccl of torch {torch.__version__}", _nccl),
}


def main(join: str, config: str) -> None:
    """Runs this rank until the race ends."""
    rank = read_config(TrainRank, config)
    torch.set_num_threads(rank.threads)
    about, opens = _LIBRARIES[rank.way]
    with opens(rank) as (own, size):
        devices.take(rank.device, own)
        openers = {rank.way: lambda task: open_contest(rank.way, rank.seed + own, task)}
        serve(Seat(join, own, size, about), openers, lambda order, seat: TrainingTask(**order["training"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
