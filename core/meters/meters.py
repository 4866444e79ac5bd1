"""What a session measures of itself: one line a step, a sample of process and machine a second."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ringtune.config import Config
from ringtune.errors import RingtuneError
from ringtune.stats import StepStats
from ringtune.step_log import StepLog

if TYPE_CHECKING:
    from ringtune.meters.sampler import Sampler


class Measured(Protocol):
    """What is needed of a session."""

    rank: int
    local_rank: int
    config: Config


@dataclass
class Meters:
    """The meters of one session. Opened, stepped and closed on the thread that trains."""

    session: Measured
    _step_log: StepLog | None = None
    _sampler: Sampler | None = None

    def write_into(self, run: Path) -> None:
        """Write steps and samples into a run folder from now on.

        Raises:
            RingtuneError: It cannot be written.
        """
        session = self.session
        self._step_log = StepLog(run, session.rank)
        if session.config.sample_ns:
            from ringtune.meters.sample_log import SampleLog
            from ringtune.meters.sampler import Sampler

            self._sampler = Sampler(session.config.sample_ns, gpus=session.local_rank == 0, report=self._warn)
            self._sampler.add(SampleLog(run, session.rank))

    def step_ended(self, stats: StepStats) -> None:
        """Log a step; training goes on, whatever the disk does."""
        if self._step_log is None:
            return
        try:
            self._step_log.append(stats)
        except RingtuneError as error:
            self._warn(f"the step log ends here: {error}")
            self._step_log.close()
            self._step_log = None

    def close(self) -> None:
        """Write the last sample and close the files; idempotent."""
        if self._sampler is not None:
            self._sampler.stop()
        if self._step_log is not None:
            self._step_log.close()

    def _warn(self, sentence: str) -> None:
        print(f"ringtune warning: [rank {self.session.rank}] {sentence}", file=sys.stderr, flush=True)
