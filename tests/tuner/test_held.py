"""No training step is held by the tuner: what it does on rank 0, in the training's own thread."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

from ringtune.knobs import DEFAULTS
from ringtune.tuner import scoring
from ringtune.tuner.advice import Stored
from ringtune.tuner.extension import TunerExtension
from ringtune.tuner.journal import Journal
from ringtune.tuner.landscape import Noise, SimulatedRun
from ringtune.tuner.online import OnlineTuner
from ringtune.tuner.options import OnlineOptions
from ringtune.tuner.space import Space
from tests.tuner.jobs import FAST, SLOW, FakeAdvisor, Table
from tests.tuner.test_extension import FakeSession

MOST_S = 0.001
REPEATS = 5


class Closing(FakeAdvisor):
    """Says which of its ends were asked for."""

    def __init__(self) -> None:
        super().__init__([FAST, SLOW], stored=Stored(FAST, 9, confirmed=True))
        self.ends: list[str] = []

    def finish(self) -> None:
        self.ends.append("finish")

    def close(self) -> None:
        self.ends.append("close")


def whole_session(folder: Path, seed: int) -> tuple[list[float], TunerExtension, Closing]:
    """Play a session in which a stored setting is refused and another search is made; the steps' processor times."""
    scoring._rank_sum_ways.cache_clear()
    session: Any = FakeSession(folder)
    session.run = SimulatedRun(Table({FAST: 10.1e6, SLOW: 9e6}), Noise(0.01), DEFAULTS, seed)
    advisor = Closing()
    tuner = OnlineTuner(Space(), advisor, OnlineOptions(max_trials=6, steps_per_trial=10))
    extension = TunerExtension(
        session, lambda before: (tuner, advisor), Journal(folder / "journal.jsonl", folder / "log.csv")
    )
    held: list[float] = []
    while tuner.result is None:
        stats = session.run.next_step()
        begin = time.thread_time()
        extension.on_step(stats)
        held.append(time.thread_time() - begin)
    return held, extension, advisor


def test_no_step_is_held_longer_than_a_millisecond(tmp_path: Path) -> None:
    """Processor time of each step, the least of sessions that are alike: what disturbs a step only adds to it."""
    gc.freeze()  # what the tests before have left in this process is not the tuner's to look through
    try:
        sessions = [whole_session(tmp_path / str(repeat), seed=3) for repeat in range(REPEATS)]
    finally:
        gc.unfreeze()
    for _, extension, _ in sessions:
        extension.on_close()
    steps = list(zip(*(held for held, _, _ in sessions), strict=True))
    assert len(steps) > 200
    assert max(min(repeats) for repeats in steps) < MOST_S


def test_the_step_that_ends_the_session_does_not_wait_for_the_advisor(tmp_path: Path) -> None:
    """It stores the result meanwhile; the end of training waits for that."""
    _, extension, advisor = whole_session(tmp_path, seed=3)
    assert advisor.ends == ["finish"]
    extension.on_close()
    assert advisor.ends == ["finish", "close"]
