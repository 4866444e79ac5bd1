"""A function as a job: what `ringtune.run` sends to the ranks, and the program that runs it there."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import cloudpickle  # type: ignore[import-untyped]

from ringtune import native
from ringtune.config import Config
from ringtune.errors import RingtuneError, RuntimeFailure

if TYPE_CHECKING:
    from ringtune.launch.environment import Job
    from ringtune.launch.supervisor import Outcome

_TIMEOUT_NS = 60_000_000_000
_FAILURE_TIMEOUT_NS = 1_000_000_000


@dataclass(frozen=True)
class CallFailure:
    """Why a rank has no result.

    Attributes:
        rank: Its rank.
        host: Its host.
        what: What it did, as the words behind "rank 1 on node1".
        trace: Traceback of an exception, else empty.
        error: The exception, pickled; None when that cannot be done or when there was none.
        follows: Whether the end of another rank may have caused it.
    """

    rank: int
    host: str
    what: str
    trace: str = ""
    error: bytes | None = None
    follows: bool = False

    def cause(self) -> BaseException | None:
        """Return the exception; None where there is none, or where its class cannot be rebuilt from its pickle."""
        if self.error is None:
            return None
        try:
            error = cloudpickle.loads(self.error)
        except Exception:  # the object's own methods may raise anything; its text is in the message
            return None
        return error if isinstance(error, BaseException) else None


@dataclass
class Call:
    """A call that every rank makes; its arguments and results travel through the job's store.

    Attributes:
        payload: The pickled function and its arguments.
        results: Pickled results by rank, once `collect` has been called on a job that ended well.
        failures: Of ranks without result, in the order in which they said so.
        outcome: How the job ended.
        size: Ranks of the job; of an elastic one at the start.
    """

    payload: bytes
    results: dict[int, bytes] = field(default_factory=dict)
    failures: list[CallFailure] = field(default_factory=list)
    outcome: Outcome | None = None
    size: int = 0

    def offer(self, store: Any, job: str) -> None:
        """Put the call into the store for the ranks."""
        with native.translated():
            store.set(f"{job}/call", self.payload)

    def collect(self, store: Any, ended: Job, outcome: Outcome) -> None:
        """Read the results from the store; call it when all ranks have ended."""
        self.outcome, self.size, job = outcome, ended.size, ended.name
        with native.translated():
            for number in range(1, store.add(f"{job}/failures", 0) + 1):
                try:
                    self.failures.append(cloudpickle.loads(store.get(f"{job}/failure/{number}", _FAILURE_TIMEOUT_NS)))
                except native.error_class():
                    continue  # the rank was killed while it wrote the failure
            count = store.add(f"{job}/results", 0) if outcome.exit_code == 0 else 0
            for number in range(1, count + 1):
                rank, result = cloudpickle.loads(store.get(f"{job}/result/{number}", _TIMEOUT_NS))
                self.results[rank] = result


def main() -> int:
    """Run the call of this job on this rank and leave its result, or why there is none."""
    config = Config.from_environ()
    assert config.store is not None and config.job is not None and config.secret is not None
    with native.translated():
        client = native.load().StoreClient
        store = client(*config.store, config.secret, config.start_timeout_ns, "worker", _rank(config))
        payload = store.get(f"{config.job}/call", config.start_timeout_ns)
    try:
        func, args, kwargs = cloudpickle.loads(payload)
        value = func(*args, **kwargs)
    except SystemExit as error:
        if config.worker is None or error.code:  # a worker with code 0 was dismissed by the launcher
            _leave(store, config, "failure", _failure(config, f"called sys.exit({error.code!r})"))
        raise
    except BaseException as error:
        _leave(store, config, "failure", failure_of(_rank(config), _host(config), error))
        raise
    try:
        result = cloudpickle.dumps(value)
    except Exception as error:  # the object's own methods may raise anything
        why = f"{error}; return plain data"
    else:
        try:
            _leave(store, config, "result", (_rank(config), result))
            return 0
        except RingtuneError as error:  # it is too large, or the launcher is gone
            why = str(error)
    what = f"returned a {type(value).__name__} that cannot be sent: {why}"
    _leave(store, config, "failure", _failure(config, what))
    print(f"ringtune: rank {_rank(config)} {what}", file=sys.stderr)
    return 1


def _leave(store: Any, config: Config, what: str, value: object) -> None:
    """Put a value into the store; the caller collects it when all ranks have ended."""
    with native.translated():
        number = store.add(f"{config.job}/{what}s", 1)
        store.set(f"{config.job}/{what}/{number}", cloudpickle.dumps(value))


def _failure(config: Config, what: str) -> CallFailure:
    return CallFailure(_rank(config), _host(config), what)


def _host(config: Config) -> str:
    return config.hostname or socket.gethostname()


def failure_of(rank: int, host: str, error: BaseException) -> CallFailure:
    """Return why a rank has no result whose function raised an exception; call it where that was caught.

    Args:
        rank: The rank.
        host: Its host.
        error: The exception.
    """
    what = "raised " + "".join(traceback.format_exception_only(error)).strip()
    # The first frame is this module's.
    frames = error.__traceback__.tb_next if error.__traceback__ is not None else None
    trace = "".join(traceback.format_exception(type(error), error, frames))
    try:
        pickled = cloudpickle.dumps(error)
    except Exception:  # the object's own methods may raise anything
        pickled = None
    return CallFailure(rank, host, what, trace, pickled, _follows(error))


def _follows(error: BaseException) -> bool:
    """Return whether another rank's end may have caused an error: it is the runtime's, or was raised because of one."""
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        if isinstance(at, RuntimeFailure):
            return True
        seen.add(id(at))
        at = at.__cause__ or at.__context__
    return False


def _rank(config: Config) -> int:
    from ringtune.elastic import membership

    member = membership.current()
    if member is not None and member.assignment is not None:
        return member.assignment.rank
    return config.rank or 0


if __name__ == "__main__":
    # The function may have been defined in a module beside the caller's script.
    sys.path.insert(0, os.getcwd())
    sys.exit(main())
