"""Process sets: which ranks take part in a collective. So far only the set of all ranks."""

from __future__ import annotations

from collections.abc import Iterable

from ringtune.errors import NotSupported
from ringtune.session import state


class ProcessSet:
    """Ranks that take part in a collective.

    Args:
        ranks: Global ranks; None for all ranks of the job.

    Attributes:
        process_set_id: 0 for the set of all ranks, None for a set that is not registered.
    """

    def __init__(self, ranks: Iterable[int] | None) -> None:
        self._ranks = None if ranks is None else sorted(ranks)
        self.process_set_id: int | None = 0 if ranks is None else None

    @property
    def ranks(self) -> list[int] | None:
        """Global ranks of the set, None before ``init()`` for the set of all."""
        if self._ranks is not None:
            return self._ranks
        return list(range(state.current.size)) if state.current is not None else None

    def size(self) -> int | None:
        """Number of ranks, None if the set is not registered."""
        return None if self.process_set_id is None or self.ranks is None else len(self.ranks)

    def rank(self) -> int | None:
        """This process's rank in the set, None if the set is not registered."""
        if self.process_set_id is None or state.current is None:
            return None
        return state.current.rank

    def included(self) -> bool | None:
        """Whether this process is in the set, None while that is unknown."""
        if self.ranks is None or state.current is None:
            return None
        return state.current.rank in self.ranks

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm=None)"


global_process_set = ProcessSet(None)


def require_global(process_set: ProcessSet) -> None:
    """Refuse every set but that of all ranks.

    Raises:
        NotSupported: It is another set.
    """
    if process_set is not global_process_set:
        raise NotSupported(f"{process_set}: this version knows only the set of all ranks (global_process_set)")
