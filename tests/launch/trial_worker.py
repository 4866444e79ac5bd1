"""A rank of a fault trial: works through the phases of a job until its fault comes, and notes what it was told.

What to do stands in the variables TRIAL_PHASE, TRIAL_FAULT, TRIAL_VICTIM, TRIAL_DELAY_S and TRIAL_FOLDER. The victim
writes the moment of its fault into ``fault``, a survivor its outcome into ``rank-N``.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import ringtune.numpy as hvd

PHASES = ("rendezvous", "negotiation", "ring", "idle", "repeated steps", "checkpoint", "shutdown")
AFTER_S = 60.0
"""So long a survivor goes on after the fault; then nothing has told it of the fault, which is a hang."""

FOLDER = Path(os.environ.get("TRIAL_FOLDER", "."))
_FAULT = FOLDER / "fault"


def note(file: Path, what: Any) -> None:
    """Write a file that is whole when it is there."""
    part = file.with_suffix(f".part{os.getpid()}")
    part.write_text(json.dumps(what))
    part.rename(file)


def rank_here() -> int:
    return int(os.environ["RINGTUNE_RANK"])


class PlannedError(Exception):
    """What a rank's script raises on purpose."""


def end_with(fault: str) -> None:
    """Be the fault; only the script's own end returns to the caller, by an exception."""
    note(_FAULT, time.monotonic())
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "frozen":
        os.kill(os.getpid(), signal.SIGSTOP)
    if fault == "out of memory":
        raise MemoryError("planned")
    if fault == "raise":
        raise PlannedError("planned")
    if fault in ("exit", "exit 0"):
        raise SystemExit(3 if fault == "exit" else 0)


def arm(fault: str, delay_s: float) -> None:
    """Let the fault come after a delay, wherever this process is then; a network's comes from outside."""
    if fault in ("killed", "frozen"):
        # On a thread of its own, since a signal handler of Python waits for the end of a call into the runtime.
        timer = threading.Timer(delay_s, end_with, [fault])
    elif fault in ("cable out", "dropped", "half open"):
        timer = threading.Timer(delay_s, note, [FOLDER / "ready", time.monotonic()])
    else:
        signal.signal(signal.SIGALRM, lambda *_: end_with(fault))
        signal.setitimer(signal.ITIMER_REAL, delay_s)
        return
    timer.daemon = True  # a fault that comes too late shall not hold the process
    timer.start()


def go_on(step: Callable[[int], object]) -> None:
    """Repeat a step until it fails, or for as long as a hang is told from it."""
    number, since = 0, time.monotonic()
    while time.monotonic() < since + AFTER_S:
        step(number)
        number += 1


def negotiate(number: int) -> None:
    hvd.allreduce(np.ones(4, np.float32), name=f"new.{number}")


def ring(_: int) -> None:
    hvd.allreduce(np.ones(4 << 20, np.float32), name="large")


def idle(number: int) -> None:
    time.sleep(0.2)
    hvd.allreduce(np.ones(4, np.float32), name=f"seldom.{number % 3}")


def repeat(_: int) -> None:
    handles = [hvd.allreduce_async(np.ones(64, np.float32), name=f"gradient.{index}") for index in range(8)]
    for handle in handles:
        hvd.synchronize(handle)


def checkpoint(_: int) -> None:
    """Rank 0 writes a file while the others wait for it."""
    if hvd.rank() == 0:
        note(FOLDER / "checkpoint", list(range(20_000)))
        time.sleep(0.1)
    hvd.barrier()


STEPS = {
    "negotiation": negotiate,
    "ring": ring,
    "idle": idle,
    "repeated steps": repeat,
    "checkpoint": checkpoint,
}
OPERATIONS = {
    "negotiation": "allreduce.new.",
    "ring": "allreduce.large",
    "idle": "allreduce.seldom.",
    "repeated steps": "allreduce.gradient.",
    "checkpoint": "barrier",
}
"""What the survivors are in, by phase."""


def work(phase: str, begin: Callable[[], None]) -> None:
    """Go through the job; `begin` is called where the phase begins."""
    if phase == "rendezvous":
        begin()
    hvd.init()
    hvd.allreduce(np.ones(4, np.float32), name="first")
    if phase in STEPS:
        begin()
        go_on(STEPS[phase])
    if phase == "shutdown":
        begin()
    hvd.shutdown()


def main() -> None:
    faulthandler.register(signal.SIGUSR1)  # of a launcher that hangs, all ranks tell where they stand
    phase, fault = os.environ["TRIAL_PHASE"], os.environ["TRIAL_FAULT"]
    victim = rank_here() == int(os.environ["TRIAL_VICTIM"])
    delay_s = float(os.environ["TRIAL_DELAY_S"])
    if victim:
        work(phase, lambda: arm(fault, delay_s))
        signal.setitimer(signal.ITIMER_REAL, 0)
        note(FOLDER / "missed", True)  # the work ended before the fault came
        return
    error: BaseException | None = None
    try:
        work(phase, lambda: None)
    except BaseException as raised:
        error = raised
    told = time.monotonic()
    outcome = {"kind": type(error).__name__ if error else "", "text": str(error) if error else "", "at": told}
    note(FOLDER / f"rank-{rank_here()}", outcome)
    if error is not None:
        raise error


if __name__ == "__main__":
    main()
