"""Process sets: which ranks take part in a collective."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from ringtune.errors import InvalidArgument, NotSupported
from ringtune.operations import AddProcessSet, Join, RemoveProcessSet
from ringtune.session import Session, require, state


class ProcessSet:
    """Ranks that take part in a collective.

    Args:
        ranks_or_comm: Global ranks in any order, or an mpi4py communicator of them.

    Attributes:
        ranks: Global ranks, ascending; None where they are not known yet.
        mpi_comm: The communicator it was made of, if any.

    Raises:
        InvalidArgument: A rank is no integer.
    """

    def __init__(self, ranks_or_comm: Iterable[int] | Any) -> None:
        self.mpi_comm: Any = None
        self._ranks: list[int] | None = None
        self._registered: tuple[Session, int] | None = None
        if hasattr(ranks_or_comm, "Get_group"):
            self.mpi_comm = ranks_or_comm
            return
        try:
            self._ranks = sorted(operator.index(rank) for rank in ranks_or_comm)
        except TypeError as error:
            raise InvalidArgument(f"ProcessSet({ranks_or_comm!r}): expected integer ranks or a communicator") from error

    @property
    def process_set_id(self) -> int | None:
        """Number of the set, the same on all ranks; None where it is not registered."""
        if self._registered is None or self._registered[0] is not state.current:
            return None
        return self._registered[1]

    @property
    def ranks(self) -> list[int] | None:
        """Global ranks, ascending; None where they are not known yet."""
        return self._ranks

    def size(self) -> int | None:
        """Return the number of ranks, None if the set is not registered."""
        return None if self.process_set_id is None or self.ranks is None else len(self.ranks)

    def rank(self) -> int | None:
        """Return this process's rank in the set, None if the set is not registered.

        Raises:
            InvalidArgument: This process is not in the set.
        """
        if self.process_set_id is None or self.ranks is None:
            return None
        mine = require().rank
        if mine not in self.ranks:
            raise InvalidArgument(f"rank {mine} is not part of {self}")
        return self.ranks.index(mine)

    def included(self) -> bool | None:
        """Return whether this process is in the set, None while that is unknown."""
        return None if self.ranks is None or state.current is None else state.current.rank in self.ranks

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"


class _GlobalProcessSet(ProcessSet):
    """The set of all ranks: number 0, known from ``init()`` on."""

    def __init__(self) -> None:
        super().__init__([])
        self._of: tuple[int, list[int]] = (0, [])

    @property
    def process_set_id(self) -> int | None:
        """Number of the set: 0."""
        return 0

    @property
    def ranks(self) -> list[int] | None:
        """All ranks, None before ``init()``."""
        if state.current is None:
            return None
        if self._of[0] != state.current.size:
            self._of = (state.current.size, list(range(state.current.size)))
        return self._of[1]

    def rank(self) -> int | None:
        """Return this process's rank, None before ``init()``."""
        return None if state.current is None else state.current.rank


global_process_set: ProcessSet = _GlobalProcessSet()


unnamed: dict[tuple[int, str], int] = {}
"""How many operations without a name were started, by set and kind."""


def wire_name(kind: str, name: str | None, process_set: int = 0) -> str:
    """Return the name under which ranks match an operation: ``<kind>.<name>``, with the set unless it is that of all.

    Unnamed operations are counted per set and kind, so that what only some ranks run cannot bring others out of step.
    """
    if name is None:
        count = unnamed.get((process_set, kind), 0) + 1
        unnamed[process_set, kind] = count
        name = f"noname.{count}"
    return f"{kind}.{name}@set{process_set}" if process_set else f"{kind}.{name}"


def join() -> int:
    """Wait until all ranks have joined, contributing neutral elements meanwhile; return the rank that came last."""
    last = require().decide(Join())
    restart_counting(0)
    return last


def restart_counting(number: int) -> None:
    """Count unnamed operations of a set anew, at a point that all its ranks reach together."""
    for key in [key for key in unnamed if key[0] == number]:
        del unnamed[key]


def number_of(process_set: ProcessSet) -> int:
    """Return the number under which the runtime knows a set.

    Raises:
        TypeError: The set is not registered.
    """
    if process_set is global_process_set:
        return 0
    number = process_set.process_set_id
    if number is None:
        raise TypeError(f"{process_set} is not registered: give it to init(process_sets=...) or add_process_set first")
    return number


def number_with_root(process_set: ProcessSet, root: int) -> int:
    """Return the number of a set in which a rank may be the root of a broadcast.

    Raises:
        InvalidArgument: The rank is not in the set.
        TypeError: The set is not registered.
    """
    now, number, root = require(), number_of(process_set), operator.index(root)
    known = 0 <= root < now.size if number == 0 else root in (process_set.ranks or ())
    if not known:
        raise InvalidArgument(
            f"broadcast received invalid root rank {root} for provided process set, expected one of {process_set.ranks}"
        )
    return number


def own_rows(rows: int, process_set: ProcessSet) -> int:
    """Return how many of so many rows this rank gets; 0 where it is no member, which the runtime refuses."""
    size = process_set.size() or 1
    rank = process_set.rank() if process_set.included() else size
    assert rank is not None
    return rows // size + (1 if rank < rows % size else 0)


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Register a set while the job runs; all ranks call it alike.

    Args:
        process_set: The set, or its global ranks.

    Returns:
        The set, registered.

    Raises:
        InvalidArgument: The ranks are invalid, the set is there already, or dynamic sets are not enabled.
        NotSupported: The set was made of a communicator.
        Mismatch: The ranks do not name the same set.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    if process_set.mpi_comm is not None:
        raise NotSupported("add_process_set of a communicator: give its global ranks")
    if not require().config.dynamic_process_sets:
        raise InvalidArgument(
            "add_process_set needs HOROVOD_DYNAMIC_PROCESS_SETS=1 (or RINGTUNE_DYNAMIC_PROCESS_SETS=1) before init(), "
            'or init(process_sets="dynamic")'
        )
    known = find(process_set.ranks or [])
    if known is not None:
        raise InvalidArgument(f"Attempted to add a duplicate process set: {process_set} is set {known}")
    register(process_set)
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a set; all ranks call it alike. The object is not registered any more.

    Returns:
        False for the set of all ranks or one that is not registered.

    Raises:
        InvalidArgument: Dynamic sets are not enabled.
        Mismatch: The ranks do not name the same set.
    """
    if not isinstance(process_set, ProcessSet):
        raise InvalidArgument(
            f"remove_process_set: process_set is a {type(process_set).__name__}, expected a ProcessSet"
        )
    if process_set is global_process_set or process_set.process_set_id is None:
        return False
    session = require()
    if not session.config.dynamic_process_sets:
        raise InvalidArgument("remove_process_set needs HOROVOD_DYNAMIC_PROCESS_SETS=1, see add_process_set")
    session.decide(RemoveProcessSet(process_set.process_set_id))
    process_set._registered = None
    return True


def ids_and_ranks() -> dict[int, list[int]]:
    """Return the ranks of every registered set by number."""
    return require().process_sets()


def find(ranks: Sequence[int]) -> int | None:
    """Return the number of the registered set of these ranks, if there is one."""
    return next((number for number, members in ids_and_ranks().items() if members == list(ranks)), None)


def registered_set(ranks: Sequence[int]) -> ProcessSet:
    """Return the set of these ranks, registered if this job has it."""
    process_set = ProcessSet(ranks)
    if state.current is not None:
        number = find(process_set.ranks or [])
        process_set._registered = None if number is None else (state.current, number)
    return process_set


def register(process_set: ProcessSet) -> None:
    """Give a set its number; all ranks do so in the same order."""
    session = require()
    assert process_set.ranks is not None
    if any(not 0 <= rank < session.size for rank in process_set.ranks):
        raise InvalidArgument(f"{process_set}: a process set needs ranks of 0 to {session.size - 1}")
    number = find(process_set.ranks)
    if number is None:
        number = session.decide(AddProcessSet(process_set.ranks))
        restart_counting(number)  # an earlier set had this number, perhaps with other members
    process_set._registered = (session, number)


def register_all(process_sets: Sequence[ProcessSet]) -> None:
    """Register the sets that were given to ``init``, in this order.

    Raises:
        InvalidArgument: One is a duplicate, of another in the list or of all ranks; the others are registered.
    """
    seen = {0}
    duplicate: int | None = None
    for entry, process_set in enumerate(process_sets):
        register(process_set)
        number = number_of(process_set)
        if number in seen:
            process_set._registered = None
            duplicate = entry if duplicate is None else duplicate
        seen.add(number)
    if duplicate is not None:
        raise InvalidArgument(
            f"process_sets: entry number {duplicate} is a duplicate: {process_sets[duplicate]} names the same ranks as "
            "an entry before it, or all ranks"
        )
