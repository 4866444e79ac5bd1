"""Jobs with fixed ranks that are started again when they fail: `ringtune run --restarts N`.

All ranks start anew, each time with a store, a job name and ports of their own; ``RINGTUNE_RESTART`` tells the script
which start it is in, so that it can go on from its checkpoint. A job that cannot work is not started over and over: one
that failed at once before any rank came to ``init()``, or whose command cannot be run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from ringtune import runfolder
from ringtune.errors import RingtuneError
from ringtune.launch.options import LaunchOptions
from ringtune.launch.streams import Streams
from ringtune.launch.supervisor import Outcome

VARIABLE = "RINGTUNE_RESTART"
_AT_ONCE_S = 1.0
_CANNOT_RUN = {126: "the command cannot be executed", 127: "the command was not found"}
"""Exit codes of shells and of the rank agent."""


@dataclass(frozen=True)
class Start:
    """One start of a job, ended.

    Attributes:
        outcome: How it ended.
        met: Whether a rank came to ``init()``, as far as the store shows it.
    """

    outcome: Outcome
    met: bool


@dataclass
class Starts:
    """All starts of a job.

    Args:
        options: The job.
        streams: Where output goes.
    """

    options: LaunchOptions
    streams: Streams
    _failed: list[dict[str, Any]] = field(default_factory=list)

    def stay(self, start: Callable[[int], Start]) -> Outcome:
        """Start the job until it ends well, may not be started again, or a signal ended it.

        Args:
            start: Starts it and stays to its end; called with the number of restarts before.
        """
        while True:
            ended = start(len(self._failed))
            reason = self._reason_to_stop(ended)
            if reason is not None:
                if reason:
                    self.streams.say(f"not started again: {reason}")
                return ended.outcome
            self._note(ended.outcome)
            self.streams.say(f"starting the job again ({len(self._failed)} of {self.options.restarts} restarts)")

    def _reason_to_stop(self, ended: Start) -> str | None:
        """Return why there is no further start, an empty text where nothing is to be said; None to start again."""
        outcome, allowed = ended.outcome, self.options.restarts
        if outcome.exit_code == 0 or outcome.interrupted_by or not allowed:
            return ""
        if outcome.exit_code in _CANNOT_RUN:
            return _CANNOT_RUN[outcome.exit_code]
        after_s = outcome.failure.after_s if outcome.failure is not None else _AT_ONCE_S
        if not ended.met and after_s < _AT_ONCE_S:
            return f"it failed within {_AT_ONCE_S:g} s, before init()"
        return f"it has failed {allowed + 1} times" if len(self._failed) == allowed else None

    def _note(self, outcome: Outcome) -> None:
        """Write the failed start into the run folder, which the next one finds without files of its ranks."""
        failure = outcome.failure
        lines = self.streams.last_lines(failure.rank) if failure is not None else []
        said = asdict(failure) if failure is not None else {"exit_code": outcome.exit_code}
        self._failed.append({**said, "last_lines": lines, "ended_unix_ns": time.time_ns()})
        self.streams.forget_last_lines()
        run = self.options.run_dir
        if run is None:
            return
        try:
            runfolder.clear_ranks(run, keep_logs=True)
            runfolder.update(run, failed_starts=self._failed)
        except RingtuneError as error:
            self.streams.say(f"warning: the run folder does not tell of the restart: {error}")
