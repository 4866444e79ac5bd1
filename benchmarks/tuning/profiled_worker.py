"""A training script that only communicates: a profile's steps, until the tuner has come to a result.

Started by ``ringtune tune ... python -m ringtune.benchmarks.tuning.profiled_worker WORK STEPS``: WORK is the step as
JSON (the fields of `replay_worker`'s order ``work``), STEPS the most that are played. Rank 0 reads the journal, and
names the last step in a file of the run folder, some steps ahead: ranks are never more than a step apart, so all see it
in time, and no step sends anything for it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ringtune import layout, session
from ringtune.benchmarks.netlab.replay_worker import operations_of, play_step
from ringtune.timeline.runs.growing_lines import GrowingLines
from ringtune.tuner.journal import parse_line
from ringtune.tuner.records import ResultRecord

AHEAD_STEPS = 10


class LastStep:
    """Which step is the last one.

    Args:
        run: The run folder, seen by all ranks.
        most: The last step at the latest.
    """

    def __init__(self, run: Path, most: int) -> None:
        self._file, self._most = run / "last-step", most
        self._journal = GrowingLines(layout.tuning_journal(run))

    def look(self, step: int) -> None:
        """Rank 0, after each step: name the last one when the journal has a result."""
        events = (parse_line(line) for line in self._journal.read())
        if not self._file.exists() and any(event and event["event"] == ResultRecord.event for event in events):
            new = self._file.with_suffix(".new")
            new.write_text(str(step + AHEAD_STEPS), encoding="utf-8")
            new.replace(self._file)

    def reached(self, step: int) -> bool:
        """Whether `step` is the last one."""
        return step >= (int(self._file.read_text(encoding="utf-8")) if self._file.exists() else self._most)


def main(work_file: str, most: str) -> None:
    """Play the steps."""
    current = session.init()
    work = json.loads(Path(work_file).read_text(encoding="utf-8"))
    operations = operations_of(work)
    last = LastStep(current.ensure_run_folder(), int(most))
    current.end_step()
    step = 0
    while not last.reached(step):
        step += 1
        play_step(current, work, operations)
        if current.rank == 0:
            last.look(step)
    session.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
