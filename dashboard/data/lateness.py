"""The late rank of each step, as a map of ranks and steps: from the columns of `ringtune.dashboard.data.analysis`.

A cell's lateness is that of `ringtune.timeline.analysis.stragglers`: by how much the rank was last in the step's latest
batch, the gain if only that rank had been on time. So a step has at most one late rank per cause. Where there are more
steps than columns, a cell holds several: it shows their mean and links to the worst of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringtune.dashboard.data.analysis import Analysis
from ringtune.dashboard.data.timeline.shapes import Window
from ringtune.timeline.analysis.stragglers import CAUSES

COLUMN_LIMIT = 200
"""Most columns of the map."""
ROW_LIMIT = 64
"""Most rows; more ranks share rows."""
SHOWN_RANKS = 4
"""So many ranks are shown where a cell leads to the timeline: the late one among others."""


@dataclass(frozen=True)
class LateMap:
    """A map of R rows and C columns.

    Attributes:
        ranks: First and last rank of each row.
        steps: First and last step of each column.
        mean_ns: R x C; lateness summed over the cell's ranks, a step.
        late_steps: R x C; in how many of the cell's steps one of its ranks was last.
        worst_step, worst_rank, worst_ns: R x C; the step with the largest lateness; -1, -1, 0 where no rank was late.
        recorded: First and last step recorded, whatever is shown.
    """

    ranks: tuple[tuple[int, int], ...]
    steps: tuple[tuple[int, int], ...]
    mean_ns: NDArray[np.float64]
    late_steps: NDArray[np.int64]
    worst_step: NDArray[np.int64]
    worst_rank: NDArray[np.int64]
    worst_ns: NDArray[np.int64]
    recorded: tuple[int, int]


def growing_width(steps: int) -> int:
    """Return the steps of a column in a map that grows: a power of two, so that columns stay the same."""
    return 1 << max(0, (-(-steps // COLUMN_LIMIT) - 1).bit_length())


def late_map(
    found: Analysis, cause: str = "", steps: tuple[int, int] | None = None, wide: int | None = None
) -> LateMap | None:
    """Return the map of a cause (empty: the strongest of each step) over steps first to last; None without steps.

    Args:
        found: The analysis.
        cause: One of `CAUSES`; anything else stands for all.
        steps: First and last step to show; None for all.
        wide: Steps of a column; as many as it takes where it is not given.
    """
    known = found.columns["step"]
    ranks = found.ranks
    if not len(known) or not ranks:
        return None
    recorded = (int(known[0]), int(known[-1]))
    first, last = steps if steps is not None else recorded
    first, last = max(min(first, last), recorded[0]), min(max(first, last), recorded[1])
    if first > last:
        first, last = recorded
    wide, tall = wide or -(-(last - first + 1) // COLUMN_LIMIT), -(-len(ranks) // ROW_LIMIT)
    columns = [(at, min(at + wide - 1, last)) for at in range(first, last + 1, wide)]
    rows = [(group[0], group[-1]) for group in (ranks[at : at + tall] for at in range(0, len(ranks), tall))]
    late = _late(found, cause, (first, last))
    row = np.searchsorted(np.array(ranks), late["late_rank"]) // tall
    cell = row * len(columns) + (late["late_step"] - first) // wide
    shape = (len(rows), len(columns))
    total = np.bincount(cell, weights=late["late_ns"], minlength=shape[0] * shape[1]).reshape(shape)
    width = np.array([end - begin + 1 for begin, end in columns])
    counts, worst_step, worst_rank, worst_ns = _worst(cell, late, shape)
    return LateMap(
        tuple(rows), tuple(columns), total / width, counts, worst_step, worst_rank, worst_ns, recorded
    )  # fmt: skip


def row_words(ranks: tuple[int, int]) -> str:
    """Return the name of a row, from its first and last rank."""
    return f"rank {ranks[0]}" if ranks[0] == ranks[1] else f"ranks {ranks[0]}–{ranks[1]}"


def cell_at(drawn: LateMap, x: float, row: str) -> tuple[int, int] | None:
    """Return the worst step of a cell and its late rank, the cell's first where none was; None beside the map.

    Args:
        drawn: The map.
        x: A step, also between whole ones.
        row: The row's name (`row_words`).
    """
    names = [row_words(ranks) for ranks in drawn.ranks]
    column = next((n for n, (first, last) in enumerate(drawn.steps) if first - 0.5 <= x <= last + 0.5), None)
    if row not in names or column is None:
        return None
    at = names.index(row), column
    if drawn.late_steps[at]:
        return int(drawn.worst_step[at]), int(drawn.worst_rank[at])
    return drawn.steps[column][0], drawn.ranks[at[0]][0]


def _late(found: Analysis, cause: str, steps: tuple[int, int]) -> dict[str, NDArray[Any]]:
    """Rows of the chosen steps and cause, one a step and rank, smallest lateness first."""
    rows = {name: column for name, column in found.columns.items() if name.startswith("late_")}
    keep = (rows["late_step"] >= steps[0]) & (rows["late_step"] <= steps[1])
    if cause in CAUSES:
        keep &= rows["late_cause"] == CAUSES.index(cause)
    rows = {name: column[keep] for name, column in rows.items()}
    order = np.argsort(rows["late_ns"], kind="stable")
    rows = {name: column[order] for name, column in rows.items()}
    # Of several causes in a step the strongest counts: the last one of equal (step, rank).
    size = len(rows["late_ns"])
    who = rows["late_step"] * (int(rows["late_rank"].max(initial=0)) + 1) + rows["late_rank"]
    _, kept = np.unique(who[::-1], return_index=True)
    chosen = np.sort(size - 1 - kept)
    return {name: column[chosen] for name, column in rows.items()}


def _worst(cell: NDArray[np.int64], late: dict[str, NDArray[Any]], shape: tuple[int, int]) -> list[NDArray[np.int64]]:
    counts = np.bincount(cell, minlength=shape[0] * shape[1]).astype(np.int64)
    found = [counts]
    for name, missing in (("late_step", -1), ("late_rank", -1), ("late_ns", 0)):
        values = np.full(len(counts), missing, dtype=np.int64)
        values[cell] = late[name]  # sorted by lateness: the largest stays
        found.append(values)
    return [values.reshape(shape) for values in found]


@dataclass(frozen=True)
class Place:
    """Where a cell leads: the window of its step in the timeline, and the ranks to look at (empty for all)."""

    window: Window
    ranks: tuple[int, ...]


def place_of(found: Analysis, step: int, rank: int) -> Place | None:
    """Return where to look at a rank in a step; None when the step is not recorded."""
    window = found.window_ns(step, step)
    if window is None:
        return None
    ranks = found.ranks
    if len(ranks) <= SHOWN_RANKS or rank not in ranks:
        return Place(Window(*map(float, window)).widened(0.03), ())
    others = [one for one in ranks if one != rank][: SHOWN_RANKS - 1]
    return Place(Window(*map(float, window)).widened(0.03), tuple(sorted([rank, *others])))


@dataclass(frozen=True)
class LateRank:
    """A rank's row of the table; times in nanoseconds; by cause ``(steps last, lateness, p)``."""

    rank: int
    host: str
    causes: dict[str, tuple[int, int, float]]
    carried_ns: int
    verdict: tuple[str, ...]


def late_ranks(found: Analysis) -> list[LateRank]:
    """Return all ranks with what the tests say; empty where ranks cannot be compared."""
    said = found.document["stragglers"]
    rows = []
    for rank in said["ranks"] if said else []:
        causes = {
            cause: (int(late["steps_last"]), int(late["total_ns"]), float(late["p_value"]))
            for cause, late in rank["causes"].items()
        }
        rows.append(
            LateRank(int(rank["rank"]), str(rank["host"]), causes, int(rank["carried_ns"]), tuple(rank["verdict"]))
        )
    return rows
