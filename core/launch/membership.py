"""Who belongs to an elastic job: a pure machine. Events in (hosts, ready, ended, tick), actions out.

A *worker* is one process with a number that it keeps; a *generation* is one set of workers with ranks. A new generation
is formed when a worker failed, when workers ask for one (after a failure of the runtime, or because they got notice of
new hosts), and at the start. It begins when every live worker is ready.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ringtune.elastic.results import HostUpdateResult
from ringtune.launch.actions import Action, Dismiss, GiveUp, Kill, Notify, Publish, Say, Start
from ringtune.launch.hosts import Host

_KILLED = 128 + 9
_SETTLED_S = 30.0
"""A generation that lasted so long clears its hosts' strikes."""
_LEAVING_S = 5.0
"""For so long workers that are ready wait for those of hosts which have been taken from the job."""
_REMIND_S = 5.0
"""A notice to workers that should leave is repeated after so long: they may have got their ranks just before it."""


@dataclass(frozen=True)
class Limits:
    """Limits of an elastic job.

    Attributes:
        start_np: Least ranks of the first generation.
        min_np: Least ranks of later ones.
        max_np: Most ranks; None = as many as there are slots.
        reset_limit: Most generations after the first; None = any number.
        timeout_s: How long to wait for enough ranks.
        cooldown_s: Shortest and longest time that a host is left alone after failures; None = for ever.
        fixed_hosts: Whether the hosts can never change (no discovery script).
    """

    start_np: int
    min_np: int
    max_np: int | None = None
    reset_limit: int | None = None
    timeout_s: float = 600.0
    cooldown_s: tuple[float, float] | None = None
    fixed_hosts: bool = False


@dataclass
class _Worker:
    host: str
    ready: bool = False
    placed: bool = False
    dismissed: bool = False


@dataclass
class _HostState:
    slots: int
    strikes: int = 0
    blocked_until: float = 0.0
    blocks: int = 0
    here: bool = True


@dataclass
class Membership:
    """See the module. Times are seconds of one monotonic clock; ``take_actions`` after every event.

    Attributes:
        limits: Limits of the job.
        generation: Number of the latest generation, 0 before the first.
        over: No worker is started or gets a rank any more.
        finishing: A worker has finished, and there will be no new generation.
        failed_at_the_end: A worker failed after another had finished.
    """

    limits: Limits
    generation: int = 0
    over: bool = False
    finishing: bool = False
    failed_at_the_end: bool = False
    _workers: dict[int, _Worker] = field(default_factory=dict)
    _hosts: dict[str, _HostState] = field(default_factory=dict)  # oldest first
    _next_worker: int = 0
    _forming: bool = True
    _few_said: bool = False
    _deadline: float | None = None
    _formed_at: float = 0.0
    _first_failure: int = 0
    _reminded_at: float = 0.0
    _leaving_awaited_at: float | None = None
    _actions: list[Action] = field(default_factory=list)

    def take_actions(self) -> list[Action]:
        """Return what is to be done now, in order."""
        actions, self._actions = self._actions, []
        return actions

    def hosts(self) -> list[str]:
        """Return the names of all hosts known, oldest first."""
        return list(self._hosts)

    def slots_of(self, host: str) -> int:
        """Return how many workers a host takes."""
        return self._hosts[host].slots

    def awaited(self) -> set[int]:
        """Return the workers for which others wait that are ready for a new generation."""
        live = self._live() if self._forming and not self.over else {}
        ready = {number for number, worker in live.items() if worker.ready}
        return set(live) - ready if ready else set()

    # -- events ------------------------------------------------------------------------------------------------------

    def discovered(self, hosts: Sequence[Host], now: float) -> None:
        """The hosts that there are now."""
        present = {host.name: host.slots for host in hosts}
        result = HostUpdateResult.no_update
        for name, state in self._hosts.items():
            if state.here and name not in present and any(w.host == name for w in self._live().values()):
                result |= HostUpdateResult.removed
            state.here = name in present
        for name, slots in present.items():
            known = self._hosts.setdefault(name, _HostState(slots))
            known.slots = slots
        if self._surplus():
            result |= HostUpdateResult.removed
        self._reminded_at = now
        if not self._forming and not self.finishing:
            if self._free_slots(now) and self._wanted() > 0:
                result |= HostUpdateResult.added
            if result:
                self._actions.append(Notify(result))
        self._settle(now)

    def ready(self, worker: int, now: float) -> None:
        """A worker waits for its rank."""
        self._workers[worker].ready = True
        if not self.finishing:
            self._begin_forming(now)
        self._settle(now)

    def ended(self, worker: int, exit_code: int, now: float) -> None:
        """A worker's process has ended."""
        gone = self._workers.pop(worker)
        if gone.dismissed:
            pass
        elif exit_code == 0:
            self.finishing = True
        else:
            self._failed(gone, exit_code, now)
        self._settle(now)

    def lost(self, worker: int, now: float) -> None:
        """A worker's host cannot be reached any more; its process may live on there for a while, and counts no more."""
        if (gone := self._workers[worker]).dismissed:
            return
        gone.dismissed = True
        self._actions.append(Kill(worker, f"on {gone.host} cannot be reached"))
        self._failed(gone, _KILLED, now, unreachable=True)
        self._settle(now)

    def tick(self, now: float) -> None:
        """Time has passed."""
        if not self._forming and not self.finishing and not self.over:
            self._notice_time(now)
        self._settle(now)

    # -- rules -------------------------------------------------------------------------------------------------------

    def _failed(self, gone: _Worker, exit_code: int, now: float, *, unreachable: bool = False) -> None:
        self._first_failure = self._first_failure or exit_code
        host = self._hosts[gone.host]
        # A worker that never got a rank has failed by itself; no generation has to change.
        if gone.placed and now - self._formed_at > _SETTLED_S:
            host.strikes = 0
        host.strikes += 1
        if unreachable:  # new workers could not be reached either; the host is blocked once for all that it had
            host.strikes = 0 if host.blocked_until > now else host.slots
        if host.strikes >= host.slots and not self.finishing:
            host.strikes = 0
            host.blocks += 1
            host.blocked_until = float("inf")
            if self.limits.cooldown_s is not None:
                low, high = self.limits.cooldown_s
                host.blocked_until = now + min(high, low * 2.0 ** (host.blocks - 1))
            self._actions.append(Say(f"no new ranks on {gone.host}: too many of them failed there"))
        if self.finishing:
            self.failed_at_the_end = True
        else:
            self._begin_forming(now)

    def _notice_time(self, now: float) -> None:
        """Tell the workers of hosts that have cooled down, and again of places that they should give up."""
        cooled = [state for state in self._hosts.values() if 0 < state.blocked_until <= now]
        for state in cooled:
            state.blocked_until = 0.0
        if cooled and self._free_slots(now) and self._wanted() > 0:
            self._actions.append(Notify(HostUpdateResult.added))
        if now >= self._reminded_at + _REMIND_S and (self._leaving() or self._surplus()):
            self._reminded_at = now
            self._actions.append(Notify(HostUpdateResult.removed))

    def _begin_forming(self, now: float) -> None:
        if not self._forming:
            self._forming = True
            self._deadline = now + self.limits.timeout_s

    def _settle(self, now: float) -> None:
        if self.over:
            return
        if self.finishing:
            for number, worker in self._live().items():
                if worker.ready:
                    self._dismiss(number, "the job is ending: another rank has finished")
            self.over = not self._workers
            return
        if not self._forming:
            return
        if self._deadline is None:
            self._deadline = now + self.limits.timeout_s
        self._start_missing(now)
        self._form(now)

    def _start_missing(self, now: float) -> None:
        for host in self._free_slots(now)[: self._wanted()]:
            self._workers[self._next_worker] = _Worker(host)
            self._actions.append(Start(self._next_worker, host))
            self._next_worker += 1

    def _form(self, now: float) -> None:
        leaving, live = self._leaving(), self._live()
        keeper = None
        if not any(worker.placed and number not in leaving for number, worker in live.items()):
            # All hosts are replaced at once: those who hold the state wait for new workers, and one of them stays for
            # a generation and hands it over.
            keeper = next((number for number in leaving if live[number].placed), None)
            if any(not worker.ready for worker in live.values()) or len(leaving) == len(live):
                leaving = []
        for number in leaving:
            if number != keeper and live[number].ready:
                self._dismiss(number, f"host {live[number].host} has been taken from the job")
        for number in self._surplus():
            if self._workers[number].ready:
                self._dismiss(number, f"host {self._workers[number].host} has fewer slots now")
        if keeper is None:
            self._leave_behind(leaving, now)
        live = self._live()
        missing = [number for number, worker in live.items() if not worker.ready]
        need = self.limits.min_np if self.generation else self.limits.start_np
        assert self._deadline is not None
        if self.generation and not any(worker.placed for worker in live.values()):
            self._give_up("no rank is left that holds the state of training")
        elif not missing and len(live) >= need and (keeper is None or len(live) > len(self._leaving())):
            self._publish(now)
        elif not missing and self.limits.fixed_hosts and self._hopeless(now):
            self._give_up(f"{len(live)} ranks are left, at least {need} are needed, and no host takes new ones")
        elif now >= self._deadline and missing:
            for number in missing:
                self._actions.append(Kill(number, "does not come"))
            self._deadline = now + self.limits.timeout_s
        elif now >= self._deadline:
            self._give_up(f"only {len(live)} ranks after {self.limits.timeout_s:g} s, at least {need} are needed")
        elif not missing and len(live) < need and not self._few_said:
            self._few_said = True
            left_s = self._deadline - now
            few = f"{len(live)} ranks are there and at least {need} are needed"
            self._actions.append(Say(f"{few}: waiting for hosts, for {left_s:.0f} s at most"))

    def _leave_behind(self, leaving: Sequence[int], now: float) -> None:
        """End workers that leave the job and do not come, once all others have waited for them for a moment."""
        live = self._live()
        late = {number for number in leaving if number in live and not live[number].ready}
        waiting = late and late != set(live) and all(one.ready for number, one in live.items() if number not in late)
        self._leaving_awaited_at = (self._leaving_awaited_at or now) if waiting else None
        if self._leaving_awaited_at is not None and now >= self._leaving_awaited_at + _LEAVING_S:
            for number in late:
                live[number].dismissed = True
                self._actions.append(Kill(number, f"does not leave {live[number].host}, which was taken from the job"))

    def _hopeless(self, now: float) -> bool:
        """Whether no slot is free, nor will be after a host has cooled down."""
        cooling = any(now < state.blocked_until < float("inf") for state in self._hosts.values())
        return not cooling and not self._free_slots(now)

    def _publish(self, now: float) -> None:
        limit = self.limits.reset_limit
        if limit is not None and self.generation > limit:
            self._give_up(f"the ranks have changed {limit} times, which is the limit")
            return
        self.generation += 1
        self._forming = self._few_said = False
        self._deadline = None
        self._formed_at = now
        live = self._live()
        # Whoever holds the state comes first, so that rank 0 has it; ranks of a host stay together.
        age = {name: index for index, name in enumerate(self._hosts)}
        veterans = {worker.host for worker in live.values() if worker.placed}
        order = sorted(
            live,
            key=lambda number: (
                live[number].host not in veterans,
                age[live[number].host],
                not live[number].placed,
                number,
            ),
        )
        for number in order:
            live[number].ready = False
            live[number].placed = True
        self._actions.append(Publish(self.generation, tuple(order)))

    def _dismiss(self, number: int, reason: str) -> None:
        self._workers[number].dismissed = True
        self._actions.append(Dismiss(number, reason))

    def _give_up(self, reason: str) -> None:
        self.over = True
        self._actions.append(GiveUp(reason, self._first_failure or 1))

    # -- tables ------------------------------------------------------------------------------------------------------

    def _live(self) -> dict[int, _Worker]:
        return {number: worker for number, worker in self._workers.items() if not worker.dismissed}

    def _leaving(self) -> list[int]:
        """Workers on hosts that are taken from the job."""
        return [number for number, worker in self._live().items() if not self._hosts[worker.host].here]

    def _surplus(self) -> list[int]:
        """Workers for which their hosts have no slots any more: the newest, those without the state first."""
        found: list[int] = []
        for name, state in self._hosts.items():
            crew = [number for number, worker in self._live().items() if worker.host == name and state.here]
            found += sorted(crew, key=lambda number: (not self._workers[number].placed, number))[state.slots :]
        return found

    def _wanted(self) -> int:
        """How many more workers the job may have, beside those that will leave it."""
        most = self.limits.max_np if self.limits.max_np is not None else 1 << 30
        return max(0, most - len(self._live()) + len(self._leaving()))

    def _free_slots(self, now: float) -> list[str]:
        """Hosts with room, once for each free slot, oldest host first."""
        free: list[str] = []
        for name, state in self._hosts.items():
            if state.here and state.blocked_until <= now:
                used = sum(worker.host == name for worker in self._workers.values())
                free += [name] * max(0, state.slots - used)
        return free
