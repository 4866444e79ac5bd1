"""What the membership of an elastic job lets the launcher do."""

from __future__ import annotations

from dataclasses import dataclass

from ringtune.elastic.results import HostUpdateResult


@dataclass(frozen=True)
class Start:
    """Start a worker on a host."""

    worker: int
    host: str


@dataclass(frozen=True)
class Publish:
    """Tell workers their ranks: the order of the list."""

    generation: int
    workers: tuple[int, ...]


@dataclass(frozen=True)
class Dismiss:
    """Tell a ready worker that the job goes on without it."""

    worker: int
    reason: str


@dataclass(frozen=True)
class Notify:
    """Tell running workers of a change of hosts."""

    result: HostUpdateResult


@dataclass(frozen=True)
class Kill:
    """End a worker for which the others wait no longer, and say why."""

    worker: int
    why: str


@dataclass(frozen=True)
class Say:
    """A message for the user."""

    text: str


@dataclass(frozen=True)
class GiveUp:
    """The job cannot go on."""

    reason: str
    exit_code: int


Action = Start | Publish | Dismiss | Notify | Kill | Say | GiveUp
