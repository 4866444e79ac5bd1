"""One rank of `ringtune bench frameworks`: programs of one framework, or steps of a training (``step:`` or ``alone:``).

Started by `ringtune run` as ``python -m ringtune.benchmarks.comm.frameworks_worker JOIN THREADS CONTENDER``; JOIN is
where the driver of the race listens.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import ringtune
import ringtune.numpy as base
from ringtune.benchmarks.comm.framework_programs import JOIN, Sums, open_program
from ringtune.benchmarks.comm.framework_steps import STEPS, Start, StepContest, prepare, start_of
from ringtune.benchmarks.harness.race.bursts import Contest
from ringtune.benchmarks.harness.race.rank import Seat, serve, tensors_of


def _serve_steps(join: str, about: str, contender: str) -> None:
    """Trains; ranks that are alone reduce nothing."""
    way, _, framework = contender.rpartition(":")
    import_module(f"ringtune.{framework}").init()
    seat = Seat(join, base.rank(), base.size(), f"ringtune {ringtune.__version__}, {about}")

    def opened(start: Start) -> Contest:
        return StepContest(STEPS[framework](start, way == "step"))

    serve(seat, {contender: opened}, lambda order, seat: start_of(seat.rank))
    base.shutdown()


def main(join: str, threads: str, contender: str) -> None:
    """Runs this rank."""
    way, _, framework = contender.rpartition(":")
    if way:
        _serve_steps(join, prepare(framework, int(threads)), contender)
        return
    about, make = JOIN[contender](int(threads))
    seat = Seat(join, base.rank(), base.size(), f"ringtune {ringtune.__version__}, {about}")

    def read_task(order: Mapping[str, Any], seat: Seat) -> Sums:
        return Sums(tensors_of(order, seat), order["chain"])

    serve(seat, {contender: open_program(make)}, read_task)
    base.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
