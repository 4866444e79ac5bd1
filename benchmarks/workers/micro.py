"""One rank of a micro benchmark: races the contenders case by case and reports the times.

Started by `ringtune bench allreduce` and `ringtune bench gradients` as ``python -m ringtune.benchmarks.workers.micro
CONFIG`` where CONFIG is the JSON form of `MicroRun`.
"""

from __future__ import annotations

import sys

import torch

import ringtune.torch as hvd
from ringtune.benchmarks import marks
from ringtune.benchmarks.bursts import Budget, Race
from ringtune.benchmarks.contenders import CONTENDERS
from ringtune.benchmarks.control import open_gloo
from ringtune.benchmarks.patterns import Buffers, exact_sums
from ringtune.benchmarks.workers.config import MicroRun

# Lines of progress per case: enough to see that it lives, few enough not to disturb what is measured.
NOTES_PER_CASE = 5


def main(config: str) -> None:
    """Runs this rank; rank 0 prints marked lines ``round`` and, per case, ``case``."""
    run = MicroRun.from_json(config)
    hvd.init()
    torch.set_num_threads(run.threads)
    with open_gloo():
        for index in range(len(run.cases)):
            _case(run, index)
    hvd.shutdown()


def _case(run: MicroRun, index: int) -> None:
    buffers = Buffers(run.cases[index], run.dtype, hvd.rank(), hvd.size())
    openers = CONTENDERS[run.benchmark]
    contenders = {name: openers[name](buffers.tensors) for name in run.contenders}
    race = Race(contenders, buffers, exact_sums(run.dtype, hvd.size()))

    def on_round(done: int, rounds: int) -> None:
        if done % max(1, rounds // NOTES_PER_CASE) == 0:
            _send("round", case=index, done=done, rounds=rounds)

    samples = race.run(Budget(seconds=run.seconds), on_round)
    _send("case", case=index, times_ns=samples)


def _send(event: str, **fields: object) -> None:
    if hvd.rank() == 0:
        marks.send(event, **fields)


if __name__ == "__main__":
    main(sys.argv[1])
