"""Session extensions: code of an upper layer that runs inside the training process.

The timeline's merge and the online tuner register a factory in the entry-point group ``ringtune.session``; core
finds them when a session opens, so that no import runs from a room to one above it. An extension that raises is
reported once and dropped: training goes on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from importlib import metadata
from typing import TYPE_CHECKING, Protocol

from ringtune.stats import StepStats

if TYPE_CHECKING:
    from ringtune.session import Session

GROUP = "ringtune.session"


class SessionExtension(Protocol):
    """What a session calls on each of its extensions, always on the thread that trains."""

    def on_step(self, stats: StepStats) -> None:
        """A step has ended."""

    def on_close(self) -> None:
        """The session closes; the runtime still works."""

    def after_close(self) -> None:
        """The runtime has shut down; this host's parts of the timeline are complete."""


Factory = Callable[["Session"], "SessionExtension | None"]


class ExtensionSet:
    """The extensions of one session; a failing one is reported on stderr and dropped.

    Args:
        rank: Rank of this process, for reports.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._members: list[tuple[str, SessionExtension]] = []

    def open(self, session: Session, factories: Iterable[tuple[str, Callable[[], Factory]]]) -> None:
        """Build the extensions.

        Args:
            session: The session that opens.
            factories: Name and loader of each factory; a factory that returns None has nothing to do here.
        """
        for name, load in factories:
            try:
                extension = load()(session)
            except Exception as error:
                self._report(name, "opening", error)
                continue
            if extension is not None:
                self._members.append((name, extension))

    def on_step(self, stats: StepStats) -> None:
        """Tell all that a step has ended."""
        self._each("a step", lambda extension: extension.on_step(stats))

    def on_close(self) -> None:
        """Tell all that the session closes."""
        self._each("closing", lambda extension: extension.on_close())

    def after_close(self) -> None:
        """Tell all that the runtime has shut down."""
        self._each("the end", lambda extension: extension.after_close())

    def _each(self, moment: str, call: Callable[[SessionExtension], None]) -> None:
        failed = []
        for member in self._members:
            try:
                call(member[1])
            except Exception as error:
                self._report(member[0], moment, error)
                failed.append(member)
        for member in failed:
            self._members.remove(member)

    def _report(self, name: str, moment: str, error: Exception) -> None:
        text = str(error) or type(error).__name__
        kind = "" if str(error) == text and type(error).__module__ == "ringtune.errors" else f"{type(error).__name__}: "
        print(
            f"ringtune warning [rank {self._rank}]: extension {name!r} failed at {moment} and is dropped, "
            f"training goes on: {kind}{text}",
            file=sys.stderr,
            flush=True,
        )


def registered() -> list[tuple[str, Callable[[], Factory]]]:
    """Return name and loader of each factory that installed packages register, in order of name."""
    found = {point.name: point.load for point in metadata.entry_points(group=GROUP)}
    return sorted(found.items())
