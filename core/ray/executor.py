"""``ringtune.ray.RayExecutor``: functions on the ranks of a job that consists of Ray's actors."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from ringtune.engines import ranks
from ringtune.engines.ranks import EngineJob
from ringtune.errors import InvalidArgument, NotSupported, RankFailed
from ringtune.ray.group import Group, ProcessDied, Shape, connected, room
from ringtune.ray.settings import MiniSettings, read

_RESETS = 3
_LOOK_EVERY_S = 0.5
_FULL_WITHIN_S = 5.0
"""How long a start waits for as many actors as the one before had, while Ray takes back what the dead ones held."""


class RayExecutor:
    """Actors that train together.

    With `min_workers` the job is elastic: when an actor dies, all are started anew, as many as the cluster has room
    for, and a function wrapped by ``hvd.elastic.run`` goes on from its last commit.

    Args:
        settings: Of `create_settings`, any object of Horovod's settings, or None.
        num_workers: Number of actors, wherever there is room.
        num_hosts: Number of nodes with `num_workers_per_host` actors each.
        num_workers_per_host: See `num_hosts`.
        cpus_per_worker: Cores of an actor.
        use_gpu: Whether an actor needs GPUs.
        gpus_per_worker: How many; default: 1.
        use_current_placement_group: Whether to use the placement group that this process is in.
        min_workers: Least actors of an elastic job.
        max_workers: Most actors of an elastic job; default: as many as there is room for.
        reset_limit: How often the actors are started anew; default: 3 times.
        cooldown_range: Accepted for Horovod's sake: Ray decides where actors start.
        elastic_timeout: Seconds to wait for `min_workers` actors' room.
        override_discovery: Accepted for Horovod's sake: Ray knows the nodes.

    Raises:
        ValueError: Arguments exclude each other.
    """

    @classmethod
    def create_settings(
        cls,
        timeout_s: float = 30,
        ssh_identity_file: str | None = None,
        ssh_str: str | None = None,
        placement_group_timeout_s: float = 100,
        nics: Sequence[str] | None = None,
    ) -> MiniSettings:
        """Return settings.

        Args:
            timeout_s: Seconds until all actors must have started.
            ssh_identity_file: Without effect, as is `ssh_str`: no ssh is used.
            ssh_str: See `ssh_identity_file`.
            placement_group_timeout_s: Seconds until the cluster must have room for them.
            nics: Network interfaces of links between hosts.
        """
        return MiniSettings(
            nics=nics,
            ssh_identity_file=ssh_identity_file,
            timeout_s=timeout_s,
            placement_group_timeout_s=placement_group_timeout_s,
        )

    def __init__(
        self,
        settings: Any = None,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int = 1,
        cpus_per_worker: float = 1,
        use_gpu: bool = False,
        gpus_per_worker: int | None = None,
        use_current_placement_group: bool = True,
        min_workers: int | None = None,
        max_workers: int | None = None,
        reset_limit: int | None = None,
        cooldown_range: Sequence[float] | None = None,
        elastic_timeout: float = 600,
        override_discovery: bool = True,
    ) -> None:
        self._elastic = min_workers is not None or max_workers is not None
        _check(num_workers, num_hosts, min_workers, max_workers)
        if gpus_per_worker is not None and (not use_gpu or gpus_per_worker < 1):
            _wrong(f"gpus_per_worker={gpus_per_worker}: expected at least 1, together with use_gpu=True")
        self._settings = read(settings)
        self._shape = Shape(
            min_workers if self._elastic else num_workers,
            num_hosts,
            num_workers_per_host,
            cpus_per_worker,
            (gpus_per_worker or 1) if use_gpu else 0,
            use_current_placement_group and not self._elastic,
        )
        self._most = max_workers
        self._resets = _RESETS if reset_limit is None else reset_limit
        self._elastic_timeout_s = elastic_timeout
        self._made: tuple[Any, Any, Any] = (None, None, None)
        self._job: EngineJob | None = None
        self._group: Group | None = None

    def start(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, str] | None = None,
    ) -> None:
        """Start the actors; those of an elastic job start with each `run`.

        Args:
            executable_cls: Class whose object each actor makes, for `execute`.
            executable_args: Its positional arguments.
            executable_kwargs: Its keyword arguments.
            extra_env_vars: Further variables of the ranks. ringtune's of this process go along.

        Raises:
            TimeoutError: The cluster has no room.
            InvalidArgument: This process is not connected to a cluster, or the executor has started already.
        """
        connected("RayExecutor.start")
        if self._job is not None:
            raise InvalidArgument("RayExecutor.start: it has started already; call shutdown() first")
        nics = ",".join(self._settings.nics or ())
        settings = {**({"RINGTUNE_INTERFACE": nics} if nics else {}), **(extra_env_vars or {})}
        self._made = (executable_cls, executable_args, executable_kwargs)
        job = ranks.new_job("ray", settings, keeps_state=self._elastic)
        if not self._elastic:
            self._group = self._open(job, self._shape, self._settings.placement_group_timeout_s)
        self._job = job

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callable[..., Any]] | None = None,
    ) -> list[Any]:
        """Call ``fn(*args, **kwargs)`` on every rank and return the results by rank.

        Args:
            fn: The function.
            args: Positional arguments.
            kwargs: Keyword arguments.
            callbacks: Called with each dictionary that rank 0 gives to ``ringtune.ray.ray_logger.log``.

        Raises:
            RankFailed: A rank raised an exception, which is the cause of this one, or its actor died; of an elastic
                job, more often than `reset_limit`.
        """
        return self._call("run", (fn, args or (), kwargs or {}), callbacks or (), on_executable=False)

    def execute(self, fn: Callable[[Any], Any], callbacks: Sequence[Callable[..., Any]] | None = None) -> list[Any]:
        """Call ``fn(executable)`` on every rank, with the object made by `start`; see `run`."""
        return self._call("execute", (fn, (), {}), callbacks or (), on_executable=True)

    def run_remote(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Begin ``fn(*args, **kwargs)`` on every rank and return Ray's references to the results.

        Raises:
            NotImplementedError: The job is elastic.
        """
        return self._fixed("run_remote").start(fn, args or (), kwargs or {})

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Call ``fn(executable)`` on rank 0 and return the result.

        Raises:
            NotImplementedError: The job is elastic.
        """
        return self._fixed("execute_single").call(fn, (), {}, on_executable=True, only_first=True)[0]

    def shutdown(self) -> None:
        """End the actors and give back what was reserved for them. Idempotent."""
        if self._group is not None and self._job is not None:
            self._group.end(self._job)
            self._group.close()
        self._group = self._job = None

    def _call(
        self,
        name: str,
        call: tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]],
        callbacks: Sequence[Callable[..., Any]],
        *,
        on_executable: bool,
    ) -> list[Any]:
        if self._job is None:
            raise InvalidArgument(f"RayExecutor.{name}: call start() first")
        if self._group is not None:
            return self._group.call(*call, on_executable=on_executable, callbacks=callbacks)
        size = self._shape.size
        for restart in range(self._resets + 1):
            job = dataclasses.replace(self._job, restart=restart)
            group: Group | None = None
            try:
                shape = dataclasses.replace(self._shape, workers=self._find_room(size))
                group = self._open(job, shape, self._elastic_timeout_s)
                size = group.size
                found = group.call(*call, on_executable=on_executable, callbacks=callbacks)
                group.end(job)
                return found
            except ProcessDied as error:
                if restart == self._resets:
                    raise RankFailed(f"{error} (start {restart + 1} of {restart + 1}; reset_limit)") from None
                print(f"{error}; the actors are started anew", file=sys.stderr, flush=True)
            finally:
                if group is not None:
                    group.close()
        raise InvalidArgument(f"RayExecutor: reset_limit={self._resets}: expected 0 or more")

    def _find_room(self, wanted: int) -> int:
        """Return how many actors an elastic job starts; what the last start had needs a moment to come free."""
        began = time.monotonic()
        least, most = self._shape.size, self._most
        while True:
            free = room(self._shape)
            waited = time.monotonic() - began
            enough = max(least, wanted if waited < _FULL_WITHIN_S else least)
            if free >= enough or waited >= self._elastic_timeout_s:
                return max(least, free if most is None else min(free, most))
            time.sleep(_LOOK_EVERY_S)

    def _open(self, job: EngineJob, shape: Shape, room_timeout_s: float) -> Group:
        group = Group("RayExecutor", shape, room_timeout_s, self._settings.timeout_s)
        try:
            group.begin(job, self._made)
        except BaseException:
            group.close()
            raise
        return group

    def _fixed(self, name: str) -> Group:
        if self._elastic:
            raise NotSupported(f"RayExecutor.{name}: an elastic job has actors during run() and execute() alone")
        if self._group is None:
            raise InvalidArgument(f"RayExecutor.{name}: call start() first")
        return self._group


def _check(num_workers: int | None, num_hosts: int | None, least: int | None, most: int | None) -> None:
    if most is not None and (least is None or least < 1):
        _wrong(f"max_workers={most} needs min_workers of at least 1")
    if least is not None and num_workers is not None:
        _wrong("give num_workers, or min_workers for an elastic job, not both")
    if least is not None and most is not None and least > most:
        _wrong(f"min_workers={least} is more than max_workers={most}")
    if least is None and (num_workers is None) == (num_hosts is None):
        _wrong("give num_workers, or num_hosts with num_workers_per_host, or min_workers for an elastic job")
    for name, number in (("num_workers", num_workers), ("num_hosts", num_hosts), ("min_workers", least)):
        if number is not None and number < 1:
            _wrong(f"{name}={number}: expected at least 1")


def _wrong(text: str) -> NoReturn:
    raise InvalidArgument(f"RayExecutor: {text}")
