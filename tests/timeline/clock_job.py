"""A rank that reduces for a while, with the timeline on: started by test_clock_drift in a namespace of its own."""

from __future__ import annotations

import sys
import time

import numpy as np

import ringtune
from ringtune.operations import Allreduce

FLOAT32, SUM = 7, 1


def main(seconds: float) -> None:
    session = ringtune.init()
    data = np.ones(64, dtype=np.float32)
    until = np.array([0.0], dtype=np.float32)
    began = time.monotonic()
    while until[0] == 0:
        # Rank 0 says when it is enough, and all get it in the same sum.
        until[0] = 1.0 if session.rank == 0 and time.monotonic() - began > seconds else 0.0
        for name, array in (("data", data), ("until", until)):
            operation = Allreduce(name, array.ctypes.data, array.ctypes.data, array.shape, FLOAT32, SUM)
            ticket = session.submit(operation)
            session.wait(ticket)
            session.release(ticket)
        data[:] = 1
        session.end_step()
        time.sleep(0.002)
    ringtune.shutdown()


if __name__ == "__main__":
    main(float(sys.argv[1]))
