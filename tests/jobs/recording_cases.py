"""What ranks do in the tests of recording: steps in which one rank comes late, recordings that start and stop."""

from __future__ import annotations

import time

import ringtune.torch as hvd
from ringtune import session
from tests.jobs import plan_cases

LATE_S = 0.003


def steps_with_a_late_rank(steps: int, late: int) -> None:
    """The same tensors step after step; rank `late` begins every step later than the others."""
    for number in range(steps):
        if hvd.rank() == late:
            time.sleep(LATE_S)
        plan_cases.step(number, 5)
        session.require().end_step()


def recordings(count: int, steps: int) -> None:
    """Some recordings one after the other, with steps in and between them."""
    for _ in range(count):
        for recording in (True, False):
            if recording:
                hvd.start_timeline(str(session.require().planned_folder / "trace.json"))
            for number in range(steps):
                plan_cases.step(number, 3)
                session.require().end_step()
            if recording:
                hvd.stop_timeline()
