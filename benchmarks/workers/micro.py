"""One rank of a micro benchmark that needs torch: ringtune itself, and gloo.

Started by `ringtune run` as ``python -m ringtune.benchmarks.workers.micro JOIN THREADS LIBRARY``; JOIN is where
the driver of the race listens. One job runs one of the two, so that neither has the other's threads beside it.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext

import torch

import ringtune
import ringtune.torch as hvd
from ringtune.benchmarks.contenders import CONTENDERS
from ringtune.benchmarks.control import open_gloo
from ringtune.benchmarks.workers.race.rank import Seat, serve


def main(join: str, threads: str, library: str) -> None:
    """Runs this rank; `library` is ``gloo``, or ``ringtune`` and perhaps how."""
    hvd.init()
    torch.set_num_threads(int(threads))
    about = f"gloo of torch {torch.__version__}" if library == "gloo" else f"ringtune {ringtune.__version__}"
    with open_gloo() if library == "gloo" else nullcontext():
        serve(Seat(join, hvd.rank(), hvd.size(), about), CONTENDERS)
    hvd.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
