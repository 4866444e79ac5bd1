"""The command `ringtune bench engines`."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from ringtune import layout
from ringtune.benchmarks.engines.engines import ENGINES, OWN, Start, find
from ringtune.benchmarks.engines.job import GLOO, RINGTUNE
from ringtune.benchmarks.harness.options import write_record
from ringtune.benchmarks.harness.progress import Reporter, open_console, open_progress
from ringtune.benchmarks.harness.statistics import paired_ratio_interval, quartiles
from ringtune.errors import RingtuneError
from ringtune.timeline.units import time_text


@dataclass(frozen=True)
class EnginesRequest:
    """What the user asked for.

    Args:
        engines: names.
        ranks: ranks of each job.
        rounds: jobs of each way to start one.
        steps: measured steps of a job.
        width: of the model's layers.
    """

    engines: tuple[str, ...]
    ranks: int
    rounds: int
    steps: int
    width: int


@dataclass
class Samples:
    """What the jobs of one way have taken, one number a round.

    Args:
        start_s: from the call until the slowest rank has joined.
        step_ns: median step of the slowest rank.
    """

    start_s: list[float] = field(default_factory=list)
    step_ns: list[float] = field(default_factory=list)


@click.command()
@click.option("-np", "--num-proc", type=click.IntRange(min=1), default=2, show_default=True, help="Ranks of each job.")
@click.option("--engines", "names", default=",".join(ENGINES), show_default=True, help="Comma-separated.")
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Jobs of each way.")
@click.option("--steps", type=click.IntRange(min=1), default=50, show_default=True, help="Measured steps of a job.")
@click.option("--width", type=click.IntRange(min=1), default=1024, show_default=True, help="Of the model's layers.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the record to this file.")
def engines(**options: Any) -> None:
    """Start-up and step time of jobs in Spark and Ray, beside TorchDistributor and TorchTrainer with Gloo."""
    names = [word.strip() for word in options["names"].split(",") if word.strip()]
    present, absent = find(names)
    if not present:
        raise RingtuneError("; ".join(f"{name}: {reason}" for name, reason in absent.items()))
    request = EnginesRequest(tuple(present), options["num_proc"], options["rounds"], options["steps"], options["width"])
    console = open_console()
    record = run_engines(request, absent, console)
    write_record(options["json_file"], record, console)


def run_engines(request: EnginesRequest, absent: Mapping[str, str], console: Console) -> dict[str, Any]:
    """Measures, prints the table and returns the record for `--json`.

    Raises:
        RankFailed: a job of ringtune's has failed.
    """
    created_unix_ns = time.time_ns()
    found: dict[str, dict[str, Samples]] = {}
    with open_progress(console, "engines", len(request.engines) * request.rounds) as reporter:
        for name, reason in absent.items():
            reporter.say(f"absent: {name} ({reason})")
        for engine in request.engines:
            with ENGINES[engine](request.ranks) as ways:
                found[engine] = _rounds(engine, ways, request, reporter)
    record = engines_record(request, found, absent)
    console.print(engines_table(record))
    return record | {"created_unix_ns": created_unix_ns}


def _rounds(engine: str, ways: Mapping[str, Start], request: EnginesRequest, reporter: Reporter) -> dict[str, Samples]:
    """Starts the jobs in turns, so that a slow spell of the machine hits all ways; the first round is not counted."""
    found = {name: Samples() for name in ways}
    order = list(ways)
    for number in range(request.rounds + 1):
        for name in order:
            start_s, step_ns = _job(ways[name], RINGTUNE if name == OWN[engine] else GLOO, request)
            if number:  # the first round imports modules into the engine's processes
                found[name].start_s.append(start_s)
                found[name].step_ns.append(step_ns)
        order = order[1:] + order[:1]
        if number:
            reporter.advance(f"{engine}: round {number}")
    return found


def _job(start: Start, kind: str, request: EnginesRequest) -> tuple[float, float]:
    """Runs one job; returns seconds until its slowest rank had joined, and the slowest rank's median step (ns)."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.time()  # ranks are other processes: the wall clock is what they share
        start(kind, folder, request.steps, request.width)
        ranks = [json.loads(file.read_text(encoding="utf-8")) for file in Path(folder).glob("rank-*.json")]
    if len(ranks) != request.ranks:
        raise RingtuneError(f"{len(ranks)} of {request.ranks} ranks have left their times")
    return (
        max(one["ready_unix_s"] for one in ranks) - began,
        max(quartiles(one["step_ns"]).median for one in ranks),
    )


def engines_record(
    request: EnginesRequest, found: Mapping[str, Mapping[str, Samples]], absent: Mapping[str, str]
) -> dict[str, Any]:
    """Returns the record of what was measured: seconds to start, nanoseconds a step, by engine and way."""
    return {
        "format": layout.FORMAT,
        "benchmark": "engines",
        "command": ["ringtune", *sys.argv[1:]],
        "ranks": request.ranks,
        "rounds": request.rounds,
        "steps": request.steps,
        "width": request.width,
        "absent": dict(absent),
        "engines": {engine: _engine_record(engine, ways) for engine, ways in found.items()},
    }


def _engine_record(engine: str, ways: Mapping[str, Samples]) -> dict[str, Any]:
    ours = ways[OWN[engine]]
    return {
        name: {
            "start_s": {**quartiles(one.start_s).as_dict(), "samples": one.start_s},
            "step_ns": {**quartiles(one.step_ns).as_dict(), "samples": one.step_ns},
            # Above 1: ringtune is that many times faster.
            "start_ratio": paired_ratio_interval(one.start_s, ours.start_s).as_dict() if one is not ours else None,
            "step_ratio": paired_ratio_interval(one.step_ns, ours.step_ns).as_dict() if one is not ours else None,
        }
        for name, one in ways.items()
    }


def engines_table(record: dict[str, Any]) -> Table:
    """Returns the table that ends the benchmark."""
    caption = "median and quartiles of the jobs; ratios above 1: ringtune is faster (95 % interval)"
    title = f"jobs in engines, {record['ranks']} ranks, 3 layers of {record['width']}"
    table = Table(title=title, caption=caption, show_lines=True)
    for column in ("", "start", "to ringtune's", "step", "to ringtune's"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for engine, ways in record["engines"].items():
        for name, one in ways.items():
            start = [time_text(one["start_s"][key] * 1e9) for key in ("median", "low", "high")]
            step = [time_text(one["step_ns"][key]) for key in ("median", "low", "high")]
            table.add_row(
                f"{engine}: {name}",
                f"{start[0]} \\[{start[1]}, {start[2]}]",
                _ratio_text(one["start_ratio"]),
                f"{step[0]} \\[{step[1]}, {step[2]}]",
                _ratio_text(one["step_ratio"]),
            )
    return table


def _ratio_text(ratio: Mapping[str, float] | None) -> str:
    return f"{ratio['median']:.2f} \\[{ratio['low']:.2f}, {ratio['high']:.2f}]" if ratio else ""
