"""A worker's side of an elastic job: ask the launcher for a rank, look for news about hosts."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from ringtune import native
from ringtune.config import Config
from ringtune.elastic import keys
from ringtune.elastic.job_timeline import JobTimeline
from ringtune.elastic.results import HostUpdateResult
from ringtune.errors import ConfigError, Timeout

_DECIDED_AFTER = 2
"""The launcher ends workers that do not come after one time limit and gives up after another: a worker waits longer."""
_DECIDED_NS = 60_000_000_000
_LOOK_EVERY_S = 0.5
"""Shortest time between two reads of the notice: commits may come many times a second."""


@dataclass(frozen=True)
class Assignment:
    """A worker's rank in one generation.

    Attributes:
        generation: Number of the set of ranks, from 1.
        rank: Rank in it.
        size: Number of ranks in it.
        environ: What torchrun would tell this rank (``RANK``, ``MASTER_PORT`` ...).
        timeline: Its place in the timeline of the job.
    """

    generation: int
    rank: int
    size: int
    timeline: JobTimeline
    environ: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Notice:
    """News about hosts.

    Attributes:
        number: Counts the notices of the job.
        result: What happened.
    """

    number: int
    result: HostUpdateResult


class Membership:
    """This process as a worker of an elastic job; one per process. Not thread-safe.

    Args:
        job: Name of the job.
        worker: Number of this process in the job.
        store: Client of the launcher's store.

    Attributes:
        progress: How far this process was in the timeline when it left the last generation, for `Continuation.came`.
        going_on: Whether the session that closes is followed by one of the next generation.
    """

    def __init__(self, job: str, worker: int, store: Any) -> None:
        self._job = job
        self._worker = worker
        self._store = store
        self._count = 0
        self._assignment: Assignment | None = None
        self._seen = 0
        self._looked = 0.0
        self.progress: tuple[int, ...] = ()
        self.going_on = False

    @property
    def assignment(self) -> Assignment | None:
        """This worker's rank in the present generation, None before the first."""
        return self._assignment

    def next_assignment(self, timeout_ns: int) -> Assignment:
        """Say that this worker is ready and wait for its rank in the next generation.

        Raises:
            Timeout: The launcher found not enough ranks in time.
            SystemExit: The job goes on without this worker, or it has lost the launcher.
        """
        self._count += 1
        wait_ns = _DECIDED_AFTER * timeout_ns + _DECIDED_NS
        try:
            self._store.set(keys.ready(self._job, self._worker, self._count), orjson.dumps(self.progress))
            self._store.add(keys.news(self._job), 1)
            text = self._store.get(keys.assignment(self._job, self._worker, self._count), wait_ns)
        except native.error_class() as error:
            if type(error).__name__ != "Timeout":
                raise self._leave(f"it is cut off from the launcher ({error})", 1) from None
            raise Timeout(
                f"worker {self._worker}: the launcher gave no rank within {wait_ns / 1e9:g} s "
                "(RINGTUNE_ELASTIC_TIMEOUT): too few ranks are left, or one of them does not come"
            ) from None
        answer = orjson.loads(text)
        if "leave" in answer:
            raise self._leave(answer["leave"], 0)
        self._assignment = Assignment(**{**answer, "timeline": JobTimeline.from_dict(answer["timeline"])})
        # The launcher has formed this generation with all earlier notices in mind.
        self._seen = self._latest().number
        return self._assignment

    def take_notice(self) -> Notice | None:
        """Return news that have not been taken yet; only rank 0 looks, at most twice a second.

        Raises:
            SystemExit: This worker has lost the launcher.
        """
        now = time.monotonic()
        if self._assignment is None or self._assignment.rank != 0 or now - self._looked < _LOOK_EVERY_S:
            return None
        self._looked = now
        notice = self._latest()
        if notice.number <= self._seen:
            return None
        self._seen = notice.number
        return notice

    def _leave(self, why: str, exit_code: int) -> SystemExit:
        print(f"ringtune: worker {self._worker} leaves the job: {why}", file=sys.stderr, flush=True)
        return SystemExit(exit_code)

    def _latest(self) -> Notice:
        try:
            value = orjson.loads(self._store.get(keys.notice(self._job), 5_000_000_000))
        except native.error_class() as error:
            raise self._leave(f"it is cut off from the launcher ({error})", 1) from None
        return Notice(value["number"], HostUpdateResult(value["result"]))


@dataclass
class _Current:
    member: Membership | None = None


_state = _Current()


def current() -> Membership | None:
    """Return this process's membership, None in a job with fixed ranks (or before its first ``init()``)."""
    return _state.member


def is_going_on() -> bool:
    """Whether the session of an elastic job is closed to be followed by one of the next generation."""
    return _state.member is not None and _state.member.going_on


def note_progress(progress: tuple[int, int, int, int]) -> None:
    """Keep how far a session has come in its job's timeline (`ringtune.runtime.Runtime.progress`) for the launcher."""
    if _state.member is not None:
        _state.member.progress = progress


@contextlib.contextmanager
def going_on() -> Iterator[None]:
    """Within it, the session of an elastic job is closed to be followed by one of the next generation."""
    if _state.member is not None:
        _state.member.going_on = True
    try:
        yield
    finally:
        if _state.member is not None:
            _state.member.going_on = False


def join(config: Config) -> Membership:
    """Return this process's membership, made at the first call.

    Raises:
        ConfigError: The launcher's variables are incomplete.
        RingtuneError: The launcher's store cannot be reached.
    """
    if config.worker is None or config.store is None or config.job is None or config.secret is None:
        raise ConfigError(
            "RINGTUNE_WORKER is set but RINGTUNE_STORE, RINGTUNE_JOB or RINGTUNE_SECRET is not: "
            "`ringtune run --min-np` sets them all"
        )
    if _state.member is None:
        with native.translated():
            client = native.load().StoreClient
            store = client(*config.store, config.secret, config.start_timeout_ns, "worker", config.worker)
            store.set_at_end(keys.gone(config.job, config.worker), b"1")
        _state.member = Membership(config.job, config.worker, store)
    return _state.member
