"""A group of actors as the ranks of one job."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringtune.engines import calls, ranks
from ringtune.engines.ranks import EngineJob
from ringtune.errors import InvalidArgument, RankFailed, Timeout
from ringtune.ray.worker import Place, Worker

_LOOK_EVERY_S = 0.2
_GRACE_S = 30.0
"""How long the ranks beside one that failed have for their own end: those that communicate notice at once."""


class ProcessDied(RankFailed):
    """An actor died."""


@dataclass(frozen=True)
class Shape:
    """How many actors there are, and what each is given.

    Attributes:
        workers: Number of actors; None: given by hosts.
        hosts: Number of hosts with equally many actors.
        per_host: Actors of each of these hosts.
        cpus: Cores of an actor.
        gpus: GPUs of an actor.
        use_current: Whether to use the placement group that this process is in.
    """

    workers: int | None
    hosts: int | None = None
    per_host: int = 1
    cpus: float = 1
    gpus: float = 0
    use_current: bool = True

    @property
    def size(self) -> int:
        """Number of actors."""
        return self.workers if self.workers is not None else (self.hosts or 1) * self.per_host

    def bundles(self) -> tuple[list[dict[str, float]], str]:
        """Return what a placement group reserves, and by which strategy."""
        count, each, strategy = (self.size, 1, "PACK") if self.workers is not None else (
            self.hosts or 1, self.per_host, "STRICT_SPREAD"
        )  # fmt: skip
        bundle = {"CPU": self.cpus * each, "GPU": self.gpus * each}
        return [{name: value for name, value in bundle.items() if value}] * count, strategy


class Group:
    """Actors that are ranks.

    Args:
        what: Who asks for them, for errors.
        shape: How many, with what.
        room_timeout_s: Seconds until the cluster must have room.
        start_timeout_s: Seconds until they must have started.
    """

    def __init__(self, what: str, shape: Shape, room_timeout_s: float, start_timeout_s: float) -> None:
        import ray

        self._what, self._ray = what, ray
        self._group, self._owned = self._reserve(shape, room_timeout_s)
        strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        made = ray.remote(Worker)
        count = len(self._group.bundle_specs)
        self._actors = [
            made.options(
                num_cpus=shape.cpus,
                num_gpus=shape.gpus,
                scheduling_strategy=strategy(
                    placement_group=self._group,
                    placement_group_bundle_index=(
                        number // shape.per_host if shape.workers is None else number if number < count else -1
                    ),
                ),
            ).remote()
            for number in range(shape.size)
        ]
        try:
            places: list[Place] = ray.get([actor.place.remote() for actor in self._actors], timeout=start_timeout_s)
        except ray.exceptions.GetTimeoutError:
            self.close()
            raise Timeout(f"{what}: {shape.size} actors have not started within {start_timeout_s:g} s") from None
        except ray.exceptions.RayActorError as error:
            self.close()
            raise ProcessDied(str(calls.died(what, _one_line(error)))) from None
        # Ranks of one node stand beside one another; nodes in the order of their first actor.
        nodes = list(dict.fromkeys(place.node for place in places))
        order = sorted(range(len(places)), key=lambda number: (nodes.index(places[number].node), number))
        self._actors = [self._actors[number] for number in order]
        self.places = [places[number] for number in order]

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self._actors)

    def begin(self, job: EngineJob, made: tuple[Any, Any, Any]) -> None:
        """Make the actors ranks of a job; see `Worker.begin`."""
        get = self._ray.get
        hosts = [place.host for place in self.places]
        try:
            meeting = get(self._actors[0].serve.remote(job, [place.address for place in self.places]))
            get(
                [
                    actor.begin.remote(job, {**ranks.variables(job, rank, hosts, meeting), **self._gpus(rank)}, made)
                    for rank, actor in enumerate(self._actors)
                ]
            )
        except self._ray.exceptions.RayActorError as error:
            raise ProcessDied(str(calls.died(self._what, _one_line(error)))) from None

    def start(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Begin a call on every rank; return Ray's references to the results."""
        return [actor.call.remote(function, tuple(args), dict(kwargs)) for actor in self._actors]

    def call(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        on_executable: bool = False,
        only_first: bool = False,
        callbacks: Sequence[Callable[[Any], object]] = (),
    ) -> list[Any]:
        """Make a call on the ranks and return the results by rank.

        Args:
            function: The function.
            args: Positional arguments.
            kwargs: Keyword arguments.
            on_executable: Whether it gets the object made in `begin` first.
            only_first: Whether rank 0 alone makes it.
            callbacks: Get what rank 0 logs (`ray_logger`).

        Raises:
            RankFailed: A rank raised an exception, which is the cause of this one, or its process died.
        """
        actors = self._actors[:1] if only_first else self._actors
        log = _Log(callbacks)
        given = (function, tuple(args), dict(kwargs), on_executable, log.queue)
        asked = [actor.answer.remote(*given) for actor in actors]
        answers: dict[int, tuple[calls.Answer, Any]] = {}
        death, waiting = "", list(asked)
        deadline: float | None = None
        while waiting:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            done, waiting = self._ray.wait(waiting, num_returns=1, timeout=log.look_after(left))
            log.pass_on()
            if not done:
                if left == 0.0:
                    break
                continue
            rank = asked.index(done[0])
            try:
                answers[rank] = self._ray.get(done[0])
            except self._ray.exceptions.RayActorError as error:
                death = death or f"rank {rank} on {self.places[rank].host}: {_one_line(error)}"
            if death or answers[rank][0].failure is not None:
                deadline = deadline or time.monotonic() + _GRACE_S
        log.close()
        if death:
            raise ProcessDied(str(calls.died(self._what, death)))
        calls.refuse_failures(self._what, [one for one, _ in answers.values()])
        return [answers[rank][1] for rank in sorted(answers)]

    def end(self, job: EngineJob) -> None:
        """Let the ranks leave their job."""
        try:
            self._ray.get([actor.end.remote(job) for actor in self._actors], timeout=_GRACE_S)
        except (self._ray.exceptions.RayError, Exception) as error:
            print(f"ringtune warning: {self._what}: while the ranks left: {_one_line(error)}", file=sys.stderr)

    def close(self) -> None:
        """End the actors and give back what was reserved."""
        for actor in self._actors:
            self._ray.kill(actor)
        if self._owned:
            self._ray.util.remove_placement_group(self._group)

    def _reserve(self, shape: Shape, timeout_s: float) -> tuple[Any, bool]:
        """Return the placement group, and whether it was made here."""
        current = self._ray.util.get_current_placement_group() if shape.use_current else None
        if current is not None and shape.workers is not None:
            return current, False
        bundles, strategy = shape.bundles()
        group = self._ray.util.placement_group(bundles, strategy=strategy)
        if not group.wait(timeout_s):
            self._ray.util.remove_placement_group(group)
            there = {name: self._ray.cluster_resources().get(name, 0.0) for name in ("CPU", "GPU")}
            raise PlacementTimeout(
                f"{self._what}: the cluster had no room within {timeout_s:g} s for {len(bundles)} bundles of "
                f"{bundles[0]} ({strategy}); all its nodes together have {there['CPU']:g} CPU and {there['GPU']:g} GPU"
            )
        return group, True

    def _gpus(self, rank: int) -> dict[str, str]:
        """Return the variable that shows a rank all GPUs of its node that the job has, as NCCL needs it."""
        node = self.places[rank].node
        gpus = dict.fromkeys(gpu for place in self.places if place.node == node for gpu in place.gpus)
        return {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}


class _Log:
    """What rank 0 logs, on its way to callbacks.

    Args:
        callbacks: Who gets it; without any there is no queue.

    Attributes:
        queue: Between the actors and this process.
    """

    def __init__(self, callbacks: Sequence[Callable[[Any], object]]) -> None:
        self._callbacks = callbacks
        self.queue: Any = None
        if callbacks:
            from ray.util.queue import Queue

            self.queue = Queue(actor_options={"num_cpus": 0})

    def look_after(self, left: float | None) -> float | None:
        """Return after how many seconds to look, of those that are left."""
        return left if self.queue is None else min(_LOOK_EVERY_S, _LOOK_EVERY_S if left is None else left)

    def pass_on(self) -> None:
        """Give what has come to the callbacks."""
        while self.queue is not None and not self.queue.empty():
            info = self.queue.get()
            for callback in self._callbacks:
                callback(info)

    def close(self) -> None:
        """Give what is left to the callbacks, and end the queue."""
        self.pass_on()
        if self.queue is not None:
            self.queue.shutdown()


class PlacementTimeout(Timeout, TimeoutError):
    """The cluster has no room for the actors."""


def connected(what: str) -> Any:
    """Return the module ray, connected to a cluster.

    Raises:
        InvalidArgument: It is not.
    """
    import ray

    if not ray.is_initialized():
        raise InvalidArgument(f"{what}: this process is not connected to a Ray cluster: call ray.init() first")
    return ray


def room(shape: Shape) -> int:
    """Return how many actors of this kind the free resources of the cluster hold, by their sums."""
    import ray

    free = ray.available_resources()
    counts = [int(free.get(name, 0.0) // each) for name, each in (("CPU", shape.cpus), ("GPU", shape.gpus)) if each]
    return min(counts) if counts else (os.cpu_count() or 1)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:400]
