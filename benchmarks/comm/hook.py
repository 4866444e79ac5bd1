"""`ringtune bench hook`: the cost of `DistributedOptimizer`'s hook for the thread that computes gradients.

Gradients are handed to autograd ready-made, so that a backward pass is nothing but their accumulation and the hooks.
Passes with empty hooks and passes with ringtune's take turns on parameters of the same sizes; the difference of a pair,
over the number of gradients, is the cost of submitting one of them. Waiting for the reduction is not timed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from ringtune import layout
from ringtune.benchmarks.comm.config import HookRun
from ringtune.benchmarks.harness.jobs import WorkerJob, run_worker
from ringtune.benchmarks.harness.statistics import quartiles
from ringtune.timeline.units import bytes_text, time_text


@dataclass(frozen=True)
class HookRequest:
    """What the user asked for.

    Args:
        ranks: ranks of the job.
        run: what each of them does.
    """

    ranks: int
    run: HookRun


def run_hook(request: HookRequest, console: Console) -> dict[str, Any]:
    """Measures, prints the table and returns the record for `--json`.

    Raises:
        RingtuneError: a rank failed.
    """
    created_unix_ns = time.time_ns()
    found: dict[int, tuple[list[float], list[float]]] = {}

    def on_event(event: dict[str, Any]) -> None:
        if event["event"] == "passes":
            found[int(event["rank"])] = event["empty_ns"], event["hooked_ns"]

    run_worker(WorkerJob("comm.hook_worker", request.run, request.ranks, None, 1), on_event)
    record = hook_record(request, found) | {"created_unix_ns": created_unix_ns}
    console.print(hook_table(record))
    return record


def hook_record(request: HookRequest, found: dict[int, tuple[list[float], list[float]]]) -> dict[str, Any]:
    """Returns the record; nanoseconds per gradient.

    Args:
        request: what was asked for.
        found: rank -> nanoseconds of the passes with empty hooks and of those with ringtune's, in pairs.
    """
    run = request.run
    return {
        "format": layout.FORMAT,
        "benchmark": "hook",
        "command": ["ringtune", *sys.argv[1:]],
        "ranks": request.ranks,
        "gradients": run.gradients,
        "bytes": run.size_bytes,
        "unit": "ns",
        "by_rank": [_rank_record(rank, *found[rank], run.gradients) for rank in sorted(found)],
    }


def _rank_record(rank: int, empty_ns: Sequence[float], hooked_ns: Sequence[float], gradients: int) -> dict[str, Any]:
    costs = [(hooked - empty) / gradients for empty, hooked in zip(empty_ns, hooked_ns, strict=True)]
    return {
        "rank": rank,
        "empty": quartiles([value / gradients for value in empty_ns]).as_dict(),
        "hooked": quartiles([value / gradients for value in hooked_ns]).as_dict(),
        "cost": {**quartiles(costs).as_dict(), "samples": costs},
    }


def hook_table(record: dict[str, Any]) -> Table:
    """Returns the table that ends the benchmark."""
    title = f"hook, {record['ranks']} ranks, {record['gradients']} gradients of {bytes_text(record['bytes'])}"
    table = Table(title=title, caption="per gradient, median and quartiles")
    for column in ("rank", "empty hook", "ringtune's hook", "difference"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in record["by_rank"]:
        table.add_row(str(row["rank"]), *(_cell(row[key]) for key in ("empty", "hooked", "cost")))
    return table


def _cell(values: dict[str, Any]) -> str:
    median, low, high = (time_text(values[key]) for key in ("median", "low", "high"))
    return f"{median} \\[{low}, {high}]"


def costlier(record: dict[str, Any], limit_us: float) -> list[str]:
    """Returns a sentence for each rank whose median hook costs more than that many microseconds."""
    return [
        f"rank {row['rank']}: {row['cost']['median'] / 1000:.2f} µs per gradient, required {limit_us:g}"
        for row in record["by_rank"]
        if row["cost"]["median"] > 1000 * limit_us
    ]
