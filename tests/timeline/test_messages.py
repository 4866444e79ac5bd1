"""Sends and receives: which belong together, who waited for whom, and what files hold of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringtune.timeline.analysis.batches import batch_table
from ringtune.timeline.analysis.late_waits import late_waits
from ringtune.timeline.analysis.messages import messages
from ringtune.timeline.analysis.peer_wait import peer_waits
from ringtune.timeline.analysis.phases import exposure
from ringtune.timeline.merging.merged_file import write_merged
from ringtune.timeline.reading.columns import SpanBuilder
from ringtune.timeline.reading.reader import read
from ringtune.timeline.spans import PartInfo, SpanTable, Trace
from ringtune.timeline.units import numbered_text
from ringtune.timeline.vocabulary import MESSAGES
from tests.timeline.helpers import ENGINES, Engine, events_of, rows, writing_by

NUMBERS = (MESSAGES.start, MESSAGES.start + 1, -77, -1)


class Sent(NamedTuple):
    """A message; which of its ends were recorded, when each was called, and how long until both had it."""

    number: int
    group: int
    ranks: tuple[int, int]
    called_us: tuple[int, int]
    recorded: tuple[bool, bool]
    waits: tuple[bool, bool]
    lasts_us: int


SENT = st.builds(
    Sent,
    st.sampled_from(NUMBERS),
    st.sampled_from([0, 5]),
    st.permutations([0, 1, 2]).map(lambda ranks: (ranks[0], ranks[1])),
    st.tuples(st.integers(0, 500), st.integers(0, 500)),
    st.tuples(st.booleans(), st.booleans()),
    st.tuples(st.booleans(), st.booleans()),
    st.integers(1, 100),
)


def table(sent: list[Sent]) -> SpanTable:
    """The spans of messages, each a millisecond after the one before, and of a collective."""
    events = []
    for at, one in enumerate(sent):
        end = 1000 * at + max(one.called_us) + one.lasts_us
        for side, name in enumerate(("RING_SEND", "RING_RECV")):
            if not one.recorded[side]:
                continue
            begin = 1000 * at + one.called_us[side]
            args = {"batch": one.number, "bytes": 4 * at, **({"process_set": one.group} if one.group else {})}
            about = {"pid": one.ranks[side], "ts": begin, "dur": end - begin, "args": args}
            events.append({"name": name, "cat": "communicate", **about})
            if one.waits[side]:
                events.append({"name": "WAIT", "cat": "wait", **about})
    events += [
        {"name": "RING_ALLREDUCE", "cat": "communicate", "pid": rank, "ts": 5, "dur": 5, "args": {"batch": 3}}
        for rank in range(3)
    ]
    spans = SpanBuilder()
    spans.add(events)
    return spans.table()


def alone(sent: list[Sent]) -> list[Sent]:
    """Those whose number nothing else has: with what is lost, only these are told apart."""
    counts = Counter((one.number, one.group) for one in sent)
    return [one for one in sent if counts[one.number, one.group] == 1]


@given(st.lists(SENT, max_size=12), st.randoms(use_true_random=False))
def test_the_ends_of_a_message_are_found_and_who_waited(sent: list[Sent], mixed: Random) -> None:
    whole = [one._replace(recorded=(True, True), waits=(True, True)) for one in sent]
    same = {(one.number, one.group): one.ranks for one in whole}
    whole = [one for one in whole if same[one.number, one.group] == one.ranks]  # a number is of one way
    spans = table(whole)
    order = list(range(len(spans)))
    mixed.shuffle(order)
    spans = spans.take(np.array(order))
    found = messages(spans)
    pairs = zip(spans.rank[found.send].tolist(), spans.rank[found.receive].tolist(), strict=True)
    sizes = list(zip(spans.bytes[found.send].tolist(), spans.bytes[found.receive].tolist(), strict=True))
    assert sorted(zip(pairs, sizes, strict=True)) == sorted(
        (one.ranks, (4 * at, 4 * at)) for at, one in enumerate(whole)
    )
    waited: Counter[tuple[int, int]] = Counter()
    for one in whole:
        for side in (0, 1):
            early = one.called_us[1 - side] - one.called_us[side]
            if early > 0:
                waited[one.ranks[side], one.ranks[1 - side]] += 1000 * early
    assert {(one.rank, one.peer): one.total_ns for one in peer_waits(spans)} == dict(waited)
    assert batch_table(Trace(spans, (), (), "ringtune")).ids.tolist() == [3], "a message is no batch of a group"


@given(st.lists(SENT, max_size=12))
def test_blocked_for_a_late_end_is_not_exposed(sent: list[Sent]) -> None:
    single = [one._replace(recorded=(True, True), waits=(True, True)) for one in alone(sent)]
    spans = table(single)
    parts = tuple(PartInfo(rank, size=3, host="a", error_ns=0) for rank in range(3))
    late = late_waits(Trace(spans, (), parts, "merged"))
    lasts = Counter[int]()
    for one in single:
        for rank in one.ranks:
            lasts[rank] += 1000 * one.lasts_us
    for rank in range(3):
        own = [(one, side) for one in single for side in (0, 1) if one.ranks[side] == rank]
        early = sum(max(0, one.called_us[1 - side] - one.called_us[side]) for one, side in own)
        found = exposure(spans.of_rank(rank), None, late.of_rank(rank))
        assert (found.late_ns, found.exposed_ns) == (1000 * early, lasts[rank])
        moving = late.moving.of_rank(rank)
        assert int(moving.duration_ns[moving.batch < 0].sum()) == lasts[rank]


@given(st.lists(SENT, max_size=12))
def test_what_one_end_lacks_is_matched_with_nothing_else(sent: list[Sent]) -> None:
    single = alone(sent)
    spans = table(single)
    waited = [one.called_us[1 - side] - one.called_us[side] for one in single if all(one.recorded)
              for side in (0, 1) if one.waits[side]]  # fmt: skip
    assert sum(one.total_ns for one in peer_waits(spans)) == 1000 * sum(max(0, early) for early in waited)
    whole = [4 * at for at, one in enumerate(single) if all(one.recorded)]
    found = messages(spans)
    assert sorted(spans.bytes[found.send].tolist()) == sorted(spans.bytes[found.receive].tolist()) == whole


@pytest.mark.parametrize("engine", ENGINES)
def test_an_arrow_leads_from_a_send_to_its_receive(engine: Engine, tmp_path: Path) -> None:
    late_sender = Sent(-5, 0, (1, 2), (400, 100), (True, True), (True, True), 10)
    late_receiver = Sent(-1, 5, (2, 0), (100, 300), (True, True), (True, True), 10)
    half = Sent(-9, 0, (0, 1), (1, 1), (True, False), (True, True), 10)
    spans = table([late_sender, late_receiver, half])
    with writing_by(engine):
        write_merged(tmp_path / "merged.json", Trace(spans, (), tuple(PartInfo(rank) for rank in range(3)), "ringtune"))
    assert rows(read(tmp_path / "merged.json").spans) == rows(spans)
    arrows = [one for one in events_of(tmp_path / "merged.json") if one.get("cat") == "message"]
    assert [(one["ph"], one["id"], one["pid"], one["ts"]) for one in arrows] == [
        ("s", 1, 1, 400), ("f", 1, 2, 400), ("s", 2, 2, 1100), ("f", 2, 0, 1300)
    ]  # fmt: skip


def test_messages_are_called_so() -> None:
    assert numbered_text(MESSAGES.start + 7) == "message 7"
    assert numbered_text(7) == "batch 7"
