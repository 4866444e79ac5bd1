"""A small cache keyed by what is on disk: a page of a run that did not change costs a few `stat` calls."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


class Cache:
    """The newest values by key, each valid for one signature. Safe to use from several threads.

    Two threads that miss the same key at once wait for one another: a trace is read once, not twice.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._values: OrderedDict[Hashable, tuple[Hashable, Any]] = OrderedDict()
        self._locks: dict[Hashable, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, signature: Hashable, build: Callable[[], T]) -> T:
        """Return the value for key, built anew when the signature is another one than last time."""
        with self._lock:
            own = self._locks.setdefault(key, threading.Lock())
        with own:
            with self._lock:
                found = self._values.get(key)
                if found is not None and found[0] == signature:
                    self._values.move_to_end(key)
                    value: T = found[1]
                    return value
            value = build()
            with self._lock:
                self._values[key] = (signature, value)
                self._values.move_to_end(key)
                while len(self._values) > self._capacity:
                    dropped, _ = self._values.popitem(last=False)
                    self._locks.pop(dropped, None)
            return value

    def peek(self, key: Hashable, signature: Hashable) -> Any:
        """Return the value for key when it is kept and valid, else None; never waits."""
        with self._lock:
            found = self._values.get(key)
            return found[1] if found is not None and found[0] == signature else None
