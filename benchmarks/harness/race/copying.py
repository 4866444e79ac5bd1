"""One rank that copies memory: the limit that no reduction out of cache can beat. ``python -m ... JOIN RANK SIZE``."""

from __future__ import annotations

import sys

import numpy as np

from ringtune.benchmarks.harness.race.bursts import CopyContest
from ringtune.benchmarks.harness.race.rank import Seat, serve


def main(join: str, rank: str, size: str) -> None:
    """Runs this rank."""
    serve(Seat(join, int(rank), int(size), f"numpy.copyto of NumPy {np.__version__}"), {"copy-limit": CopyContest})


if __name__ == "__main__":
    main(*sys.argv[1:])
