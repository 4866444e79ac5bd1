"""Bus bandwidth: how fast the links were used, comparable between numbers of ranks.

Notation: n = ranks, S = bytes of a batch as its COMMUNICATE span records them (for an allgather the gathered bytes of
all ranks, as nccl-tests counts), t = time of that span, from when the last rank had submitted (`late_waits`): what is
waited before says nothing of the links. Bus bandwidth = S * factor / t, with the factors of nccl-tests:
allreduce 2(n-1)/n; allgather, reduce-scatter and alltoall (n-1)/n; broadcast 1.

Source: NVIDIA nccl-tests, doc/PERFORMANCE.md, "Bus bandwidth".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ringtune.timeline.analysis.intervals import length, union
from ringtune.timeline.distinct import distinct
from ringtune.timeline.spans import Mask, SpanTable
from ringtune.timeline.vocabulary import KINDS, Stage

_KIND_WORDS = (
    ("REDUCESCATTER", re.compile(r"reduce_?scatter", re.IGNORECASE)),  # before the others: names may hold both
    ("ALLREDUCE", re.compile(r"all_?reduce", re.IGNORECASE)),
    ("ALLGATHER", re.compile(r"all_?gather", re.IGNORECASE)),
    ("ALLTOALL", re.compile(r"all_?to_?all", re.IGNORECASE)),
    ("BROADCAST", re.compile(r"broadcast", re.IGNORECASE)),
    ("BARRIER", re.compile(r"barrier", re.IGNORECASE)),
)


@lru_cache(maxsize=1024)
def kind_of(name: str) -> str:
    """Return which of `KINDS` a collective is by its name, whoever recorded it; empty for others."""
    return next((kind for kind, words in _KIND_WORDS if words.search(name)), "")


def bus_factor(kind: str, ranks: int) -> float:
    """Return the factor of a collective (a word of `KINDS`) among so many ranks; 0 where no bus is used."""
    if ranks < 2 or kind == "BARRIER":
        return 0.0
    share = (ranks - 1) / ranks
    return {"ALLREDUCE": 2 * share, **dict.fromkeys(("BROADCAST", "REDUCE", "SEND", "RECV"), 1.0)}.get(kind, share)


@dataclass(frozen=True)
class KindTraffic:
    """One kind of collective, all ranks together; bandwidth in bytes/s of one rank, None when it is unknown."""

    kind: str
    batches: int
    bytes: int
    busy_ns: int
    factor: float
    bus_bytes_per_s: float | None
    fastest_bytes_per_s: float | None
    """Bus bandwidth that one collective in twenty exceeds: what the link has shown it can do."""


def traffic(spans: SpanTable, ranks: int, *, fastest: bool = True) -> tuple[KindTraffic, ...]:
    """Return the traffic of every kind of collective that occurs; the spans may be of any ranks of one job.

    ``fastest``: also what the fastest reached, which costs a sort.
    """
    communicate = spans.of_stage(Stage.COMMUNICATE)
    places = {kind: place for place, kind in enumerate(KINDS)}
    kind_of_name = np.array([places.get(kind_of(name), -1) for name in communicate.names], dtype=np.int64)
    kinds = kind_of_name[communicate.name]
    found = []
    for place in distinct(kinds[kinds >= 0]).tolist():
        kind, chosen = KINDS[place], communicate.take(kinds == place)
        busy = sum(_busy(chosen, chosen.rank == rank) for rank in distinct(chosen.rank))
        size, factor = int(chosen.bytes.sum()), bus_factor(kind, ranks)
        rate = size * factor / busy * 1e9 if busy and factor and size else None
        top = _fastest(chosen, factor) if fastest else None
        found.append(KindTraffic(kind, len(chosen), size, busy, factor, rate, top))
    return tuple(found)


def _fastest(chosen: SpanTable, factor: float) -> float | None:
    timed = chosen.take((chosen.duration_ns > 0) & (chosen.bytes > 0))
    if not len(timed) or not factor:
        return None
    return float(np.percentile(timed.bytes * (factor * 1e9) / timed.duration_ns, 95))


def bus_rate(kinds: tuple[KindTraffic, ...]) -> float | None:
    """Return the bus bandwidth over all kinds in bytes/s of one rank; None when nothing used the bus."""
    busy = sum(kind.busy_ns for kind in kinds if kind.bus_bytes_per_s is not None)
    moved = sum(kind.bytes * kind.factor for kind in kinds if kind.bus_bytes_per_s is not None)
    return moved / busy * 1e9 if busy else None


def _busy(spans: SpanTable, chosen: Mask) -> int:
    return length(union(spans.begin_ns[chosen], spans.end_ns[chosen]))
