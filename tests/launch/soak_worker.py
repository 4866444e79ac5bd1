"""A worker of the soak test: trains with numbers whose sums are exact, so that every set of ranks computes the same.

A weight is a multiple of 2^-20 and a sample of small integers: all sums of a batch fit into the 53 bits of a float64,
in whatever order they are added. Each step is noted in ``steps/WORKER`` as ``generation batch loss``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

import ringtune.numpy as hvd
from ringtune.common.elastic import ObjectState, run_fn
from ringtune.elastic import membership
from ringtune.numpy.objects import broadcast_object

SAMPLES, WEIGHTS = 12, 8
_UNIT = 2.0**20
_RATE = 1 / 512
Vector = np.ndarray


def first_weights() -> Vector:
    return np.zeros(WEIGHTS)


def sums_of(weights: Vector, batch: int, rank: int, size: int) -> Vector:
    """Return the sums over a rank's samples of a batch: the gradient, and the loss behind it."""
    numbers = np.random.default_rng(batch)
    inputs = numbers.integers(-4, 5, (SAMPLES, WEIGHTS))[rank::size].astype(np.float64)
    targets = inputs @ np.arange(WEIGHTS) + numbers.integers(-2, 3, SAMPLES)[rank::size]
    errors = inputs @ weights - targets
    return np.append(errors @ inputs, np.abs(errors).sum())


def stepped(weights: Vector, gradient: Vector) -> Vector:
    return np.round((weights - gradient * _RATE) * _UNIT) / _UNIT


def main() -> None:
    folder, worker = Path(sys.argv[1]), os.environ["RINGTUNE_WORKER"]
    about = {"pid": os.getpid(), "host": os.environ["RINGTUNE_HOSTNAME"]}
    (folder / "workers" / worker).write_text(json.dumps(about), encoding="utf-8")
    hvd.init()

    def train(state: ObjectState) -> None:
        member = membership.current()
        assert member is not None and member.assignment is not None
        with (folder / "steps" / worker).open("a", encoding="utf-8", buffering=1) as notes:
            while True:
                sums = sums_of(state.weights, state.batch, hvd.rank(), hvd.size())
                asked = float((folder / "stop").exists())
                *gradient, loss, stop = hvd.allreduce(np.append(sums, asked), op=hvd.Sum, name="step")
                notes.write(f"{member.assignment.generation} {state.batch} {float(loss).hex()}\n")
                state.weights = stepped(state.weights, np.array(gradient))
                state.batch += 1
                if stop:
                    return
                if state.batch % 5 == 0:
                    state.commit()
                time.sleep(0.01)

    def join_again() -> None:
        hvd.shutdown()
        hvd.init()

    run_fn(train, join_again)(ObjectState(broadcast_object, hvd.rank, batch=0, weights=first_weights()))
    hvd.shutdown()


if __name__ == "__main__":
    main()
