"""The launcher of an elastic job: keeps it going while ranks fail and hosts come and go.

`Membership` decides; this module asks the hosts' script, starts processes, reads and writes the store (see
`ringtune.elastic.keys`) and passes on what happened.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import selectors
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from ringtune import native
from ringtune.elastic import keys
from ringtune.elastic.job_timeline import Continuation
from ringtune.elastic.results import HostUpdateResult
from ringtune.errors import UsageError
from ringtune.launch import actions, membership, remote, supervisor
from ringtune.launch.discovery import Discovery
from ringtune.launch.environment import Job, as_torchrun, for_other_host, meeting_place, worker_environment
from ringtune.launch.hosts import Host, Slot, is_local
from ringtune.launch.membership import Membership
from ringtune.launch.options import ElasticOptions, LaunchOptions
from ringtune.launch.rank import ABANDON_S, Order, RankProcess
from ringtune.launch.streams import Streams
from ringtune.launch.supervisor import Failure, Outcome, Supervisor, how_ended

_LOOK_EVERY_S = 0.1
_STOPPED_S = 10.0
"""For so long others wait for a worker whose process stands stopped (SIGSTOP); then it is ended and replaced."""
_GONE_S = 3.0
"""For so long the launcher waits for the end of a process that others wait for and whose connection has ended."""
_STORE_TIMEOUT_NS = 10_000_000_000


def limits_of(options: LaunchOptions) -> membership.Limits:
    """Return the limits of an elastic job.

    Raises:
        UsageError: Numbers of ranks that contradict each other.
    """
    elastic = options.elastic
    assert elastic is not None
    start = options.num_proc if options.num_proc is not None else elastic.min_np
    if start is None:
        raise UsageError("say how many ranks to start with: ringtune run -np 2 --min-np 1 ...")
    least = elastic.min_np if elastic.min_np is not None else start
    if not 1 <= least <= start or (elastic.max_np is not None and elastic.max_np < start):
        most = "" if elastic.max_np is None else f" <= --max-np {elastic.max_np}"
        raise UsageError(f"--min-np {least}, -np {start}{most}: expected 1 <= --min-np <= -np <= --max-np")
    return membership.Limits(
        start, least, elastic.max_np, elastic.reset_limit, elastic.timeout_s, elastic.cooldown_s, elastic.script is None
    )


class ElasticSupervisor(Supervisor):
    """Watches an elastic job from start to end.

    Args:
        job: What its workers share.
        limits: Limits of the job.
        streams: Where output goes.
        options: The job.
    """

    _KIND = "worker"

    def __init__(self, job: Job, limits: membership.Limits, streams: Streams, options: LaunchOptions) -> None:
        super().__init__((), streams, options)
        self._job = job
        self._membership = Membership(limits)
        self._counts: dict[int, int] = {}
        self._timeline = Continuation()
        self._started_workers: list[RankProcess] = []
        self._awaited: set[int] = set()
        self._gone: dict[int, float] = {}
        self._killed: dict[int, float] = {}
        self._notices = 0
        self._news = 0
        self._given_up: actions.GiveUp | None = None
        with native.translated():
            client = native.load().StoreClient
            self._store = client(job.store_host, job.store_port, job.secret, _STORE_TIMEOUT_NS, "launcher")
        self._tell_notice(HostUpdateResult.no_update)

    def run_with(self, hosts: Sequence[Host], discovery: Discovery | None) -> Outcome:
        """Stay until the job has ended.

        Args:
            hosts: The hosts at the start.
            discovery: Where later hosts come from, None if they stay.
        """
        with self._selector, self._catching_signals(), self._cleaning_up():
            if discovery is not None:
                self._selector.register(discovery.wake_fd, selectors.EVENT_READ, (discovery, "hosts"))
                discovery.start()
            self._feed(functools.partial(self._membership.discovered, hosts))
            while self._running or not (self._membership.over or self._interrupted_by):
                self._turn()
                self._look()
        return self._outcome()

    def _look(self) -> None:
        """Pass the workers' messages and the time to the membership."""
        with native.translated():
            news = self._store.add(keys.news(self._job.name), 0)
        if news != self._news:
            self._news = news
            for worker in list(self._running):
                if (progress := self._said_ready(worker)) is not None:
                    self._counts[worker] += 1
                    if said := orjson.loads(progress):
                        self._timeline.came(worker, said)
                    self._feed(functools.partial(self._membership.ready, worker))
        self._look_for_lost()
        self._feed(self._membership.tick)

    def _look_for_lost(self) -> None:
        """Give up awaited workers whose hosts cannot be reached: ssh itself would notice that after half a minute."""
        now = time.monotonic()
        for worker in self._awaited & set(self._running):
            if is_local(self._running[worker].slot.host):
                continue  # its process is seen to end, with its own exit code, however long that takes
            gone = self._value(keys.gone(self._job.name, worker)) is not None
            if gone and now >= self._gone.setdefault(worker, now) + _GONE_S:
                self._feed(functools.partial(self._membership.lost, worker))
        for worker, at in self._killed.items():
            if now >= at + ABANDON_S and worker in self._running:
                self._running[worker].kill_rank_agent()

    def _said_ready(self, worker: int) -> bytes | None:
        return self._value(keys.ready(self._job.name, worker, self._counts[worker] + 1))

    def _value(self, key: str) -> bytes | None:
        try:
            value: bytes = self._store.get(key, 0)
        except native.error_class():
            return None
        return value

    def _feed(self, event: Callable[[float], None]) -> None:
        event(time.monotonic())
        for action in self._membership.take_actions():
            self._do(action)
        self._watch_awaited()

    def _watch_awaited(self) -> None:
        """Let rank agents end workers that stand stopped while others wait for them, and no others."""
        awaited = self._membership.awaited() & set(self._running)
        for worker in awaited ^ self._awaited:
            if worker in self._running:
                self._running[worker].end_if_stopped(_STOPPED_S if worker in awaited else math.inf)
        if bool(awaited) != bool(self._awaited):
            self._say_alone_at = time.monotonic() + supervisor.WAITING_S if awaited else None
        self._awaited = awaited

    def _late(self) -> tuple[list[RankProcess], str]:
        if not self._awaited:
            return super()._late()
        return [self._running[worker] for worker in sorted(self._awaited)], "others are ready to go on"

    def _do(self, action: actions.Action) -> None:
        if isinstance(action, actions.Start):
            self._start(action)
        elif isinstance(action, actions.Publish):
            self._publish(action)
        elif isinstance(action, actions.Dismiss):
            self._assign(action.worker, {"leave": action.reason})
        elif isinstance(action, actions.Notify):
            self._tell_notice(action.result)
        elif isinstance(action, actions.Kill):
            self._streams.say(f"worker {action.worker} {action.why}, ending it")
            self._running[action.worker].kill()
            self._killed[action.worker] = time.monotonic()
        elif isinstance(action, actions.Say):
            self._streams.say(action.text)
        else:
            self._given_up = action
            self._streams.say(f"the job ends: {action.reason}")
            self._terminate_at = time.monotonic()

    def _start(self, action: actions.Start) -> None:
        if self._interrupted_by:
            return
        elastic, here = self._options.elastic, is_local(action.host)
        assert elastic is not None
        slot = Slot(action.worker, action.host, 0, 1)
        environ = worker_environment(
            self._job, slot, self._store_host(here, action.host), self._options.environ, self._options.settings
        )
        order = Order(
            self._options.command,
            environ if here else for_other_host(environ),
            Path.cwd(),
            self._membership.slots_of(action.host),
            self._options.kill_grace_s,
            () if here else remote.variables_of_host(self._options),
            "" if here else remote.proof(self._options),
        )
        rank_agent = (
            remote.rank_agent_command() if here else remote.remote_rank_agent_command(action.host, self._options)
        )
        self._streams.open(action.worker)
        self._counts[action.worker] = 0
        process = RankProcess(slot, rank_agent, order)
        self._started_workers.append(process)
        self._add(process)
        if self._options.verbose:
            self._streams.say(f"worker {action.worker} started on {action.host}")

    def _store_host(self, here: bool, host: str) -> str:
        """Return the address by which a worker reaches the store, and by which its peers will reach the worker."""
        others = [host] if not here else [name for name in self._membership.hosts() if not is_local(name)]
        # Hosts that a script names later must reach this worker as well.
        scripted = self._options.elastic is not None and self._options.elastic.script is not None
        return self._job.store_towards(next(iter(others), socket.gethostname() if scripted else ""))

    def _publish(self, action: actions.Publish) -> None:
        self._streams.say(f"generation {action.generation}: {len(action.workers)} ranks")
        given, size = self._options.environ, len(action.workers)
        hosts = [self._running[worker].slot.host for worker in action.workers]
        timeline = self._timeline.begin(action.workers, hosts).as_dict()
        job, slots = self._as_fixed(hosts)
        for worker, slot in zip(action.workers, slots, strict=True):
            place = {"generation": action.generation, "rank": slot.rank, "size": size, "timeline": timeline}
            self._assign(worker, {**place, "environ": as_torchrun(job, slot, given)})

    def _as_fixed(self, hosts: Sequence[str]) -> tuple[Job, list[Slot]]:
        """Return what a job with fixed ranks on these hosts would be, and where each rank is."""
        names = tuple(dict.fromkeys(hosts))
        slots = [Slot(rank, host, hosts[:rank].count(host), hosts.count(host)) for rank, host in enumerate(hosts)]
        others = [name for name in names if not is_local(name)]
        master = meeting_place(names[0], is_local(names[0]), others, self._job.routes)
        return dataclasses.replace(self._job, size=len(hosts), master=master, hosts=names), slots

    def _assign(self, worker: int, value: Mapping[str, Any]) -> None:
        with native.translated():
            self._store.set(keys.assignment(self._job.name, worker, self._counts[worker]), orjson.dumps(value))

    def _tell_notice(self, result: HostUpdateResult) -> None:
        with native.translated():
            text = orjson.dumps({"number": self._notices, "result": int(result)})
            self._store.set(keys.notice(self._job.name), text)
        self._notices += 1

    # -- how the loop of the base class differs ----------------------------------------------------------------------

    def _handle(self, source: Any, kind: str) -> None:
        if kind != "hosts":
            super()._handle(source, kind)
            return
        while (answer := source.take()) is not None:
            if isinstance(answer, str):  # after a first success the known hosts stay until the script works again
                self._streams.say(answer)
            else:
                self._feed(functools.partial(self._membership.discovered, answer))

    def _timeout(self) -> float | None:
        return min(super()._timeout() or _LOOK_EVERY_S, _LOOK_EVERY_S)

    def _judge(self, rank: RankProcess, code: int) -> None:
        if code != 0:
            self._failure = self._failure_of(rank, code)
            if not self._interrupted_by and self._given_up is None and rank.rank not in self._killed:
                why = f": {self._failure.error}" if self._failure.error else ""
                self._streams.say(f"worker {rank.rank} on {rank.slot.host} {how_ended(code)}{why}")
        if not self._interrupted_by:
            self._feed(functools.partial(self._membership.ended, rank.rank, code))
            if self._membership.finishing and self._running:
                self._watch_the_rest()

    def _outcome(self) -> Outcome:
        if self._interrupted_by:
            return Outcome(128 + self._interrupted_by, self._failure, self._interrupted_by)
        failure = self._failure if self._given_up is not None or self._membership.failed_at_the_end else None
        if self._given_up is not None:
            failure = failure or Failure(0, "the launcher", self._given_up.exit_code, time.monotonic() - self._started)
            return Outcome(self._given_up.exit_code, failure, 0)
        return Outcome(failure.exit_code if failure else 0, failure, 0)

    @contextlib.contextmanager
    def _cleaning_up(self) -> Any:
        try:
            yield
        finally:
            for worker in self._started_workers:
                if worker.exit_code() is None:
                    worker.send_signal(signal.SIGKILL)
                    worker.kill()
            for worker in self._started_workers:
                worker.close()


def first_hosts(options: LaunchOptions, given: Sequence[Host] | None) -> tuple[list[Host], Discovery | None]:
    """Return the hosts at the start and where later ones come from.

    Raises:
        UsageError: The discovery script does not work, or hosts are given twice.
    """
    elastic: ElasticOptions | None = options.elastic
    assert elastic is not None
    if elastic.script is not None:
        if given is not None:
            raise UsageError("give -H or --hostfile or --host-discovery-script, only one of them")
        discovery = Discovery(elastic.script, elastic.default_slots)
        return discovery.first(), discovery
    if given is not None:
        return list(given), None
    most = elastic.max_np or options.num_proc or elastic.min_np or 1
    return [Host("localhost", most)], None
