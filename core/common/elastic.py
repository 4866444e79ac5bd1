"""Elastic training's state and loop, under the names where scripts look for them (``horovod.common.elastic``).

A `State` is saved at a commit, restored after a failure and synchronised from rank 0 after every change of the job's
ranks. `run_fn` is the loop around the training function. Neither knows a framework.
"""

from __future__ import annotations

import copy
import functools
import queue
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from ringtune.common.exceptions import HostsUpdatedInterrupt
from ringtune.elastic import kept_state, membership
from ringtune.elastic.kept_state import KeptState
from ringtune.elastic.results import HostUpdateResult
from ringtune.errors import HorovodInternalError, InvalidArgument, NotSupported, PeerLost

__all__ = ["HostUpdateResult", "ObjectState", "State", "notification_manager", "run_fn"]

R = TypeVar("R")

_FAILURES_WITHOUT_PROGRESS = 3
_MEETINGS = 10
"""So often an elastic job's ranks try to meet in a row. A worker that is cut off from the launcher fails at once."""


class NotificationManager:
    """Carries the launcher's news about hosts to the states of this process."""

    def __init__(self) -> None:
        self._listeners: list[State] = []

    def init(self) -> None:
        """Do nothing: the connection is the session's."""

    def register_listener(self, listener: State) -> None:
        """Tell this state of every change of the hosts."""
        self._listeners.append(listener)

    def remove_listener(self, listener: State) -> None:
        """Tell this state nothing more."""
        self._listeners.remove(listener)

    @property
    def active(self) -> bool:
        """Whether this process belongs to an elastic job; the same on all its ranks."""
        return membership.current() is not None

    def poll(self) -> None:
        """Ask the launcher for news (a look into the store, on rank 0 only) and pass them on."""
        member = membership.current()
        notice = member.take_notice() if member is not None else None
        if notice is not None:
            for listener in self._listeners:
                listener.on_hosts_updated(notice.number, notice.result)


notification_manager = NotificationManager()


class State:
    """State that survives a change of ranks. Subclasses define it.

    Args:
        bcast_object: Broadcasts an object from rank 0 and returns it.
        get_rank: Returns this process's rank.
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages: queue.Queue[tuple[int, HostUpdateResult]] = queue.Queue()
        self._last_updated_timestamp = 0
        self._reset_callbacks: list[Callable[[], None]] = []
        self._commits = 0

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], None]]) -> None:
        """Call these after every change of ranks, for example to scale the learning rate."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """The ranks have changed: forget old news, let the state follow, call the callbacks."""
        self._host_messages = queue.Queue()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: int, update_res: HostUpdateResult) -> None:
        """Take news about hosts; the next commit or check acts on them."""
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """Save the state, then look for new hosts.

        Raises:
            HostsUpdatedInterrupt: Hosts came or went; `run_fn` catches it.
        """
        self.save()
        self._commits += 1
        kept_state.keep(self)
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Look for new hosts without saving; rank 0's answer counts, so that all ranks act at the same point.

        Raises:
            HostsUpdatedInterrupt: Hosts came or went; `run_fn` catches it.
        """
        notification_manager.poll()
        # A job with fixed ranks never has news and needs no communication. In an elastic job every rank calls this.
        if not notification_manager.active and self._host_messages.empty():
            return
        previous, last, result = self._last_updated_timestamp, self._last_updated_timestamp, HostUpdateResult.no_update
        while not self._host_messages.empty():
            timestamp, update = self._host_messages.get()
            if timestamp > last:
                last, result = timestamp, result | update
        previous, self._last_updated_timestamp, result = self._bcast_object((previous, last, result))
        if self._last_updated_timestamp > previous:
            # Ranks that only became fewer all hold the same state already.
            raise HostsUpdatedInterrupt(result == HostUpdateResult.removed)

    def save(self) -> None:
        """Keep the present state in memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Return to the state last saved."""
        raise NotImplementedError

    def sync(self) -> None:
        """Take over rank 0's state."""
        raise NotImplementedError

    def reset(self) -> None:
        """Follow a change of ranks; nothing by default."""

    def saved(self) -> Any:
        """Return what `save` has kept, which a process started later can take (``RINGTUNE_ELASTIC_STATE``).

        Raises:
            NotSupported: This class has nothing that could be written.
        """
        raise NotSupported(
            f"{type(self).__name__} cannot be kept on a disk: it has no saved() (RINGTUNE_ELASTIC_STATE)"
        )

    def take_saved(self, saved: Any) -> None:
        """Take what `saved` returned in an earlier process, as if it had been saved here, and return to it.

        Raises:
            InvalidArgument: It is of another training.
        """
        raise NotSupported(f"{type(self).__name__} cannot be kept on a disk: it has no take_saved()")


class ObjectState(State):
    """Plain Python attributes.

    Args:
        bcast_object: Broadcasts an object from rank 0 and returns it.
        get_rank: Returns this process's rank.
        **kwargs: Attributes and their first values.
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int], **kwargs: Any) -> None:
        super().__init__(bcast_object, get_rank)
        self._saved_state = copy.deepcopy(kwargs)
        self._set(kwargs)

    def save(self) -> None:
        # Copied: a list that is changed after the commit must come back as it was.
        self._saved_state = {name: copy.deepcopy(getattr(self, name)) for name in self._saved_state}

    def restore(self) -> None:
        self._set(copy.deepcopy(self._saved_state))

    def saved(self) -> Any:
        return self._saved_state

    def take_saved(self, saved: Any) -> None:
        require_names(saved, self._saved_state)
        self._saved_state = saved
        self.restore()

    def sync(self) -> None:
        if self._saved_state:
            self._saved_state = self._bcast_object({name: getattr(self, name) for name in self._saved_state})
            self.restore()

    def _set(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)


def require_names(saved: Any, names: Iterable[str]) -> None:
    """Check that a state which was kept has the attributes of this one.

    Raises:
        InvalidArgument: It has others.
    """
    own = set(names)
    if not isinstance(saved, dict) or set(saved) != own:
        there = ", ".join(sorted(saved)) if isinstance(saved, dict) else type(saved).__name__
        raise InvalidArgument(
            f"the state kept in RINGTUNE_ELASTIC_STATE holds {there or 'nothing'}, this training has "
            f"{', '.join(sorted(own)) or 'nothing'}: empty the folder, or name another one"
        )


def run_fn(func: Callable[..., R], reset: Callable[[], None]) -> Callable[..., R]:
    """Return the function wrapped in the elastic loop.

    Args:
        func: ``func(state, ...)``, called again after every change of ranks.
        reset: Leaves the job and joins it again.

    Returns:
        A function with the same arguments and result. It raises the failure when training cannot go on: a rank of a
        job with fixed ranks is gone, or training fails at the same point again and again without a commit.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> R:
        notification_manager.init()
        notification_manager.register_listener(state)
        progress, kept = _Progress(state), KeptState(state)
        skip_sync = False
        try:
            while True:
                try:
                    if not skip_sync:
                        kept.sync()
                    result = func(state, *args, **kwargs)
                    kept.done()
                    return result
                except HorovodInternalError as failure:
                    if progress.hopeless(failure):
                        raise
                    state.restore()
                    skip_sync = False
                except HostsUpdatedInterrupt as interrupt:
                    skip_sync = interrupt.skip_sync
                skip_sync = _joined_at_once(reset) and skip_sync
                state.on_reset()
        finally:
            notification_manager.remove_listener(state)

    return wrapper


def _joined_at_once(reset: Callable[[], None]) -> bool:
    """Leave the job and join it again, in an elastic one as often as a rank is lost while the new ones meet.

    Returns:
        Whether the first time sufficed; else there may be new ranks, which have no state.
    """
    with membership.going_on():
        for number in range(_MEETINGS):
            try:
                reset()
                return number == 0
            except HorovodInternalError:
                if not notification_manager.active or number == _MEETINGS - 1:
                    raise
    return False


class _Progress:
    """Decides whether another try may succeed."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._commits = state._commits
        self._failures = 0

    def hopeless(self, failure: HorovodInternalError) -> bool:
        """Count a failure; True when another try cannot succeed."""
        if self._state._commits > self._commits:
            self._commits, self._failures = self._state._commits, 0
        self._failures += 1
        if notification_manager.active:
            return False  # the launcher counts resets and knows which ranks are left
        return isinstance(failure, PeerLost) or self._failures >= _FAILURES_WITHOUT_PROGRESS
