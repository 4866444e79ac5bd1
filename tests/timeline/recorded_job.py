"""A rank of a real job without a framework: steps of four fused allreduces each. Started by test_recorded_job."""

from __future__ import annotations

import argparse
import os
import signal
import time

import numpy as np

import ringtune
from ringtune import layout
from ringtune.operations import Allreduce
from ringtune.session import Session
from ringtune.timeline.reader import read
from ringtune.timeline.vocabulary import Stage

FLOAT32, SUM = 7, 1
NAMES = ('plain "quoted"', "back\\slash", "ünï ✓\ttab", "last")
STEPS, COUNT = 3, 1000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--dies", action="store_true")
    options = parser.parse_args()
    session = ringtune.init()
    for step in range(options.steps):
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
        if options.dies and step == 1 and session.rank == 1:
            wait_for_a_step(session)
            os.kill(os.getpid(), signal.SIGKILL)
    ringtune.shutdown()


def wait_for_a_step(session: Session) -> None:
    """Block until this rank's part on the disk holds a step."""
    assert session.run_folder is not None
    part = layout.timeline_part(session.run_folder, session.rank)
    until = time.monotonic() + 120
    while time.monotonic() < until:
        (file,) = part.parent.glob(f"{part.name}*")
        if len(read(file).spans.of_stage(Stage.STEP)):
            return
        time.sleep(0.01)


if __name__ == "__main__":
    main()
