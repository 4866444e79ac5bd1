"""A rank of a real job without a framework: three steps of four fused allreduces each. Started by test_recorded_job."""

from __future__ import annotations

import os
import signal
import sys

import numpy as np

import ringtune
from ringtune.operations import Allreduce

FLOAT32, SUM = 7, 1
NAMES = ('plain "quoted"', "back\\slash", "ünï ✓\ttab", "last")
STEPS, COUNT = 3, 1000


def main(dies: bool) -> None:
    session = ringtune.init()
    for step in range(STEPS):
        inputs = [np.full(COUNT, session.rank + number, dtype=np.float32) for number in range(len(NAMES))]
        outputs = [np.empty_like(array) for array in inputs]
        with ringtune.range("submit"):
            tickets = [
                session.submit_allreduce(
                    Allreduce(name, source.ctypes.data, target.ctypes.data, (COUNT,), FLOAT32, SUM)
                )
                for name, source, target in zip(NAMES, inputs, outputs, strict=True)
            ]
        for ticket in tickets:
            session.wait(ticket)
            session.release(ticket)
        for number, target in enumerate(outputs):
            assert np.all(target == sum(rank + number for rank in range(session.size)))
        session.end_step()
        if dies and step == 1 and session.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    ringtune.shutdown()


if __name__ == "__main__":
    main("--dies" in sys.argv)
