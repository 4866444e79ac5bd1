"""Following a tuning session from its journal: what a person sees while the job runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Protocol

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ringtune.timeline.runs.growing_lines import GrowingLines
from ringtune.tuner.journal import parse_line
from ringtune.tuner.messages import SOURCES, milliseconds, not_searched, percent, sentence, settled, spread
from ringtune.tuner.records import Record, ResultRecord, StartRecord, TrialRecord, parse

_POLL_S = 0.2
_ROWS = 12


class View(Protocol):
    """Shows records as they come; called from the follower's thread."""

    def show(self, record: Record) -> None: ...


class Follower:
    """Reads a growing journal in a thread and keeps what it said. Use as a context manager.

    Args:
        path: The journal; may not exist yet. What it holds already belongs to earlier sessions and is skipped.
        show: Called with each record, in the follower's thread.

    Attributes:
        records: All records so far.
    """

    def __init__(self, path: Path, show: Callable[[Record], None]) -> None:
        self.records: list[Record] = []
        self._show = show
        self._lines = GrowingLines(path, path.stat().st_size if path.exists() else 0)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="tuning-progress", daemon=True)

    @property
    def result(self) -> ResultRecord | None:
        """The end of the last session that ended by itself, else of an interrupted one; None while there is none."""
        ends = [record for record in reversed(self.records) if isinstance(record, ResultRecord)]
        return next((end for end in ends if end.decision != "interrupted"), ends[0] if ends else None)

    def __enter__(self) -> Follower:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()
        self._read()

    def _follow(self) -> None:
        while not self._end.wait(_POLL_S):
            self._read()

    def _read(self) -> None:
        """Read the new records."""
        for line in self._lines.read():
            event = parse_line(line)
            record = parse(event) if event is not None else None
            if record is not None:
                self.records.append(record)
                self._show(record)


class PlainView:
    """One line a record, for pipes and log files: no control codes.

    Args:
        err: On standard error.
    """

    def __init__(self, *, err: bool = False) -> None:
        self._best: TrialRecord | None = None
        self._err = err

    def show(self, record: Record) -> None:
        """Print a record; the rank itself says the result at once, and the closing words repeat it."""
        if isinstance(record, ResultRecord):
            return
        line = f"ringtune tune: {sentence(record)}"
        if isinstance(record, TrialRecord):
            self._best = better(self._best, record)
            line += f"; best {percent(self._best.gain.median)}, lost so far {record.lost_ns / 1e9:.2f} s"
        click.echo(line, err=self._err)


class LiveView:
    """A table of the last trials under the job's own output, for terminals. Use as a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._start: StartRecord | None = None
        self._trials: list[TrialRecord] = []
        self._best: TrialRecord | None = None
        self._result: ResultRecord | None = None
        self._live = Live(self.picture(), console=console, refresh_per_second=4)

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def line(self, rank: int, stream: str, text: str) -> None:
        """Print a line of the job above the table."""
        del stream
        self._console.print(Text.assemble((f"[{rank}] ", "cyan"), Text.from_ansi(text)), soft_wrap=True)

    def show(self, record: Record) -> None:
        """Add a record."""
        if isinstance(record, StartRecord):
            self._start, self._trials, self._best, self._result = record, [], None, None
        elif isinstance(record, TrialRecord):
            self._trials.append(record)
            self._best = better(self._best, record)
        elif isinstance(record, ResultRecord):
            self._result = record
        else:
            self._console.print(Text(sentence(record), style="yellow"))
        self._live.update(self.picture())

    def picture(self) -> RenderableType:
        """Return what is on the screen."""
        if self._start is None:
            return Text("ringtune tune: warming up", style="dim")
        pinned = not_searched(self._start)
        return Group(self._table(), *([Text(pinned, style="yellow")] if pinned else []), self._status())

    def _table(self) -> Table:
        table = Table("trial", "setting", "step time", "gain", "source", title="tuning", title_justify="left")
        for record in self._trials[-_ROWS:]:
            early = record.state == "stopped-early"
            gain = "" if record.source == "default" else percent(record.gain.median)
            words = SOURCES[record.source] + (", left early" if early else "")
            row = (str(record.trial), settled(record), milliseconds(record.step_ns.median), gain, words)
            table.add_row(*row, style="dim" if early else None)
        return table

    def _status(self) -> Text:
        if self._result is not None:
            stays = "" if self._result.decision == "interrupted" else "; training goes on with it"
            return Text(sentence(self._result) + stays, style="bold green")
        assert self._start is not None
        made = sum(record.source != "confirm" for record in self._trials)
        best = settled(self._best) + f", gain {spread(self._best.gain)}" if self._best is not None else "none"
        lost = self._trials[-1].lost_ns / 1e9 if self._trials else 0.0
        return Text(f"trial {made} of at most {self._start.max_trials}; best: {best}; lost so far: {lost:.2f} s")


def better(best: TrialRecord | None, record: TrialRecord) -> TrialRecord:
    """Return the better of two trials; a confirmation counts more than a single trial."""
    if best is None or (record.source == "confirm") > (best.source == "confirm"):
        return record
    if (record.source == "confirm") < (best.source == "confirm") or record.state == "stopped-early":
        return best
    return record if record.gain.median > best.gain.median else best
