"""How process groups and what they do stand in the timeline, whoever carries their tensors."""

from __future__ import annotations

import itertools
import zlib
from collections import defaultdict
from typing import NamedTuple

import torch

from ringtune import session
from ringtune.torch.handles import DTYPES

# Wire values of `native/trace/span.h` and of its names of operations.
NEGOTIATE, COMMUNICATE, WAIT, DEVICE_WAIT = 0, 3, 5, 19
KINDS = {"ALLREDUCE": 0, "ALLGATHER": 1, "BROADCAST": 2, "BARRIER": 3, "ALLTOALL": 4, "REDUCESCATTER": 5, "REDUCE": 9,
         "GATHER": 10, "SCATTER": 11, "SEND": 12, "RECV": 13}  # fmt: skip
NO_DTYPE = 255


class GroupLabel(NamedTuple):
    """How a group is called in the timeline.

    Attributes:
        number: In the place of a process set, the same on all members; 0: the world.
        text: Before the names of its collectives.
    """

    number: int
    text: str


WORLD_LABEL = GroupLabel(0, "world")


def label_of(name: str, described: str) -> GroupLabel:
    """Return how a group is called.

    Args:
        name: Under which torch has registered it.
        described: What the script or torch says of it (``group_desc``): of a device mesh the name of its dimension.
    """
    if described == "default_pg" or name == "0":
        return WORLD_LABEL
    # torch counts its groups, on all ranks alike; those that only members know have other names.
    number = 1 + (int(name) - 1 if name.isdecimal() else zlib.crc32(name.encode())) % 0xFFFF
    text = described if described not in ("", "undefined") else name
    return GroupLabel(number, f"group {text}" if text.isdigit() else text)


class MessageNumbers:
    """Numbers the messages of a group alike on sender and receiver: those of one way and tag come in their order.

    Args:
        group: The group's name, the same on all members.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        self._counts: defaultdict[tuple[int, int, int], itertools.count[int]] = defaultdict(itertools.count)

    def next(self, source: int, destination: int, tag: int) -> int:
        """Return the next message's number, which is one of `ringtune.timeline.vocabulary.MESSAGES` as 32 bits.

        Each way and tag begins somewhere among all numbers, so that two of a job hardly ever meet.

        Args:
            source: The sender, by its number in the group.
            destination: The receiver, likewise.
            tag: Tag of the message.
        """
        way = source, destination, tag
        first = zlib.crc32(f"{self._group} {way}".encode())
        return 0xC000_0000 | first + next(self._counts[way]) & 0x3FFF_FFFF


class TracedMessage:
    """A send or receive of a group of ringtune's, which has no collective of the runtime's to stand for it.

    Args:
        group: Its group.
        tensor: What travels.
        peer: The other rank, by its number in the group.
        sends: Whether this rank sends.
        number: Of `MessageNumbers`.
    """

    def __init__(self, group: GroupLabel, tensor: torch.Tensor, peer: int, sends: bool, number: int) -> None:
        self._kind = KINDS["SEND" if sends else "RECV"]
        self._name = f"{group.text}: {'send to' if sends else 'recv from'} {peer}"
        self._bytes = tensor.numel() * tensor.element_size()
        self._about = (number, group.number, DTYPES.get(tensor.dtype, NO_DTYPE))

    def record(self, stage: int, begin_ns: int, end_ns: int) -> None:
        """Record a stage of it in the timeline of this process's session, if there is one."""
        now = session.state.current
        if now is not None and not now.closed:
            now.foreign.record(stage, self._kind, self._name, begin_ns, end_ns, self._bytes, *self._about)
