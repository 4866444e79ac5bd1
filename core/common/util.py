"""Small helpers that scripts import from ``horovod.common.util``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")


def split_list(items: Sequence[T], parts: int) -> list[list[T]]:
    """Split a sequence into so many runs whose lengths differ by at most one; longer ones come first."""
    size, more = divmod(len(items), parts)
    ends = [part * size + min(part, more) for part in range(parts + 1)]
    return [list(items[begin:end]) for begin, end in pairwise(ends)]


def num_rank_is_power_2(num_rank: int) -> bool:
    """Return whether the number is a power of two."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0
