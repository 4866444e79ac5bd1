"""A function as a job: what `ringtune.run` sends to the ranks, and the program that runs it there."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from ringtune import native
from ringtune.config import Config

_TIMEOUT_NS = 60_000_000_000


@dataclass
class Call:
    """A call that every rank makes; its arguments and results travel through the job's store.

    Attributes:
        payload: The pickled function and its arguments.
        results: Results by rank, once `collect` has been called.
    """

    payload: bytes
    results: dict[int, Any] = field(default_factory=dict)

    def offer(self, store: Any, job: str) -> None:
        """Lay the call down where the ranks find it."""
        with native.translated():
            store.set(f"{job}/call", self.payload)

    def collect(self, store: Any, job: str) -> None:
        """Take the results; call it when all ranks have ended well."""
        with native.translated():
            count = store.add(f"{job}/results", 0)
            for number in range(1, count + 1):
                rank, value = cloudpickle.loads(store.get(f"{job}/result/{number}", _TIMEOUT_NS))
                self.results[rank] = value


def main() -> int:
    """Run the call of this job on this rank and leave its result."""
    config = Config.from_environ()
    assert config.store is not None and config.job is not None
    with native.translated():
        store = native.load().StoreClient(*config.store, config.start_timeout_ns)
        payload = store.get(f"{config.job}/call", config.start_timeout_ns)
    func, args, kwargs = cloudpickle.loads(payload)
    value = func(*args, **kwargs)
    text = cloudpickle.dumps((_rank(config), value))
    with native.translated():
        # Collected when all ranks have ended, so a number without its result belongs to a rank that failed here.
        number = store.add(f"{config.job}/results", 1)
        store.set(f"{config.job}/result/{number}", text)
    return 0


def _rank(config: Config) -> int:
    from ringtune.elastic import membership

    member = membership.current()
    if member is not None and member.place is not None:
        return member.place.rank
    return config.rank or 0


if __name__ == "__main__":
    # The function may have been defined in a module beside the caller's script.
    sys.path.insert(0, os.getcwd())
    sys.exit(main())
