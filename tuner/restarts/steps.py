"""Following the step logs of a run while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

import orjson

from ringtune import layout
from ringtune.stats import StepStats
from ringtune.timeline.runs.growing_lines import GrowingLines
from ringtune.tuner.advice import Workload


class StepTimes:
    """Step times of a run, from the logs of ranks that write into its folder.

    A step counts when all of these ranks have made it; its time is that of the slowest. Steps of the warm-up are left
    out.

    Args:
        run: The run folder.
        ranks: The ranks whose logs are here, at least one.
        warmup_steps: First steps that do not count.
    """

    def __init__(self, run: Path, ranks: Sequence[int], warmup_steps: int) -> None:
        self._logs = [_Log(layout.step_log(run, rank)) for rank in ranks]
        self._warmup = warmup_steps

    def read(self) -> list[int]:
        """Return the step times so far, in nanoseconds."""
        for log in self._logs:
            log.read()
        made = min(len(log.steps) for log in self._logs)
        return [max(log.steps[step].wall_ns for log in self._logs) for step in range(self._warmup, made)]

    @property
    def workload(self) -> Workload:
        """What a step of the first of these ranks sends: medians over the steps so far."""
        steps = self._logs[0].steps
        if not steps:
            return Workload(0, 0)
        return Workload(int(median(one.collectives for one in steps)), int(median(one.bytes for one in steps)))


class _Log:
    """One rank's log."""

    def __init__(self, path: Path) -> None:
        self.steps: list[StepStats] = []
        self._lines = GrowingLines(path)

    def read(self) -> None:
        """Read the new steps."""
        self.steps += [StepStats.from_dict(orjson.loads(line)) for line in self._lines.read()]
