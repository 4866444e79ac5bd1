"""The critical path as columns, and what of it a window shows.

Where a window holds more stretches than can be distinguished, every pixel shows the cause that took most of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringtune.errors import RingtuneError
from ringtune.timeline.analysis.critical_path import CAUSES, critical_path
from ringtune.timeline.spans import Ints, Trace

PATH_TYPES: dict[str, Any] = {
    "begin_ns": np.int64, "end_ns": np.int64, "rank": np.int32, "cause": np.uint8, "step": np.int64, "batch": np.int64,
}  # fmt: skip
PIECES = 400
"""Most pieces that are drawn of a window."""


@dataclass(frozen=True)
class PathTable:
    """Stretches in the order of time; they tile it. ``cause`` indexes `critical_path.CAUSES`."""

    begin_ns: Ints
    end_ns: Ints
    rank: NDArray[np.int32]
    cause: NDArray[np.uint8]
    step: Ints
    batch: Ints

    def __len__(self) -> int:
        return len(self.begin_ns)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the columns by name."""
        return {name: getattr(self, name) for name in PATH_TYPES}

    def take(self, chosen: Any) -> PathTable:
        """Return some of the stretches."""
        return PathTable(**{name: column[chosen] for name, column in self.columns().items()})

    def within(self, begin_ns: float, end_ns: float, pieces: int = PIECES) -> tuple[PathTable, bool]:
        """Return what a window shows of the path, and whether that is every stretch.

        Where there are too many, equal pieces of the window stand for the stretch that took most of each cause.
        """
        # Whole numbers, see `levels.touching`.
        begin, end = math.floor(begin_ns), math.ceil(end_ns)
        first, last = np.searchsorted(self.end_ns, begin, "right"), np.searchsorted(self.begin_ns, end, "left")
        inside = self.take(slice(int(first), int(last)))
        if len(inside) <= pieces:
            return inside, True
        return _dominant(inside, (begin_ns, end_ns), pieces), False


def path_of(trace: Trace) -> PathTable:
    """Return the critical path of a trace; empty where there is none to find."""
    try:
        stretches = critical_path(trace).stretches
    except RingtuneError:
        stretches = ()
    code = {cause: number for number, cause in enumerate(CAUSES)}
    columns: dict[str, Any] = {
        "begin_ns": [one.begin_ns for one in stretches],
        "end_ns": [one.end_ns for one in stretches],
        "rank": [one.rank for one in stretches],
        "cause": [code[one.cause] for one in stretches],
        "step": [one.step for one in stretches],
        "batch": [one.batch for one in stretches],
    }
    return PathTable(**{name: np.array(columns[name], dtype=kind) for name, kind in PATH_TYPES.items()})


def _dominant(inside: PathTable, window: tuple[float, float], pieces: int) -> PathTable:
    """Per piece of the window the cause with most time in it (by where stretches begin), and its longest stretch."""
    low, high = max(float(window[0]), float(inside.begin_ns[0])), min(float(window[1]), float(inside.end_ns[-1]))
    edges = np.linspace(low, high, pieces + 1).astype(np.int64)
    piece = np.clip(np.searchsorted(edges, inside.begin_ns, "right") - 1, 0, pieces - 1)
    length = inside.end_ns - inside.begin_ns
    time_of = np.zeros((pieces, len(CAUSES)), dtype=np.int64)
    np.add.at(time_of, (piece, inside.cause), length)
    # Of equal causes the longest stretch comes last, and stays.
    best = np.full((pieces, len(CAUSES)), -1, dtype=np.int64)
    order = np.argsort(length, kind="stable")
    best[piece[order], inside.cause[order]] = order
    filled = np.flatnonzero(time_of.any(axis=1))
    chosen = inside.take(best[filled, time_of[filled].argmax(axis=1)])
    begins = edges[filled]
    ends = np.append(begins[1:], edges[-1])
    return PathTable(begins, ends, chosen.rank, chosen.cause, chosen.step, chosen.batch)
