"""One rank of `ringtune bench frameworks`: programs of one framework.

Started by `ringtune run` as ``python -m ringtune.benchmarks.comm.frameworks_worker JOIN THREADS CONTENDER``; JOIN is
where the driver of the race listens.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import ringtune
import ringtune.numpy as base
from ringtune.benchmarks.comm.framework_programs import JOIN, Sums, open_program
from ringtune.benchmarks.harness.race.rank import Seat, serve, tensors_of


def main(join: str, threads: str, contender: str) -> None:
    """Runs this rank."""
    about, make = JOIN[contender](int(threads))
    seat = Seat(join, base.rank(), base.size(), f"ringtune {ringtune.__version__}, {about}")

    def read_task(order: Mapping[str, Any], seat: Seat) -> Sums:
        return Sums(tensors_of(order, seat), order["chain"])

    serve(seat, {contender: open_program(make)}, read_task)
    base.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
