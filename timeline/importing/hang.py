"""Why a job hangs, by the dumps of its ranks' flight recorders: who did not come to which collective.

The collectives of a group have equal numbers on all its ranks, and the messages of two ranks come in the same order on
both. A call that a rank made and that is not done waits for the ranks that have not come to that number, or message.
Where these wait in another call themselves, that one is the cause; the collective to be named is one whose missing rank
waits in none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from ringtune.timeline.analysis.bandwidth import kind_of
from ringtune.timeline.importing.flight_recorder import Call, Channel, Dump
from ringtune.timeline.importing.matching import SAME_BYTES
from ringtune.timeline.spans import Instant
from ringtune.timeline.units import ranks_text
from ringtune.timeline.vocabulary import STALL

_OWN = ("/torch/distributed/", "/torch/nn/")
"""Frames of torch itself; the user's stand behind them."""


@dataclass(frozen=True)
class Hang:
    """A call that is not done.

    Attributes:
        call: The call, as one of the waiting ranks made it.
        group: The group's name and description.
        missing: Ranks that did not come to it.
        without_dump: Ranks of the group of which there is no dump.
        waiting: Ranks that are in it, and since when (ns since 1970).
        differing: Where they are not alike: what the ranks called under this number.
        last: The last call of every missing (else differing) rank; None where its dump holds none.
        last_ns: Last moment of all dumps.
    """

    call: Call
    group: str
    missing: tuple[int, ...]
    without_dump: tuple[int, ...]
    waiting: dict[int, int]
    differing: dict[int, Call]
    last: dict[int, Call | None]
    last_ns: int

    def lines(self) -> list[str]:
        """Three lines: who is missing where, who waits, and what the missing rank called last."""
        return [self._what(), self._who_waits(), self._where()]

    def _what(self) -> str:
        what = f"{_named(self.call)} of group {self.group}"
        if self.differing:
            others = "; ".join(f"{_ranks(ranks)} {shown}" for shown, ranks in _by_call(self.differing).items())
            return f"HANG: the ranks call different things as number {self.call.number} of group {self.group}: {others}"
        if self.missing:
            return f"HANG: {_ranks(self.missing)} did not come to {what}"
        if self.without_dump:
            return f"HANG: {what} is not done, and there is no dump of {_ranks(self.without_dump)}"
        return f"HANG: all ranks came to {what}, which is not done: the network or a device is at fault"

    def _who_waits(self) -> str:
        since = datetime.fromtimestamp(min(self.waiting.values()) / 1e9, timezone.utc)
        more = f"; no dump of {_ranks(self.without_dump)}" if self.without_dump and self.missing else ""
        return f"  in it since {since:%Y-%m-%d %H:%M:%S} UTC: {_ranks(self.waiting)}{more}"

    def _where(self) -> str:
        rank, call = next(iter(self.last.items()), (min(self.waiting), self.call))
        if call is None:
            return f"  rank {rank} called no collective that its dump holds"
        stack = " < ".join(_users(call.frames)) if call.frames else (
            "no Python stack in this dump (JSON has none; pickled ones do: --allow-pickle)"
        )  # fmt: skip
        state = "done" if call.done else f"not done, {call.state}"
        return f"  last call of rank {rank}: {_named(call)} of group {call.channel[0]} ({state}): {stack}"

    def instants(self) -> list[Instant]:
        """The stall as every waiting rank would have reported it; moments since 1970."""
        return [
            Instant(STALL, "stall", rank, self.last_ns, {
                "tensor": f"{_named(self.call)} of group {self.group}",
                "missing": sorted({*self.missing, *self.without_dump}),
                "age_ns": max(0, self.last_ns - since),
            })
            for rank, since in self.waiting.items()
        ]  # fmt: skip


def find_hang(dumps: Sequence[Dump]) -> Hang | None:
    """Return the call that the others wait for; None where all calls are done."""
    of_rank = {dump.rank: dump for dump in dumps}
    hangs = list(_hangs(of_rank))
    blocked = {rank for hang in hangs for rank in hang.waiting}
    # First what is missing a rank that waits for nobody, then what was called first.
    return min(
        hangs,
        key=lambda hang: (
            not hang.differing,
            not (hang.missing or hang.without_dump),
            bool(hang.missing) and set(hang.missing) <= blocked,
            min(hang.waiting.values()),
        ),
        default=None,
    )


def _hangs(of_rank: dict[int, Dump]) -> Iterator[Hang]:
    """The first call of every group, or pair, that is not done."""
    channels = dict.fromkeys(call.channel for dump in of_rank.values() for call in dump.calls)
    last_ns = max((dump.last_ns for dump in of_rank.values()), default=0)
    for channel in channels:
        calls = _numbered(channel, of_rank)
        numbers = sorted({number for own in calls.values() for number, call in own.items() if not call.done})
        if not numbers:
            continue
        members = _members(channel, of_rank)
        # A recorder learns a moment late that a call is done: one that all came to and one has done hangs nobody.
        number = next((number for number in numbers if not _passed(number, members, calls)), numbers[0])
        here = {rank: own[number] for rank, own in calls.items() if number in own}
        waiting = {rank: call.created_ns for rank, call in here.items() if not call.done}
        first = here[min(waiting, key=lambda rank: waiting[rank])]
        missing = tuple(
            rank for rank in members if rank in of_rank and number > _came_to(of_rank[rank], channel, calls[rank])
        )
        sides = {} if channel[1] else _by_call(here)
        told = min(sides.values(), key=len) if len(sides) > 1 else missing
        yield Hang(
            call=first,
            group=_group_text(channel, of_rank),
            missing=missing,
            without_dump=tuple(rank for rank in members if rank not in of_rank),
            waiting=dict(sorted(waiting.items())),
            differing=here if len(sides) > 1 else {},
            last={rank: max(of_rank[rank].calls, key=lambda call: call.created_ns, default=None) for rank in told},
            last_ns=last_ns,
        )


def _numbered(channel: Channel, of_rank: dict[int, Dump]) -> dict[int, dict[int, Call]]:
    """Calls by numbers that are equal on all ranks: of two ranks' messages their place.

    Where a dump holds the last ones only, places count from the last one that is done, which both ranks have done.
    """
    calls = {rank: [call for call in dump.calls if call.channel == channel] for rank, dump in of_rank.items()}
    if channel[1] is None:
        return {rank: {call.number: call for call in own} for rank, own in calls.items()}
    whole = all(of_rank[rank].whole for rank in channel[1] if rank in of_rank)
    found = {}
    for rank, own in calls.items():
        done = 0 if whole else max((place for place, call in enumerate(own, 1) if call.done), default=0)
        found[rank] = dict(enumerate(own, 1 - done))
    return found


def _passed(number: int, members: Sequence[int], calls: dict[int, dict[int, Call]]) -> bool:
    """Whether all members of a group came to a call, and one of them has done it."""
    here = [calls.get(rank, {}).get(number) for rank in members]
    return all(here) and any(call.done for call in here if call)


def _came_to(dump: Dump, channel: Channel, calls: dict[int, Call]) -> int:
    """The last number that a rank called, also where the recorder had no room for it any more."""
    return max(max(calls, default=0), 0 if channel[1] else dump.enqueued.get(channel[0], 0))


def _by_call(calls: dict[int, Call]) -> dict[str, list[int]]:
    """Ranks by what they called; sizes count where those of all ranks must be equal."""
    found: dict[str, list[int]] = {}
    for rank, call in sorted(calls.items()):
        shown = f"{call.name} {call.sizes}".rstrip() if kind_of(call.name) in SAME_BYTES else call.name
        found.setdefault(shown, []).append(rank)
    return found


def _members(channel: Channel, of_rank: dict[int, Dump]) -> tuple[int, ...]:
    """Ranks of a group: as a dump says, else those that called something in it, of the default group all."""
    group, pair = channel
    if pair:
        return pair
    said = {rank for dump in of_rank.values() for rank in dump.groups.get(group, ())}
    seen = {rank for rank, dump in of_rank.items() for call in dump.calls if call.channel[0] == group}
    return tuple(sorted(said or (set(range(max(of_rank) + 1)) if group == "0" else seen)))


def _group_text(channel: Channel, of_rank: dict[int, Dump]) -> str:
    group = channel[0]
    said = next((dump.descriptions[group] for dump in of_rank.values() if group in dump.descriptions), "")
    return f"{group} ({said})" if said not in ("", "undefined") else group


def _named(call: Call) -> str:
    return f"{call.name} number {call.number}"


def _ranks(ranks: Sequence[int] | dict[int, int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {ranks_text(ranks)}"


def _users(frames: Sequence[str]) -> list[str]:
    """The stack without torch's own frames in front."""
    outside = [frame for frame in frames if not any(own in frame for own in _OWN)]
    return outside or list(frames)
