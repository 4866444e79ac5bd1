"""A rank of a real job without a framework: steps of four fused allreduces each. Started by test_recorded_job."""

from __future__ import annotations

import argparse
import fcntl
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

import ringtune
from ringtune import layout
from ringtune.operations import Allreduce
from ringtune.session import Session
from ringtune.timeline.reading.reader import read
from ringtune.timeline.vocabulary import Stage

FLOAT32, SUM = 7, 1
NAMES = ('plain "quoted"', "back\\slash", "ünï ✓\ttab", "last")
STEPS, COUNT = 3, 1000
SHOWN = "shown.json"

RING = 1 << 16  # spans that wait for the writer
BURST, STEPS_FROZEN = RING + 5_000, 20
FIFREEZE, FITHAW = 0xC0045877, 0xC0045878  # linux/fs.h


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--dies", action="store_true")
    parser.add_argument("--freezes", help="mount point of the disk that holds the parts")
    options = parser.parse_args()
    session = ringtune.init()
    if options.freezes:
        freeze(session, options.freezes)
    for step in range(options.steps):
        one_step(session)
        if options.dies and step == 1 and session.rank == 1:
            wait_for_a_step(session)
            os.kill(os.getpid(), signal.SIGKILL)
    if session.rank == 0 and session.run_folder is not None:
        with suppress(OSError):  # the merge removes it; on another disk it is not asked for
            os.link(layout.shown_file(session.run_folder), session.run_folder / SHOWN)
    ringtune.shutdown()


def one_step(session: Session) -> None:
    """Reduce four tensors and check them."""
    inputs = [np.full(COUNT, session.rank + number, dtype=np.float32) for number in range(len(NAMES))]
    outputs = [np.empty_like(array) for array in inputs]
    with ringtune.range("submit"):
        tickets = [
            session.submit(Allreduce(name, source.ctypes.data, target.ctypes.data, (COUNT,), FLOAT32, SUM))
            for name, source, target in zip(NAMES, inputs, outputs, strict=True)
        ]
    for ticket in tickets:
        session.wait(ticket)
        session.release(ticket)
    for number, target in enumerate(outputs):
        assert np.all(target == sum(rank + number for rank in range(session.size)))
    session.end_step()


def freeze(session: Session, disk: str) -> None:
    """Block the writer of rank 0 within one write, overfill its ring, go on training; let the disk work again, go on.

    Would the training wait for the writer at any point, the disk would never be let go.
    """
    folder = os.open(disk, os.O_RDONLY)
    if session.rank == 0:
        fcntl.ioctl(folder, FIFREEZE, 0)
    go_on_until(session, lambda: session.rank != 0 or writer_state() == "D")
    if session.rank == 0:
        for _ in range(BURST):
            with ringtune.range("burst"):
                pass
    for _ in range(STEPS_FROZEN):
        one_step(session)
    if session.rank == 0:
        assert writer_state() == "D"
        fcntl.ioctl(folder, FITHAW, 0)
    # It waits for more to do: it has been through the ring.
    go_on_until(session, lambda: writer_state() == "S")


def go_on_until(session: Session, mine: Callable[[], bool]) -> None:
    """Train until all ranks say so."""
    agreed = np.zeros(1, dtype=np.float32)
    while agreed[0] < session.size:
        one_step(session)
        said = np.array([mine()], dtype=np.float32)
        ticket = session.submit(Allreduce("agreed", said.ctypes.data, agreed.ctypes.data, (1,), FLOAT32, SUM))
        session.wait(ticket)
        session.release(ticket)


def writer_state() -> str:
    """What the kernel says of the thread that writes the timeline: D is blocked within a write, S waits."""
    for task in Path("/proc/self/task").iterdir():
        if (task / "comm").read_text() == "ringtune-trace\n":
            return (task / "stat").read_text().rpartition(")")[2].split()[0]
    raise AssertionError("no thread writes the timeline")


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
