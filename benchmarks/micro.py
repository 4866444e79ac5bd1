"""`ringtune bench allreduce` and `ringtune bench gradients`: races of ringtune and its peers in the same processes."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from ringtune import layout
from ringtune.benchmarks.jobs import WorkerJob, run_worker
from ringtune.benchmarks.peers import SUBJECT, Selection
from ringtune.benchmarks.progress import open_progress
from ringtune.benchmarks.sizes import duration_unit, format_bytes, format_duration
from ringtune.benchmarks.statistics import paired_ratio_interval, quartiles
from ringtune.benchmarks.workers.config import MicroRun
from ringtune.errors import RingtuneError


@dataclass(frozen=True)
class Case:
    """A row of a micro benchmark: what it is called and the sizes of its tensors in bytes."""

    label: str
    sizes_bytes: tuple[int, ...]


@dataclass(frozen=True)
class MicroRequest:
    """What the user asked for.

    Args:
        benchmark: ``allreduce`` or ``gradients``.
        ranks: ranks of the job.
        hosts: as for `ringtune run -H`; None for this host.
        cases: the rows.
        dtype: of all tensors.
        seconds: measured per case and contender.
        threads: of torch, per rank.
        peers: who takes part.
    """

    benchmark: str
    ranks: int
    hosts: str | None
    cases: Sequence[Case]
    dtype: str
    seconds: float
    threads: int
    peers: Selection


def run_micro(request: MicroRequest, console: Console) -> dict[str, Any]:
    """Measures, prints the table and returns the record for `--json`.

    Raises:
        RingtuneError: the job failed, a wrong result included.
    """
    run = MicroRun(
        request.benchmark,
        list(request.peers.contenders),
        [list(case.sizes_bytes) for case in request.cases],
        request.dtype,
        request.seconds,
        request.threads,
    )
    created_unix_ns = time.time_ns()
    times_ns: list[dict[str, list[float]]] = []
    with open_progress(console, request.benchmark, len(request.cases)) as reporter:
        for name, reason in request.peers.absent.items():
            reporter.say(f"absent: {name} ({reason})")

        def on_event(event: dict[str, Any]) -> None:
            if event["event"] == "case":
                times_ns.append(event["times_ns"])
                reporter.advance(_case_line(request.cases[event["case"]], event["times_ns"]))

        run_worker(WorkerJob("micro", run, request.ranks, request.hosts, request.threads), on_event)
    if len(times_ns) != len(request.cases):
        raise RingtuneError(f"the {request.benchmark} benchmark gave {len(times_ns)} of {len(request.cases)} results")
    record = micro_record(request, times_ns) | {"created_unix_ns": created_unix_ns}
    console.print(micro_table(record))
    return record


def micro_record(request: MicroRequest, times_ns: Sequence[dict[str, list[float]]]) -> dict[str, Any]:
    """Returns the record of the measured times (nanoseconds per reduction, per case and contender)."""
    return {
        "format": layout.FORMAT,
        "benchmark": request.benchmark,
        "command": ["ringtune", *sys.argv[1:]],
        "ranks": request.ranks,
        "dtype": request.dtype,
        "threads_per_rank": request.threads,
        "unit": "ns",
        "absent": dict(request.peers.absent),
        "cases": [_case_record(case, times) for case, times in zip(request.cases, times_ns, strict=True)],
    }


def _case_record(case: Case, times_ns: dict[str, list[float]]) -> dict[str, Any]:
    peers = {name: quartiles(values) for name, values in times_ns.items() if name != SUBJECT}
    best = min(peers, key=lambda name: peers[name].median) if peers else None
    return {
        "label": case.label,
        "tensors": len(case.sizes_bytes),
        "bytes": sum(case.sizes_bytes),
        "times": {name: {**quartiles(values).as_json(), "samples": values} for name, values in times_ns.items()},
        "best_peer": best,
        # Above 1: ringtune is that many times faster than the best peer.
        "ratio": paired_ratio_interval(times_ns[best], times_ns[SUBJECT]).as_json() if best else None,
    }


def below(record: dict[str, Any], require: float) -> list[str]:
    """Returns a sentence for each case in which ringtune is less than `require` times as fast as the best peer."""
    return [
        f"{case['label']}: {case['ratio']['median']:.2f}x of {case['best_peer']}, required {require:g}x"
        for case in record["cases"]
        if case["ratio"] is not None and case["ratio"]["median"] < require
    ]


def micro_table(record: dict[str, Any]) -> Table:
    """Returns the table that ends the benchmark."""
    title = f"{record['benchmark']}, {record['ranks']} ranks, {record['dtype']}"
    caption = (
        "median and quartiles per reduction on the slowest rank; ratio above 1: ringtune is faster (95 % interval)"
    )
    table = Table(title=title, caption=caption)
    table.add_column("", overflow="fold")
    contenders = list(record["cases"][0]["times"])
    for name in contenders:
        table.add_column(name, justify="right", style="bold" if name == SUBJECT else None, no_wrap=True)
    table.add_column("GB/s", justify="right", no_wrap=True)
    if len(contenders) > 1:
        table.add_column("to the best peer", justify="right", no_wrap=True)
    for case in record["cases"]:
        cells = [_spread(case["times"][name]) for name in contenders]
        speed = case["bytes"] / case["times"][SUBJECT]["median"]
        ratio = case["ratio"]
        tail = [f"{ratio['median']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]"] if ratio else []
        table.add_row(case["label"], *cells, f"{speed:.3g}", *tail)
    return table


def _spread(times: dict[str, Any]) -> str:
    unit_ns, unit = duration_unit(times["median"])
    median, low, high = (f"{times[key] / unit_ns:.3g}" for key in ("median", "low", "high"))
    return f"{median} [{low}, {high}] {unit}"


def _case_line(case: Case, times_ns: dict[str, list[float]]) -> str:
    medians = {name: quartiles(values) for name, values in times_ns.items()}
    return f"{case.label}: " + ", ".join(f"{name} {format_duration(value.median)}" for name, value in medians.items())


def allreduce_cases(sizes_bytes: Sequence[int]) -> list[Case]:
    """Returns one case per size, a single tensor each."""
    return [Case(format_bytes(size_bytes), (size_bytes,)) for size_bytes in sizes_bytes]
