"""Numbers of collectives in the records of torch's process groups."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import pytest

from ringtune.timeline.vocabulary import FOREIGN_BATCHES, MESSAGES
from tests.conftest import needs

needs("torch")

from ringtune.torch.distributed.traced import MessageNumbers  # noqa: E402
from ringtune.torch.recorder import collectives  # noqa: E402
from ringtune.torch.recorder.collectives import _Group  # noqa: E402


def test_groups_beyond_512_are_not_mixed_up() -> None:
    groups = [_Group(SimpleNamespace(group_name=str(name), group_desc="")) for name in range(1, 2049)]
    numbers = [group.next_batch() for _ in range(5) for group in groups]
    assert len(set(numbers)) == len(numbers)
    assert all(number in FOREIGN_BATCHES for number in numbers)
    # Of two such groups each has half of the numbers that they share.
    first, second = groups[0].next_batch(), groups[512].next_batch()
    assert abs(first - second) == 1 << 19


def test_works_on_gpus_for_which_nobody_waits_are_let_go_of_once_they_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    done: set[int] = set()
    opened: dict[int, Any] = {}
    monkeypatch.setattr(collectives, "_open", opened)
    for number in range(3):
        work = SimpleNamespace(is_completed=lambda number=number: number in done)
        forget = functools.partial(opened.pop, number)
        opened[number] = SimpleNamespace(times=object(), work=work, forget=forget)
    collectives._forget_done()
    assert list(opened) == [0, 1, 2]
    done.update((0, 1, 2))
    collectives._forget_done()
    collectives._forget_done()
    assert not opened


def test_both_ends_of_a_message_count_it_alike_whatever_else_they_do() -> None:
    sender, receiver, other = MessageNumbers("0"), MessageNumbers("0"), MessageNumbers("1")
    ways = [(0, 1, 0), (0, 1, 7), (1, 0, 0), (0, 2, 0)]
    sent = {way: [sender.next(*way) for _ in range(5)] for way in ways}
    came = [(way, receiver.next(*way)) for _ in range(5) for way in reversed(ways)]
    assert {way: [number for one, number in came if one == way] for way in ways} == sent
    numbers = [number - (1 << 32) for of_way in sent.values() for number in of_way]
    numbers += [other.next(*way) - (1 << 32) for way in ways for _ in range(5)]
    assert len(set(numbers)) == 5 * 2 * len(ways)
    assert all(number in MESSAGES for number in numbers)
