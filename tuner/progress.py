"""Following a tuning session from its journal: what a person sees while the job runs."""

from __future__ import annotations

import math
import threading
import time
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
from ringtune.tuner.records import (
    FailedRecord,
    ProgressRecord,
    Record,
    ResultRecord,
    StartRecord,
    TrialRecord,
    parse,
)

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


class Pace:
    """How far a session is and how long it may take, by the times at which its records came.

    Args:
        clock: Returns the time in seconds.

    Attributes:
        made: Trials that count against the most allowed.
        left: How long the search or the comparison may still take, in words; "" where it is not known.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.made, self.left = 0, ""
        self._clock = clock
        self._most = 0
        self._first = self._comparing = 0.0

    def add(self, record: Record) -> None:
        """Take note of a record that came now."""
        now = self._clock()
        if isinstance(record, StartRecord):
            self._most, self.made, self.left = record.max_trials, 0, ""
        elif _counts(record):
            self.made += 1
            if self.made == 1:
                self._first = now
            else:
                left = (self._most - self.made) * (now - self._first) / (self.made - 1)
                self.left = f"at most {_about(left)} left to search" if left > 0 else ""
        elif isinstance(record, ProgressRecord):
            if not record.blocks:
                self._comparing, self.left = now, ""
            else:
                left = (record.most - record.blocks) * (now - self._comparing) / record.blocks
                self.left = f"at most {_about(left)} left to {record.phase}"

    def words(self, record: Record) -> list[str]:
        """Return how far the session is with a record: ``3 of at most 16 trials``, ``at most 40 s left to search``."""
        if not _counts(record) and not isinstance(record, ProgressRecord):
            return []
        made = [f"{self.made} of at most {self._most} trials"] if _counts(record) else []
        return [*made, self.left] if self.left else made


def _counts(record: Record) -> bool:
    """Whether a record is one of the trials that are limited: the default again and confirmations are not."""
    if isinstance(record, TrialRecord):
        return record.source != "confirm" and not (record.source == "default" and record.trial > 0)
    return isinstance(record, FailedRecord)


def _lost(ns: int) -> str:
    return f"{'won' if ns < 0 else 'lost'} so far {abs(ns) / 1e9:.2f} s"


def _about(seconds: float) -> str:
    """Return a duration as one estimates it: ``40 s``, ``3 min``."""
    if seconds < 90:
        return f"{math.ceil(seconds)} s"
    return f"{math.ceil(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class PlainView:
    """One line a record, for pipes and log files: no control codes.

    Args:
        err: On standard error.
    """

    def __init__(self, *, err: bool = False) -> None:
        self._best: TrialRecord | None = None
        self._pace = Pace()
        self._look = 0
        self._err = err

    def show(self, record: Record) -> None:
        """Print a record; the rank itself says the result at once, and the closing words repeat it."""
        if isinstance(record, ResultRecord):
            return
        self._pace.add(record)
        line = f"ringtune tune: {sentence(record)}"
        if isinstance(record, TrialRecord):
            self._best = better(self._best, record)
            line += f"; best {percent(self._best.gain.median)}, {_lost(record.lost_ns)}"
        if isinstance(record, ProgressRecord):
            if record.blocks not in (0, self._look):  # in a log the looks suffice
                return
            self._look = record.next_look
        said = ", ".join(self._pace.words(record))
        click.echo(f"{line}; {said}" if said else line, err=self._err)


class LiveView:
    """A table of the last trials under the job's own output, for terminals. Use as a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._start: StartRecord | None = None
        self._trials: list[TrialRecord] = []
        self._best: TrialRecord | None = None
        self._result: ResultRecord | None = None
        self._comparing: ProgressRecord | None = None
        self._pace = Pace()
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
        self._pace.add(record)
        self._comparing = record if isinstance(record, ProgressRecord) else None
        if isinstance(record, StartRecord):
            self._start, self._trials, self._best, self._result = record, [], None, None
        elif isinstance(record, TrialRecord):
            self._trials.append(record)
            self._best = better(self._best, record)
        elif isinstance(record, ResultRecord):
            self._result = record
        elif not isinstance(record, ProgressRecord):
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
        left = f"; {self._pace.left}" if self._pace.left else ""
        if self._comparing is not None:
            return Text(f"{sentence(self._comparing)}{left}")
        best = settled(self._best) + f", gain {spread(self._best.gain)}" if self._best is not None else "none"
        lost = _lost(self._trials[-1].lost_ns if self._trials else 0)
        made = f"trial {self._pace.made} of at most {self._start.max_trials}"
        return Text(f"{made}; best: {best}; {lost}{left}")


def better(best: TrialRecord | None, record: TrialRecord) -> TrialRecord:
    """Return the better of two trials; a confirmation counts more than a single trial."""
    if best is None or (record.source == "confirm") > (best.source == "confirm"):
        return record
    if (record.source == "confirm") < (best.source == "confirm") or record.state == "stopped-early":
        return best
    return record if record.gain.median > best.gain.median else best
