"""One rank of a training benchmark: trains with all contenders in turn and reports their rates.

Started by `ringtune bench resnet` as ``python -m ringtune.benchmarks.training.scaling_worker CONFIG`` where CONFIG is
the JSON form of `TrainingRun`.
"""

from __future__ import annotations

import sys

import torch

import ringtune.torch as hvd
from ringtune.benchmarks.harness import devices, marks
from ringtune.benchmarks.harness.race.bursts import time_calls
from ringtune.benchmarks.training.config import TrainingRun
from ringtune.benchmarks.training.trainers import TRAINERS, Trainer, group_for


def main(config: str) -> None:
    """Runs this rank; rank 0 prints marked lines ``warm``, ``iteration`` and ``result``."""
    run = TrainingRun.from_json(config)
    hvd.init()
    devices.take(run.task.device, hvd.local_rank())
    torch.set_num_threads(run.threads)
    torch.manual_seed(run.seed + hvd.rank())
    with group_for(run.contenders):
        trainers = {name: TRAINERS[name](run.task) for name in run.contenders}
        rates = _measure(run, trainers)
    _report(run, rates)
    hvd.shutdown()


def _measure(run: TrainingRun, trainers: dict[str, Trainer]) -> dict[str, list[float]]:
    """Returns this rank's images per second, one sample per iteration, per contender."""
    for name, trainer in trainers.items():
        for _ in range(run.warmup_batches):
            trainer.step()
        _send("warm", contender=name)
    rates: dict[str, list[float]] = {name: [] for name in trainers}
    names = list(trainers)
    for index in range(run.iters):
        # Rotating the order spreads slow spells of the machine over all contenders.
        turn = index % len(names)
        for name in names[turn:] + names[:turn]:
            rates[name].append(_iteration(run, trainers[name]))
            _send("iteration", contender=name, iteration=index, rate=rates[name][-1])
    return rates


def _iteration(run: TrainingRun, trainer: Trainer) -> float:
    duration_ns = time_calls(trainer.step, run.batches_per_iter, trainer.settle)
    return run.task.batch_size * run.batches_per_iter * 1e9 / duration_ns


def _report(run: TrainingRun, rates: dict[str, list[float]]) -> None:
    table = torch.tensor([rates[name] for name in run.contenders], dtype=torch.float64)
    gathered = hvd.allgather(table.unsqueeze(0), name="bench.rates")
    by_contender = {name: gathered[:, index, :].tolist() for index, name in enumerate(run.contenders)}
    _send("result", ranks=hvd.size(), hosts=hvd.cross_size(), rates=by_contender)


def _send(event: str, **fields: object) -> None:
    if hvd.rank() == 0:
        marks.send(event, **fields)


if __name__ == "__main__":
    main(sys.argv[1])
