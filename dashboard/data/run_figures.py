"""What the table of runs says of each: how much of a step ranks compute, wait for one another, and which one is late.

Only the ends of the step logs are read: the table must stay quick with hundreds of long runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ringtune import layout
from ringtune.dashboard.data import tuning
from ringtune.dashboard.data.cache import Cache
from ringtune.dashboard.data.files import integer, signature
from ringtune.dashboard.data.runs import RUN_LIMIT, RunInfo, newest_rows, rank_files
from ringtune.dashboard.data.step_totals import LATE_FROM

RANK_LIMIT = 64
"""With more ranks nothing is said of efficiency, waiting and the late rank: their logs are not read for a table."""
_TAIL_BYTES = 24 * 2**10
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class RunFigures:
    """Figures of the newest steps of a run; NaN, and -1 for the rank, where its folder does not say.

    Attributes:
        efficiency: Share of the step in which ranks are not blocked, the mean over the ranks.
        waiting: Share of the step in which a rank is blocked beyond the one that is blocked least: for a late rank.
        late_rank: The rank that computes longest; -1 where none stands out.
        best_ns: The shortest step, of the slowest rank; of a tuning session without steps of its own, the confirmed
            median of what was kept.
        default_ns: The step time of what a tuning session started from.
    """

    efficiency: float = math.nan
    waiting: float = math.nan
    late_rank: int = -1
    best_ns: float = math.nan
    default_ns: float = math.nan


class FiguresReader:
    """Reads the figures of runs, each again only when its files have changed. Safe to use from several threads."""

    def __init__(self) -> None:
        self._known = Cache(capacity=RUN_LIMIT)

    def of(self, run: RunInfo) -> RunFigures:
        """Return the figures of a run."""
        logs = rank_files(run.path, layout.step_logs(run.path), ".jsonl")
        state = signature([*logs.values(), layout.tuning_journal(run.path)])
        return self._known.get(run.path, state, lambda: _figures(run, logs))


def _figures(run: RunInfo, logs: Mapping[int, Path]) -> RunFigures:
    found = of_steps(_newest(run.path, logs)) if len(logs) <= RANK_LIMIT else RunFigures()
    past = tuning.data(run) if layout.tuning_journal(run.path).is_file() else None
    if not past:
        return found
    _, best = tuning.best_confirmed(past)
    default = tuning.default_step_ns(past)
    return RunFigures(
        found.efficiency,
        found.waiting,
        found.late_rank,
        best[-1] if best and math.isnan(found.best_ns) else found.best_ns,
        default.median if default else math.nan,
    )


def of_steps(ranks: Mapping[int, Mapping[int, tuple[int, int]]]) -> RunFigures:
    """Return the figures of steps, by rank and number: duration and blocked time in ns; the first step is left out."""
    known = [set(steps) for steps in ranks.values()]
    common = sorted(set.intersection(*known) - {0}) if known else []
    if not common:
        return RunFigures()
    table = np.array([[ranks[rank][step] for step in common] for rank in ranks], dtype=np.float64)
    wall, wait = table[:, :, 0], np.minimum(table[:, :, 1], table[:, :, 0])
    total = float(wall.sum())
    if total <= 0:
        return RunFigures()
    work, (_, waiting) = (wall - wait).mean(axis=1), blocked(wait)
    typical = float(np.median(work))
    late = len(ranks) > 1 and typical > 0 and float(work.max()) / typical - 1 >= LATE_FROM
    return RunFigures(
        efficiency=1 - float(wait.sum()) / total,
        waiting=len(ranks) * float(waiting.sum()) / total if len(ranks) > 1 else math.nan,
        late_rank=list(ranks)[int(work.argmax())] if late else -1,
        best_ns=float(wall.max(axis=0).min()),
    )


def blocked(wait: Floats) -> tuple[Floats, Floats]:
    """Return how long ranks were blocked in each step: for the links alone, and on average beyond that.

    The rank that is blocked least was waited for by the others, or nobody was: what it is blocked for is exposed
    communication, and what others are blocked beyond it is waiting for a late rank.

    Args:
        wait: Blocked time by rank and step.
    """
    exposed: Floats = wait.min(axis=0)
    return exposed, wait.mean(axis=0) - exposed


def _newest(run: Path, logs: Mapping[int, Path]) -> dict[int, dict[int, tuple[int, int]]]:
    """Return duration and blocked time of the newest steps of every rank."""
    found = {}
    for rank, path in sorted(logs.items()):
        found[rank] = {
            integer(row.get("step"), -1): (
                integer(row.get("end_ns")) - integer(row.get("begin_ns")),
                integer(row.get("wait_ns")),
            )
            for row in newest_rows(run, path, _TAIL_BYTES)
        }
    return {rank: steps for rank, steps in found.items() if steps}
