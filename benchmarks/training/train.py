"""`ringtune bench train`: real training in several ways, burst by burst in turn.

A sample is the time per step of one burst. Its rate counts every rank by its own time (the harmonic mean of the ranks'
times), so that processes that do not wait for each other are not held to the slower one.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from ringtune import layout
from ringtune.benchmarks.harness.environments import SUBJECT, Setting, linked_benchmarks
from ringtune.benchmarks.harness.peers import ALONE, DDP_ALONE, IN_STEP, Selection
from ringtune.benchmarks.harness.progress import open_progress
from ringtune.benchmarks.harness.races import Budget, CaseResult, Outcome, open_race
from ringtune.benchmarks.harness.statistics import median_ratio_interval, quartiles, share_text, step_ns
from ringtune.benchmarks.netlab import network
from ringtune.benchmarks.netlab.network import Network
from ringtune.benchmarks.training.config import TrainingTask
from ringtune.benchmarks.training.launching import ONE, training_plans
from ringtune.benchmarks.training.models import check_task, describe, items_per_step, unit
from ringtune.errors import UsageError

# Long enough for the clocks, short enough that a slow spell of the machine hits all contenders.
BURST_NS = 500_000_000
# The first steps allocate, learn step schedules and build buckets.
WARM_UP_BURSTS = 2


@dataclass(frozen=True)
class TrainRequest:
    """What the user asked for.

    Args:
        ranks: ranks of each job.
        threads: compute threads per rank.
        tasks: the cases.
        rounds: samples per case and contender.
        peers: who takes part.
        rate: of the links between the ranks, each on a host of its own (see `netlab/network.py`); None: on this host.
        device: where they train.
    """

    ranks: int
    threads: int
    tasks: Sequence[TrainingTask]
    rounds: int
    peers: Selection
    rate: str | None = None
    device: str = "cpu"


def run_train(request: TrainRequest, console: Console) -> dict[str, Any]:
    """Measures, prints the table and returns the record for `--json`.

    Raises:
        UsageError: no such model, or there cannot be links here.
        RingtuneError: one of ringtune's own jobs failed.
    """
    for task in request.tasks:
        check_task(task)
    if request.rate is not None and (lacking := network.missing()) is not None:
        raise UsageError(f"'ringtune bench train --rate' makes hosts of network namespaces and needs {lacking}")
    created_unix_ns = time.time_ns()
    budget = Budget(0.0, request.rounds, request.rounds, BURST_NS, WARM_UP_BURSTS)
    outcome = Outcome()
    with ExitStack() as stack:
        reporter = stack.enter_context(open_progress(console, "train", len(request.tasks)))
        for name, reason in request.peers.absent.items():
            reporter.say(f"absent: {name} ({reason})")
        wires = None
        if request.rate is not None:
            wires = Network(*stack.enter_context(network.hosts(request.ranks, network.link_rate(request.rate))))
        link = stack.enter_context(linked_benchmarks())
        setting = Setting(request.ranks, None, request.threads, link, wires, request.device)
        race = open_race(training_plans(request.peers, setting), stack, outcome, reporter, step_ns)
        for task in request.tasks:
            outcome.results.append(race.run_case({"training": asdict(task)}, budget))
            reporter.advance(describe(task))
    record = train_record(request, outcome) | {"created_unix_ns": created_unix_ns}
    console.print(train_table(record))
    return record


def train_record(request: TrainRequest, outcome: Outcome) -> dict[str, Any]:
    """Returns the record of what was measured (nanoseconds per step, and what follows from them)."""
    return {
        "format": layout.FORMAT,
        "benchmark": "train",
        "command": ["ringtune", *sys.argv[1:]],
        "ranks": request.ranks,
        "threads_per_rank": request.threads,
        "rate": request.rate,
        "device": request.device,
        "about": outcome.about,
        "absent": dict(request.peers.absent),
        "failed": outcome.failed,
        "cases": [
            _case_record(task, request.ranks, result)
            for task, result in zip(request.tasks, outcome.results, strict=True)
        ],
    }


def _case_record(task: TrainingTask, ranks: int, result: CaseResult) -> dict[str, Any]:
    times_ns = result.times_ns
    items = items_per_step(task)
    size = {name: 1 if name == ONE else ranks for name in times_ns}
    peers = [name for name in times_ns if name not in (ALONE, DDP_ALONE, ONE) and not name.startswith(SUBJECT)]
    best = min(peers, key=lambda name: quartiles(times_ns[name]).median, default=None)
    return {
        "label": describe(task),
        "task": asdict(task),
        "unit": unit(task),
        "times": {name: {**quartiles(ns).as_dict(), "samples": ns} for name, ns in times_ns.items()},
        "rates": {
            name: quartiles([size[name] * items * 1e9 / step for step in ns]).as_dict() for name, ns in times_ns.items()
        },
        # 1: as fast as processes that do not communicate.
        "to_alone": _ratios(times_ns, ALONE),
        # 1: as fast as processes that only wait for one another.
        "to_in_step": _ratios(times_ns, IN_STEP),
        # 1: as fast as DDP that reduces nothing.
        "to_ddp_alone": _ratios(times_ns, DDP_ALONE),
        # 1: every rank as fast as one process that has the machine to itself.
        "efficiency": _ratios(times_ns, ONE),
        "best_peer": best,
        # Above 1: ringtune is that many times faster than the best peer that communicates.
        "ratio": median_ratio_interval(times_ns[best], times_ns[SUBJECT]).as_dict() if best else None,
    }


def _ratios(times_ns: Mapping[str, Sequence[float]], base: str) -> dict[str, dict[str, float]]:
    """Returns how fast each contender is beside `base`; nothing where that took no part."""
    if base not in times_ns:
        return {}
    return {name: median_ratio_interval(times_ns[base], ns).as_dict() for name, ns in times_ns.items() if name != base}


def train_rows(record: dict[str, Any]) -> list[list[str]]:
    """Returns the table's rows of text, the headings first."""
    rows = [["", "", "rate", "to alone", "efficiency"]]
    for case in record["cases"]:
        for name, rate in case["rates"].items():
            spread = f"{rate['median']:.4g} [{rate['low']:.4g}, {rate['high']:.4g}] {case['unit']}"
            shares = [share_text(case[key].get(name)) for key in ("to_alone", "efficiency")]
            rows.append([case["label"], name, spread, *shares])
    return rows


def train_table(record: dict[str, Any]) -> Table:
    """Returns the table that ends the benchmark."""
    title = f"training, {record['ranks']} ranks of {record['threads_per_rank']} thread(s)"
    if record["rate"] is not None:
        title += f", links of {record['rate']}"
    caption = (
        "rate of all ranks: median and quartiles; ratios with 95 % interval; efficiency: each rank against one alone"
    )
    table = Table(title=title, caption=caption)
    heading, *rows = train_rows(record)
    for title in heading:
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*(cell.replace("[", "\\[") for cell in row), style="bold" if row[1] == SUBJECT else None)
    return table


def train_markdown(record: dict[str, Any]) -> str:
    """Returns the table in Markdown, for documents."""
    heading, *rows = train_rows(record)
    return "\n".join(f"| {' | '.join(row)} |" for row in [heading, ["---"] * len(heading), *rows])
