"""`ringtune bench allreduce`, `gradients` and `collectives`: races of ringtune and its peers, and their results."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from ringtune import layout
from ringtune.benchmarks.harness.environments import LIMIT, SUBJECT, Setting, linked_benchmarks, start_limit
from ringtune.benchmarks.harness.peers import Selection, job_plans
from ringtune.benchmarks.harness.progress import open_progress
from ringtune.benchmarks.harness.race.exchanges import COLLECTIVES
from ringtune.benchmarks.harness.race.patterns import item_bytes
from ringtune.benchmarks.harness.races import Budget, CaseResult, Outcome, open_race
from ringtune.benchmarks.harness.statistics import paired_ratio_interval, quartiles
from ringtune.benchmarks.training.profiles import load_profile
from ringtune.errors import UsageError
from ringtune.timeline.units import bytes_text, time_text, times_in_one_unit

_COLUMN_WIDTH = 20


@dataclass(frozen=True)
class Case:
    """A row of a micro benchmark: what it is called, the sizes of its tensors in bytes, what is done with them."""

    label: str
    sizes_bytes: tuple[int, ...]
    collective: str = "allreduce"


@dataclass(frozen=True)
class MicroRequest:
    """What the user asked for.

    Args:
        benchmark: ``allreduce``, ``gradients`` or ``collectives``.
        ranks: ranks of the job.
        hosts: as for `ringtune run -H`; None for this host.
        cases: the rows.
        dtype: of all tensors.
        seconds: measured per case and contender.
        threads: of torch, per rank.
        peers: who takes part.
        device: where the tensors lie.
    """

    benchmark: str
    ranks: int
    hosts: str | None
    cases: Sequence[Case]
    dtype: str
    seconds: float
    threads: int
    peers: Selection
    device: str = "cpu"


def run_micro(request: MicroRequest, console: Console) -> dict[str, Any]:
    """Measures, prints the table and returns the record for `--json`.

    Raises:
        RingtuneError: ringtune's own job failed, a wrong result included.
    """
    created_unix_ns = time.time_ns()
    with ExitStack() as stack:
        reporter = stack.enter_context(open_progress(console, request.benchmark, len(request.cases)))
        outcome = Outcome()
        for name, reason in request.peers.absent.items():
            reporter.say(f"absent: {name} ({reason})")
        link = stack.enter_context(linked_benchmarks())
        setting = Setting(request.ranks, request.hosts, request.threads, link, device=request.device)
        plans = job_plans(request.peers, request.benchmark, setting)
        # Collectives other than sums copy different amounts, so that they have no common limit.
        if request.hosts is None and request.device == "cpu" and request.benchmark != "collectives":
            plans.append(start_limit(setting))
        race = open_race(plans, stack, outcome, reporter)
        for case in request.cases:
            task: dict[str, Any] = {
                "sizes_bytes": list(case.sizes_bytes),
                "dtype": request.dtype,
                "device": request.device,
            }
            task["collective"] = case.collective
            result = race.run_case(task, Budget(request.seconds))
            outcome.results.append(result)
            reporter.advance(_case_line(case, result))
    record = micro_record(request, outcome) | {"created_unix_ns": created_unix_ns}
    table = micro_table(record)
    if not console.is_terminal:
        # A file or a pipe has no width, and narrow columns break names and figures.
        console.width = max(console.width, _COLUMN_WIDTH * len(table.columns))
    console.print(table)
    return record


def micro_record(request: MicroRequest, outcome: Outcome) -> dict[str, Any]:
    """Returns the record of what was measured (nanoseconds per reduction, per case and contender)."""
    return {
        "format": layout.FORMAT,
        "benchmark": request.benchmark,
        "command": ["ringtune", *sys.argv[1:]],
        "ranks": request.ranks,
        "dtype": request.dtype,
        "threads_per_rank": request.threads,
        "unit": "ns",
        "about": outcome.about,
        "absent": dict(request.peers.absent),
        "failed": outcome.failed,
        "cases": [_case_record(case, result) for case, result in zip(request.cases, outcome.results, strict=True)],
    }


def _case_record(case: Case, result: CaseResult) -> dict[str, Any]:
    times_ns = result.times_ns
    medians = {name: quartiles(values).median for name, values in times_ns.items()}
    peers = [name for name in times_ns if name not in (SUBJECT, LIMIT)]
    best = min(peers, key=medians.__getitem__, default=None)
    return {
        "label": case.label,
        "tensors": len(case.sizes_bytes),
        "bytes": sum(case.sizes_bytes),
        "times": {name: {**quartiles(values).as_dict(), "samples": values} for name, values in times_ns.items()},
        "unsupported": result.unsupported,
        "best_peer": best,
        # Above 1: ringtune is that many times faster than the best peer.
        "ratio": paired_ratio_interval(times_ns[best], times_ns[SUBJECT]).as_dict() if best else None,
        # 1: as fast as every rank copying the tensors once.
        "limit_ratio": paired_ratio_interval(times_ns[LIMIT], times_ns[SUBJECT]).as_dict()
        if LIMIT in times_ns
        else None,
    }


def micro_table(record: dict[str, Any]) -> Table:
    """Returns the table that ends the benchmark."""
    title = f"{record['benchmark']}, {record['ranks']} ranks, {record['dtype']}"
    what = "call" if record["benchmark"] == "collectives" else "reduction"
    caption = f"median and quartiles per {what} on the slowest rank; ratios above 1: ringtune is faster (95 % interval)"
    table = Table(title=title, caption=caption, show_lines=True)
    table.add_column("", overflow="fold")
    contenders = list(dict.fromkeys(name for case in record["cases"] for name in case["times"]))
    for name in contenders:
        table.add_column(name, justify="right", style="bold" if name == SUBJECT else None, overflow="fold")
    ratios = {"ratio": "to the best peer", "limit_ratio": "to copy-limit"}
    ratios = {key: title for key, title in ratios.items() if any(case[key] for case in record["cases"])}
    for title in ratios.values():
        table.add_column(title, justify="right", no_wrap=True)
    for case in record["cases"]:
        cells = [_cell(case, name) for name in contenders]
        table.add_row(case["label"], *cells, *(_ratio(case[key]) for key in ratios))
    return table


def _cell(case: dict[str, Any], name: str) -> str:
    times = case["times"].get(name)
    if times is None:
        return "unsupported" if name in case["unsupported"] else "failed"
    (median, low, high), unit = times_in_one_unit(times["median"], times["low"], times["high"])
    return f"{median} {unit}\n\\[{low}, {high}]"


def micro_markdown(record: dict[str, Any]) -> str:
    """Returns the medians and ratios as a Markdown table, for documents."""
    contenders = list(dict.fromkeys(name for case in record["cases"] for name in case["times"]))
    rows = [["", *contenders, "to the best peer", "to copy-limit"]]
    rows.append(["---"] * len(rows[0]))
    for case in record["cases"]:
        cells = [_cell(case, name).partition("\n")[0] for name in contenders]
        ratios = [_ratio(case[key]).replace("\n\\", " ") for key in ("ratio", "limit_ratio")]
        rows.append([case["label"], *cells, *ratios])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _ratio(ratio: dict[str, float] | None) -> str:
    return f"{ratio['median']:.2f}\n\\[{ratio['low']:.2f}, {ratio['high']:.2f}]" if ratio else "-"


def _case_line(case: Case, result: CaseResult) -> str:
    medians = {name: quartiles(values) for name, values in result.times_ns.items()}
    words = [f"{name} {time_text(value.median)}" for name, value in medians.items()]
    words += [f"{name} unsupported ({reason})" for name, reason in result.unsupported.items()]
    return f"{case.label}: " + ", ".join(words)


def allreduce_cases(sizes_bytes: Sequence[int]) -> list[Case]:
    """Returns one case per size, a single tensor each."""
    return [Case(bytes_text(size_bytes), (size_bytes,)) for size_bytes in sizes_bytes]


def collectives_cases(names: Sequence[str], sizes_bytes: Sequence[int], ranks: int, dtype: str) -> list[Case]:
    """Returns one case per collective and size; a barrier has no size.

    Raises:
        UsageError: no such collective, or a size that the ranks cannot share evenly.
    """
    for name in names:
        if name not in COLLECTIVES:
            raise UsageError(f"unknown collective {name!r}; known: {', '.join(COLLECTIVES)}")
    for size_bytes in sizes_bytes:
        if size_bytes % (ranks * item_bytes(dtype)):
            share = f"{ranks} ranks x {item_bytes(dtype)} bytes"
            raise UsageError(f"{bytes_text(size_bytes)} cannot be shared evenly: it is no multiple of {share}")
    return [
        Case(name if name == "barrier" else f"{name} {bytes_text(size_bytes)}", (size_bytes,), name)
        for name in dict.fromkeys(names)
        for size_bytes in ([0] if name == "barrier" else sizes_bytes)
    ]


def gradients_cases(profiles: Sequence[str]) -> list[Case]:
    """Returns the cases of steps' gradients.

    Raises:
        UsageError: no such profile, or a tensor that is not a whole number of float32 elements.
    """
    cases = []
    for profile in map(load_profile, profiles):
        if any(size_bytes % item_bytes("float32") for size_bytes in profile.sizes_bytes):
            raise UsageError(f"{profile.name}: every tensor must be a whole number of float32 elements")
        label = f"{profile.name}: {len(profile.sizes_bytes)} tensors, {bytes_text(profile.total_bytes)}"
        cases.append(Case(label, profile.sizes_bytes))
    return cases
