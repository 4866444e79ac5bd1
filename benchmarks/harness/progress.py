"""Progress of a benchmark: a live bar on a terminal, plain lines anywhere else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from ringtune.standard_streams import screen_width

# Tables keep this width in logs and pipes, where rich would otherwise assume 80 columns and break every cell.
PLAIN_WIDTH = 140


def open_console() -> Console:
    """Returns the console for a command's standard output."""
    return Console(width=screen_width(PLAIN_WIDTH))


class Reporter(Protocol):
    """Receives the progress of a benchmark."""

    def begin(self, note: str) -> None:
        """A part begins; a bar shows its name."""

    def advance(self, note: str, *, keep: bool = False) -> None:
        """One more part is done; `note` is its result in words, `keep` leaves it on a terminal too."""

    def say(self, text: str) -> None:
        """Prints a line that stays."""


class BarReporter:
    """A bar that is redrawn in place."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def begin(self, note: str) -> None:
        self._progress.update(self._task, note=note)

    def advance(self, note: str, *, keep: bool = False) -> None:
        if keep:
            self.say(note)
        self._progress.update(self._task, advance=1, note="" if keep else note)

    def say(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False)


class LineReporter:
    """One plain line per part, for logs and pipes."""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._total = total
        self._done = 0

    def begin(self, note: str) -> None:
        """A log has a line for what is done, not for what begins."""

    def advance(self, note: str, *, keep: bool = False) -> None:
        self._done += 1
        self.say(f"[{self._done}/{self._total}] {note}")

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def open_progress(console: Console, title: str, total: int) -> Iterator[Reporter]:
    """Yields the reporter that fits `console` for `total` parts."""
    if not console.is_terminal:
        yield LineReporter(console, total)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", style="dim", markup=False),
    )
    with Progress(*columns, console=console) as progress:
        yield BarReporter(progress, progress.add_task(title, total=total, note=""))
