"""Alerts of a running job: a rank that is late, operations that are stalled, steps slower than an earlier run's.

Rank 0 looks at the states that all ranks publish with their samples. An alert is raised once, when its condition holds
at two looks in a row, and again only after it has been over: as a line in rank 0's output, as a request to a webhook,
and in the metrics.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path

import orjson

from ringtune import layout, runfolder
from ringtune.meters.sample import Sample
from ringtune.meters.stalls import Waiting
from ringtune.meters.state import RankState

KINDS = ("late_rank", "slower", "stall")
LOOKS_S = 30.0
"""Conditions hold on average over the newest time of this length."""
LEAST_STEPS = 10
"""Steps that every rank must have ended within it: fewer say little of a rank."""
WEBHOOK_TIMEOUT_S = 5.0
REPORT_S = 10.0
"""Time within which a stall is reported: until then nobody knows for whom it waits."""
_MOST_NAMED = 3
"""Operations that are named of those that wait for the same ranks."""
_MOST_RANKS = 8
_MOST_SENT = 24
"""Operations of a stall that the webhook gets."""
_TAIL_BYTES = 96 * 2**10


@dataclass(frozen=True)
class Limits:
    """From when on something is an alert; 0: never.

    Attributes:
        late: A rank computes longer than the median of the others by this share.
        slower: Steps take longer than those of the earlier run by this share.
    """

    late: float = 0.0
    slower: float = 0.0


@dataclass(frozen=True)
class Alert:
    """What is wrong.

    Attributes:
        kind: One of `KINDS`.
        message: A sentence.
        rank: At fault; -1: none alone.
        waiting: Of a stall, the operations.
    """

    kind: str
    message: str
    rank: int = -1
    waiting: Sequence[Waiting] = ()

    @property
    def awaited(self) -> list[tuple[int, str, int]]:
        """Each rank that a stall waits for, its oldest operation, and since when, in Unix ns."""
        found: dict[int, tuple[int, str, int]] = {}
        for one in sorted(self.waiting, key=lambda one: one.since_unix_ns):
            for rank in one.missing:
                found.setdefault(rank, (rank, one.operation, one.since_unix_ns))
        return [found[rank] for rank in sorted(found)]


@dataclass(frozen=True)
class _Look:
    """Sums of every rank at one moment: steps, duration, blocked time, and stalls."""

    at_s: float
    sums: Mapping[int, tuple[int, int, int, int]]


@dataclass
class Conditions:
    """What holds at a look, by the sums of about `LOOKS_S` before it.

    Args:
        limits: From when on something is an alert.
        baseline: Step time in ns of an earlier run of the same name, and that run; None: there is none.
    """

    limits: Limits
    baseline: tuple[float, str] | None = None
    _looks: deque[_Look] = field(default_factory=deque)
    _last: Mapping[int, Sequence[int]] = field(default_factory=dict)
    _stalled_in: dict[int, int] = field(default_factory=dict)
    _stalled_since_s: float = 0.0
    _reported_ns: Mapping[int, int] = field(default_factory=dict)
    _waiting: dict[int, Sequence[Waiting]] = field(default_factory=dict)

    def look(self, at_s: float, states: Sequence[RankState]) -> list[Alert]:
        """Return what holds at a moment (s, any clock that does not jump)."""
        now = {state.rank: _sums(state) for state in states}
        stalled, self._last = self._stalled(at_s, states, now), now
        # The first step counts from init: it holds the start of the job, not a step's work.
        started = bool(now) and min(sums[0] for sums in now.values()) >= 1
        if not started or (self._looks and self._looks[-1].sums.keys() != now.keys()):
            self._looks.clear()
        if not started:
            return stalled
        self._looks.append(_Look(at_s, now))
        while len(self._looks) > 2 and self._looks[1].at_s <= at_s - LOOKS_S:
            self._looks.popleft()
        before = self._looks[0].sums
        spent = {rank: [new - old for new, old in zip(now[rank], before[rank], strict=True)] for rank in now}
        return [*stalled, *self._late(spent), *self._slower(spent)]

    def _stalled(self, at_s: float, states: Sequence[RankState], now: Mapping[int, Sequence[int]]) -> list[Alert]:
        """From the moment when a rank sees or reports a stall until its next step has ended."""
        before, known, held = self._last, self._reported_ns, bool(self._stalled_in)
        self._reported_ns = {state.rank: state.stall.seen_ns for state in states}
        for state in states:
            reported = state.stall.seen_ns != known.get(state.rank, state.stall.seen_ns)
            if reported:
                self._waiting[state.rank] = state.stall.waiting
            if reported or state.stalls > before.get(state.rank, now[state.rank])[3]:
                self._stalled_in[state.rank] = now[state.rank][0]
        self._stalled_in = {
            rank: step for rank, step in self._stalled_in.items() if rank in now and now[rank][0] == step
        }
        if not self._stalled_in:
            self._waiting.clear()
            return []
        if not held:
            self._stalled_since_s = at_s
        waiting = [one for rank in sorted(self._waiting) for one in self._waiting[rank]]
        if not waiting and at_s - self._stalled_since_s < REPORT_S:
            return []
        missing = {rank for one in waiting for rank in one.missing}
        words = _waiting_words(waiting) or (
            f"operations of {_ranks(sorted(self._stalled_in))} wait for ranks that have not submitted them"
        )
        return [Alert("stall", words, missing.pop() if len(missing) == 1 else -1, waiting)]

    def _late(self, spent: Mapping[int, Sequence[int]]) -> list[Alert]:
        if not self.limits.late or len(spent) < 2 or min(sums[0] for sums in spent.values()) < LEAST_STEPS:
            return []
        work = {rank: (wall - wait) / steps for rank, (steps, wall, wait, _) in spent.items()}
        rank = max(work, key=lambda one: work[one])
        others = statistics.median(value for one, value in work.items() if one != rank)
        longer = work[rank] / others - 1 if others > 0 else 0.0
        if longer < self.limits.late:
            return []
        words = f"rank {rank} is late: it computes {work[rank] / 1e6:.1f} ms a step, {100 * longer:.0f} % longer than "
        return [Alert("late_rank", f"{words}the others", rank)]

    def _slower(self, spent: Mapping[int, Sequence[int]]) -> list[Alert]:
        if not self.limits.slower or self.baseline is None or min(sums[0] for sums in spent.values()) < LEAST_STEPS:
            return []
        step_ns = max(wall / steps for steps, wall, *_ in spent.values())
        known_ns, run = self.baseline
        longer = step_ns / known_ns - 1
        if longer < self.limits.slower:
            return []
        words = f"a step takes {step_ns / 1e6:.1f} ms, {100 * longer:.0f} % longer than in the earlier run {run}"
        return [Alert("slower", words)]


def _sums(state: RankState) -> tuple[int, int, int, int]:
    return sum(state.step_counts), state.step_ns, state.counters["wait_ns"], state.stalls


def _ranks(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - _MOST_RANKS} more" if len(ranks) > _MOST_RANKS else ""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks[:_MOST_RANKS]))}{more}"


def _waiting_words(waiting: Sequence[Waiting]) -> str:
    """Return which operations wait for which ranks, and since when; those that wait for the same ranks together."""
    by_missing: dict[tuple[int, ...], list[Waiting]] = {}
    for one in waiting:
        by_missing.setdefault(tuple(one.missing), []).append(one)
    return "; ".join(_group_words(missing, found) for missing, found in by_missing.items())


def _group_words(missing: tuple[int, ...], waiting: Sequence[Waiting]) -> str:
    named = ", ".join(one.operation for one in waiting[:_MOST_NAMED])
    more = f" and {len(waiting) - _MOST_NAMED} more" if len(waiting) > _MOST_NAMED else ""
    verb = "wait" if len(waiting) > 1 else "waits"
    whom = f"{_ranks(missing)}, which {'has' if len(missing) == 1 else 'have'} not submitted" if missing else ""
    since_ns = min(one.since_unix_ns for one in waiting)
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(since_ns / 1e9))
    it = "them" if len(waiting) > 1 else "it"
    return f"{named}{more} {verb} since {since} for " + (
        f"{whom} {it}" if whom else "bytes of ranks that have all come"
    )


class Alerts:
    """A sink of samples on rank 0 that looks at all ranks, and says what is wrong. On the sampler's thread.

    Args:
        conditions: What holds at a look.
        states: Returns the states of all ranks.
        webhook: URL that receives each alert as JSON by POST; empty for none.
        run: Name of the run, for the webhook.
        report: Receives a sentence when the webhook cannot be reached, once.

    Attributes:
        raised: How often each kind of alert was raised.
        active: Whether it holds now, 1 or 0.
        awaited: `Alert.awaited` of a stall, while that is an alert.
    """

    def __init__(
        self,
        conditions: Conditions,
        states: Callable[[], Sequence[RankState]],
        webhook: str,
        run: str,
        report: Callable[[str], None],
    ) -> None:
        self.raised = dict.fromkeys(KINDS, 0)
        self.active = dict.fromkeys(KINDS, 0)
        self.awaited: list[tuple[int, str, int]] = []
        self._conditions, self._states = conditions, states
        self._webhook, self._run, self._report = webhook, run, report
        self._held: set[str] = set()
        self._posting: list[threading.Thread] = []
        self._reachable = True

    @property
    def counts(self) -> dict[str, tuple[int, int]]:
        """By kind, how often it was raised and whether it holds now."""
        return {kind: (self.raised[kind], self.active[kind]) for kind in KINDS}

    def append(self, _sample: Sample) -> None:
        """Look at the ranks, and raise what holds for the second time."""
        found = {alert.kind: alert for alert in self._conditions.look(time.monotonic(), self._states())}
        for kind in KINDS:
            if kind not in found:
                self.active[kind] = 0
            elif kind in self._held and not self.active[kind]:
                self.active[kind] = 1
                self.raised[kind] += 1
                self._raise(found[kind])
        self._held = set(found)
        self.awaited = found["stall"].awaited if self.active["stall"] else []

    def close(self) -> None:
        """Wait for what is on its way to the webhook, which has a timeout."""
        for thread in self._posting:
            thread.join(WEBHOOK_TIMEOUT_S)

    def _raise(self, alert: Alert) -> None:
        print(f"ringtune alert: {alert.message}", file=sys.stderr, flush=True)
        if self._webhook and self._reachable:
            document = {"run": self._run, "kind": alert.kind, "rank": alert.rank, "message": alert.message}
            body = orjson.dumps({**document, "waiting": list(alert.waiting[:_MOST_SENT]), "at_unix_ns": time.time_ns()})
            self._posting = [thread for thread in self._posting if thread.is_alive()]
            self._posting.append(threading.Thread(target=self._post, args=(body,), name="ringtune-alert", daemon=True))
            self._posting[-1].start()  # a slow receiver must not hold up the samples

    def _post(self, body: bytes) -> None:
        headers = {"Content-Type": "application/json", "User-Agent": "ringtune"}
        try:
            request = urllib.request.Request(self._webhook, body, headers, method="POST")
            with urllib.request.urlopen(request, timeout=WEBHOOK_TIMEOUT_S):
                pass
        except (OSError, ValueError, HTTPException) as error:
            if self._reachable:
                self._reachable = False
                self._report(f"alerts no longer go to RINGTUNE_ALERT_WEBHOOK: {error or type(error).__name__}")


def earlier_run(run: Path) -> tuple[float, str] | None:
    """Return the median step time in ns of the newest finished run of the same name beside a run, and its folder.

    Args:
        run: The run folder; its ``run.json`` names it.

    Returns:
        None where there is no such run, or none with ten steps.
    """
    own = runfolder.read(run) or {}
    found: tuple[float, str] | None = None
    newest = 0
    for path in run.parent.glob(f"*/{layout.RUN_FILE}"):
        other = runfolder.read(path.parent) if path.parent != run else None
        if other is None or other.get("name") != own.get("name") or other.get("status") != "finished":
            continue
        created = other.get("created_unix_ns")
        if not isinstance(created, int) or created <= newest or other.get("size") != own.get("size"):
            continue
        walls = _newest_walls(layout.step_log(path.parent, 0))
        if len(walls) >= LEAST_STEPS:
            newest, found = created, (statistics.median(walls), path.parent.name)
    return found


def _newest_walls(log: Path) -> list[int]:
    """Return the durations of the newest steps of a log but the first one; none of a log that cannot be read."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            rows = [orjson.loads(line) for line in stream.read().splitlines()[1:]]
        return [row["end_ns"] - row["begin_ns"] for row in rows]
    except (OSError, ValueError, KeyError, TypeError):
        return []
