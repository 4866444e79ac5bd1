"""``ringtune.dask.run``: a function as one pinned task for each worker."""

from __future__ import annotations

import dataclasses
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from ringtune.engines import calls, ranks
from ringtune.engines.ranks import EngineJob
from ringtune.errors import InvalidArgument, RankFailed, Timeout

_WHAT = "ringtune.dask.run"
_LOOK_EVERY_S = 0.5
_GRACE_S = 10.0
"""How long the ranks beside one whose worker died have to say what they saw."""


def run(
    client: Any,
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    env: Mapping[str, str] | None = None,
    start_timeout: float = 60,
    restarts: int = 0,
) -> list[Any]:
    """Call ``fn(*args, **kwargs)`` in workers of a Dask cluster, each a rank of a new job; return results by rank.

    A worker gets one rank, however many threads it has. Ranks of one machine share memory and stand beside one another.

    Args:
        client: A ``distributed.Client``.
        fn: The function; it and its arguments are pickled with cloudpickle.
        args: Positional arguments.
        kwargs: Keyword arguments.
        num_proc: Number of ranks; default: one in every worker.
        env: Further variables of the ranks. ringtune's of this process go along; no others do.
        start_timeout: Seconds to wait for so many workers.
        restarts: How often the job is started again when a worker has died, which its nanny starts anew; a function
            wrapped by ``hvd.elastic.run`` then goes on from its last commit.

    Raises:
        InvalidArgument: An argument is wrong, or the workers are threads of one process.
        Timeout: There are fewer workers.
        RankFailed: A rank raised an exception, which is the cause of this one, or its worker died.
    """
    if not hasattr(client, "scheduler_info") or not hasattr(client, "submit"):
        raise InvalidArgument(f"{_WHAT}: expected a distributed.Client, got {type(client).__name__}")
    for name, number, least in (("num_proc", num_proc, 1), ("restarts", restarts, 0)):
        if number is not None and (not isinstance(number, int) or number < least):
            raise InvalidArgument(f"{_WHAT}: {name}={number!r}: expected a whole number of at least {least}")
    packed = calls.pack(_WHAT, fn, args, kwargs)
    job = ranks.new_job("dask", env, keeps_state=restarts > 0)
    for restart in range(restarts + 1):
        workers = _find_workers(client, num_proc, start_timeout)
        num_proc = len(workers)
        try:
            return _run(client, dataclasses.replace(job, restart=restart), workers, packed)
        except _WorkerDied as error:
            if restart == restarts:
                starts = f" (start {restart + 1} of {restart + 1})" if restarts else ""
                raise RankFailed(f"{error}{starts}") from None
            print(f"{error}; the job is started again", file=sys.stderr, flush=True)
    raise AssertionError("the last start has returned or raised")


class _WorkerDied(RankFailed):
    """A worker of the job died."""


def _run(client: Any, job: EngineJob, workers: Sequence[str], packed: bytes) -> list[Any]:
    places = client.run(_place, workers=list(workers))
    _refuse_threads(places)
    # Ranks of one machine stand beside one another; machines in the order of their first worker.
    machines = list(dict.fromkeys(places[worker][0] for worker in workers))
    workers = sorted(workers, key=lambda worker: machines.index(places[worker][0]))
    addresses = [urlsplit(worker).hostname or worker for worker in workers]
    hosts = [places[worker][0] for worker in workers]
    meeting = _pinned(client, workers[0], ranks.serve, job, addresses).result()
    asked = [
        _pinned(client, worker, calls.answer, job, ranks.variables(job, rank, hosts, meeting), packed)
        for rank, worker in enumerate(workers)
    ]
    found = calls.results(_WHAT, _answers(client, asked, workers))
    if job.keeps_state:
        client.run(ranks.forget_state, job, workers=list(workers))
    return found


def _answers(client: Any, asked: Sequence[Any], workers: Sequence[str]) -> list[calls.Answer]:
    """Wait for the answers, and look whether all workers are alive: Dask waits for a dead one to come back."""
    dead: dict[str, float] = {}
    while True:
        done = [future for future in asked if future.done()]
        gone = [worker for worker, future in zip(workers, asked, strict=True)
                if not future.done() and worker not in _alive(client)]  # fmt: skip
        for worker in gone:
            dead.setdefault(worker, time.monotonic())
        waits = len(done) + len(gone) < len(asked) and (not dead or time.monotonic() < min(dead.values()) + _GRACE_S)
        if not waits:
            break
        time.sleep(_LOOK_EVERY_S)
    if dead:
        client.cancel(list(asked), force=True)
        rank = workers.index(next(iter(dead)))
        raise _WorkerDied(str(calls.died(_WHAT, f"rank {rank}: Dask has lost its worker {workers[rank]}")))
    lost = next((rank for rank, future in enumerate(asked) if future.status != "finished"), None)
    if lost is not None:
        how = " ".join(str(asked[lost].exception()).split())
        raise _WorkerDied(str(calls.died(_WHAT, f"rank {lost}: {how}")))
    return [future.result() for future in asked]


def _find_workers(client: Any, wanted: int | None, timeout_s: float) -> list[str]:
    """Return the addresses of so many workers, waiting for them.

    Raises:
        Timeout: They did not come.
    """
    deadline = time.monotonic() + timeout_s
    while len(workers := _alive(client)) < (wanted or 1):
        if time.monotonic() >= deadline:
            raise Timeout(
                f"{_WHAT}: {wanted or 1} ranks need {wanted or 1} workers, and the cluster has {len(workers)} after "
                f"{timeout_s:g} s: ask for fewer ranks, or scale the cluster (a worker gets one rank)"
            )
        time.sleep(_LOOK_EVERY_S)
    return workers[:wanted]


def _alive(client: Any) -> list[str]:
    return list(client.run_on_scheduler(_workers))


def _workers(dask_scheduler: Any) -> list[str]:
    return [str(address) for address in dask_scheduler.workers]


def _place() -> tuple[str, int]:
    return socket.gethostname(), os.getpid()


def _refuse_threads(places: Mapping[str, tuple[str, int]]) -> None:
    if len(set(places.values())) < len(places):
        raise InvalidArgument(
            f"{_WHAT}: workers are threads of one process, which can be one rank alone: start the cluster with "
            "processes (LocalCluster(processes=True), or dask worker --nworkers N)"
        )


def _pinned(client: Any, worker: str, function: Callable[..., Any], *args: Any) -> Any:
    return client.submit(function, *args, workers=[worker], allow_other_workers=False, pure=False, retries=0)
