"""Numbers of collectives in the records of torch's process groups."""

from __future__ import annotations

from types import SimpleNamespace

from ringtune.timeline.vocabulary import FOREIGN_BATCHES
from tests.conftest import needs

needs("torch")

from ringtune.torch.recorder.collectives import _Group  # noqa: E402


def test_groups_beyond_512_are_not_mixed_up() -> None:
    groups = [_Group(SimpleNamespace(group_name=str(name), group_desc="")) for name in range(1, 2049)]
    numbers = [group.next_batch() for _ in range(5) for group in groups]
    assert len(set(numbers)) == len(numbers)
    assert all(number in FOREIGN_BATCHES for number in numbers)
    # Of two such groups each has half of the numbers that they share.
    first, second = groups[0].next_batch(), groups[512].next_batch()
    assert abs(first - second) == 1 << 19
