"""What an actor of Ray's does as a rank."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ringtune import session
from ringtune.engines import ranks
from ringtune.engines.calls import Answer
from ringtune.engines.ranks import EngineJob, Meeting
from ringtune.launch.call import failure_of
from ringtune.ray import ray_logger


@dataclass(frozen=True)
class Place:
    """Where an actor is.

    Attributes:
        host: Name of its machine; ranks of one name share memory.
        address: By which other nodes reach it.
        node: Ray's id of its node.
        gpus: The GPUs that Ray gave to it.
    """

    host: str
    address: str
    node: str
    gpus: tuple[str, ...]


class Worker:
    """The body of an actor: a rank from `begin` to `end`, which makes any number of calls between."""

    def __init__(self) -> None:
        self._before: dict[str, str] | None = None
        self._rank = 0
        self._executable: Any = None

    def place(self) -> Place:
        """Return where this actor is."""
        import ray

        context = ray.get_runtime_context()
        gpus = tuple(str(one) for one in context.get_accelerator_ids().get("GPU", ()))
        return Place(socket.gethostname(), ray.util.get_node_ip_address(), context.get_node_id(), gpus)

    def serve(self, job: EngineJob, addresses: list[str]) -> Meeting:
        """Serve the job's store; see `ranks.serve`."""
        return ranks.serve(job, addresses)

    def begin(self, job: EngineJob, own: Mapping[str, str], made: tuple[Any, Any, Any]) -> None:
        """Become a rank.

        Args:
            job: The job.
            own: The rank's variables.
            made: Class whose object the functions of `execute` get, with its arguments; no class: None.
        """
        self._before = ranks.join(job, own)
        self._rank = int(own["RINGTUNE_RANK"])
        kind, args, kwargs = made
        self._executable = kind(*(args or ()), **(kwargs or {})) if kind is not None else None

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what a function returns.

        Raises:
            Exception: Whatever it raises; it is reported to the other ranks.
        """
        try:
            return function(*args, **kwargs)
        except BaseException:
            session.shutdown()
            raise

    def answer(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], on_executable: bool, log: Any
    ) -> tuple[Answer, Any]:
        """Make a call; return an answer that holds a failure, and the result.

        Args:
            function: The function.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
            on_executable: Whether the object made in `begin` comes before them.
            log: Queue for what rank 0 logs; None without callbacks.
        """
        ray_logger.configure(log if self._rank == 0 else None)
        given = (self._executable, *args) if on_executable else args
        try:
            return Answer(self._rank), self.call(function, given, kwargs)
        except (Exception, SystemExit) as error:
            return Answer(self._rank, failure=failure_of(self._rank, socket.gethostname(), error)), None

    def end(self, job: EngineJob) -> None:
        """Leave the job, which has ended well."""
        if self._before is not None:
            ranks.leave(self._before)
            self._before = None
        if job.keeps_state:
            ranks.forget_state(job)

    def environment(self, names: list[str]) -> dict[str, str | None]:
        """Return variables of this process."""
        return {name: os.environ.get(name) for name in names}
