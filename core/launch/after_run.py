"""What other rooms do when a job has ended: the entry-point group ``ringtune.after_run``.

The timeline registers its merge here, for jobs whose rank 0 died before it could merge. Core imports no upper layer for
that: it knows the group's name only.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

GROUP = "ringtune.after_run"


def call(run: Path, say: Callable[[str], None]) -> None:
    """Call every registered function with the run folder; one that fails is reported and does not fail the job.

    Args:
        run: Absolute path of the run folder.
        say: Prints a sentence for the user.
    """
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            entry.load()(run)
        # Whatever it is, the job is over and its exit code stands.
        except Exception as error:
            say(f"after the run, {entry.name}: {error}")
