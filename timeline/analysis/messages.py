"""Messages between two ranks: which receive belongs to a send, and which of the two ranks waited for the other.

Both ends of a message have one number (`ringtune.timeline.vocabulary.MESSAGES`). Where it comes again, because an
elastic job has started anew, the first send belongs to the first receive, and so on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from ringtune.timeline.distinct import numbered_rows
from ringtune.timeline.spans import Ints, Mask, SpanTable
from ringtune.timeline.vocabulary import Stage

_SENDS = re.compile(r"send", re.IGNORECASE)


@dataclass(frozen=True)
class Messages:
    """The messages of a trace that both ranks recorded.

    ``send`` and ``receive`` are places of `communicate` spans, message by message, ``wait`` those of spans in which a
    caller or a stream waited for one, and ``waited`` the message of each of these.
    """

    send: Ints
    receive: Ints
    wait: Ints
    waited: Ints


def messages(spans: SpanTable) -> Messages:
    """Match the sends of a trace with their receives."""
    rows = np.flatnonzero(spans.in_stage(Stage.COMMUNICATE, Stage.WAIT, Stage.DEVICE_WAIT) & (spans.batch < 0))
    calls: Mask = spans.stage[rows] == Stage.COMMUNICATE
    number, group = spans.batch[rows], spans.process_sets(rows)
    _, alike = numbered_rows(number, group, spans.rank[rows], calls)
    first, key = numbered_rows(number, group, _turns(alike, spans.end_ns[rows]))
    named = np.array([_SENDS.search(name) is not None for name in spans.names], dtype=np.bool_)
    ends = np.full((2, len(first)), -1, dtype=np.int64)
    ends[named[spans.name[rows[calls]]].astype(np.intp), key[calls]] = rows[calls]
    receive, send = ends
    whole = (send >= 0) & (receive >= 0) & (spans.rank[send] != spans.rank[receive]) if len(rows) else send >= 0
    place = np.where(whole, np.cumsum(whole) - 1, -1)
    waits = np.flatnonzero(~calls & whole[key])
    return Messages(send[whole], receive[whole], rows[waits], place[key[waits]])


def message_waits(spans: SpanTable) -> tuple[Ints, Ints, Ints]:
    """Return how long callers were blocked by messages that the other rank had not called.

    Returns:
        Wait by wait the rank that waited, the rank that it waited for, and for how many nanoseconds, all above 0.
    """
    found = messages(spans)
    send, receive = found.send[found.waited], found.receive[found.waited]
    other = np.where(spans.rank[send] == spans.rank[found.wait], receive, send)
    begin, end = spans.begin_ns[found.wait], spans.end_ns[found.wait]
    length = np.clip(spans.begin_ns[other], begin, end) - begin
    long = length > 0
    rank, peer = spans.rank[found.wait][long].astype(np.int64), spans.rank[other][long].astype(np.int64)
    return rank, peer, length[long]


def _turns(alike: Ints, end_ns: Ints) -> Ints:
    """How many rows of its kind end before each row."""
    order = np.lexsort((end_ns, alike))
    starts = np.flatnonzero(np.diff(alike[order], prepend=-1))
    turns = np.empty(len(alike), dtype=np.int64)
    turns[order] = np.arange(len(alike)) - np.repeat(starts, np.diff(starts, append=len(alike)))
    return turns
