"""Rank and size of this process in its job, and its timeline; the same for every front end."""

from __future__ import annotations

from ringtune.session import require


def rank() -> int:
    """Return this process's rank."""
    return require().rank


def size() -> int:
    """Return the number of ranks."""
    return require().size


def local_rank() -> int:
    """Return this process's rank among those of its host."""
    return require().local_rank


def local_size() -> int:
    """Return the number of ranks on this host."""
    return require().local_size


def cross_rank() -> int:
    """Return this host's position among the hosts that have this local rank."""
    return require().cross_rank


def cross_size() -> int:
    """Return the number of hosts that have this local rank."""
    return require().cross_size


def is_homogeneous() -> bool:
    """Return whether all hosts have the same number of ranks."""
    return require().homogeneous


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Record this rank's part of the timeline; rank 0 merges all parts into the file at the end.

    Raises:
        NotInitialized: Before `init`.
        TraceIoError: The part cannot be written.
    """
    require().start_timeline(file_path, mark_cycles=mark_cycles)


def stop_timeline() -> None:
    """Stop recording; without effect when nothing records."""
    require().stop_timeline()
