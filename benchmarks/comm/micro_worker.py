"""One rank of a micro benchmark that needs torch: ringtune itself, Gloo and NCCL.

Started by `ringtune run` as ``python -m ringtune.benchmarks.comm.micro_worker JOIN THREADS LIBRARY DEVICE``; JOIN is
where the driver of the race listens. One job runs one of them, so that none shares its cores with another's threads.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext

import torch

import ringtune
import ringtune.torch as hvd
from ringtune.benchmarks.comm.contenders import CONTENDERS
from ringtune.benchmarks.harness import devices
from ringtune.benchmarks.harness.process_groups import open_group
from ringtune.benchmarks.harness.race.rank import Seat, serve


def main(join: str, threads: str, library: str, device: str = devices.CPU) -> None:
    """Runs this rank; `library` is ``gloo`` or ``nccl``, or ``ringtune`` and perhaps how."""
    hvd.init()
    devices.take(device, hvd.local_rank())
    torch.set_num_threads(int(threads))
    others = library in ("gloo", "nccl")
    about = f"{library} of torch {torch.__version__}" if others else f"ringtune {ringtune.__version__}"
    with open_group(library) if others else nullcontext():
        serve(Seat(join, hvd.rank(), hvd.size(), about), CONTENDERS)
    hvd.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
