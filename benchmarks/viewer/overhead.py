"""`ringtune bench trace`: the cost of recording a timeline, per step."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Table

from ringtune import layout, runfolder
from ringtune.benchmarks.harness.jobs import WorkerJob, run_worker
from ringtune.benchmarks.harness.progress import open_console
from ringtune.benchmarks.harness.statistics import median_interval
from ringtune.benchmarks.training.profiles import load_profile
from ringtune.benchmarks.viewer.config import TraceRun
from ringtune.errors import RingtuneError, UsageError
from ringtune.timeline.units import bytes_text, time_text

PROFILES = ("resnet50", "2000x4KiB")


@click.command()
@click.option("-np", "--num-proc", type=click.IntRange(min=1), default=2, show_default=True, help="Ranks.")
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    default=PROFILES,
    show_default=True,
    help="As for `ringtune bench gradients`; may be repeated.",
)
@click.option("--ddp", is_flag=True, help="Steps of DDP over Gloo, with its models, as `ringtune record` records them.")
@click.option("--rounds", type=click.IntRange(min=2), default=80, show_default=True, help="Bursts of each kind.")
@click.option(
    "--seconds", type=click.FloatRange(min=0, min_open=True), default=0.05, show_default=True, help="Time of a burst."
)
@click.option("--require", metavar="PERCENTS", help="Exit 1 unless all of each profile's interval is below, as in 1,3.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the record to this file.")
def trace(**options: Any) -> None:
    """Time of a step with the timeline on, over the same step with it off, in turns within one job."""
    profiles = [load_profile(text) for text in options["profiles"]]
    limits = parse_limits(options["require"], len(profiles))
    models = [profile.name for profile in profiles] if options["ddp"] else []
    sizes = [list(profile.sizes_bytes) for profile in profiles]
    run = TraceRun(sizes, options["rounds"], options["seconds"], models)
    rounds: list[list[dict[str, float]]] = [[] for _ in profiles]
    counts = Counter[str]()
    console = open_console()

    def on_event(event: dict[str, Any]) -> None:
        rounds[event["case"]].append(event["times_ns"])
        counts.update({key: event[key] for key in ("recorded", "dropped")})

    run_worker(WorkerJob("viewer.overhead_worker", run, options["num_proc"], None, 1), on_event)
    kind = "DDP, " if models else ""
    cases = [
        trace_case(
            f"{kind}{profile.name}: {len(profile.sizes_bytes)} tensors, {bytes_text(profile.total_bytes)}", times
        )
        for profile, times in zip(profiles, rounds, strict=True)
    ]
    record = {
        "format": layout.FORMAT,
        "benchmark": "trace",
        "command": ["ringtune", *sys.argv[1:]],
        "ranks": options["num_proc"],
        "created_unix_ns": time.time_ns(),
        "spans": counts["recorded"],
        "dropped": counts["dropped"],
        "cases": cases,
    }
    console.print(trace_table(record))
    if options["json_file"] is not None:
        runfolder.write_json(options["json_file"], record)
    missed = [
        f"{case['label']}: {_percent(case['cost'])}, the whole interval below {limit:g} % wanted"
        for case, limit in zip(cases, limits, strict=True)
        if case["cost"]["high"] - 1 > limit / 100
    ]
    if missed:
        raise RingtuneError("that recording costs as little as wanted is not shown:\n" + "\n".join(missed))


def parse_limits(text: str | None, count: int) -> list[float]:
    """Returns one limit in percent a profile; no limit where none is given.

    Raises:
        UsageError: not as many numbers as profiles.
    """
    if text is None:
        return [float("inf")] * count
    try:
        limits = [float(word) for word in text.split(",")]
    except ValueError:
        raise UsageError(f"--require {text!r}: expected percents, one a profile, as in 1,3") from None
    if len(limits) != count:
        raise UsageError(f"--require {text!r}: {len(limits)} limits for {count} profiles")
    return limits


def trace_case(label: str, rounds: list[dict[str, float]]) -> dict[str, Any]:
    """Returns what the rounds of one profile say: on over the mean of the two offs of its round, and off over off."""
    columns = {kind: [times[kind] for times in rounds] for kind in ("off", "on", "again")}
    off = [(first + second) / 2 for first, second in zip(columns["off"], columns["again"], strict=True)]
    return {
        "label": label,
        "off_ns": float(np.median(off)),
        "cost": _paired(columns["on"], off),
        "noise": _paired(columns["again"], columns["off"]),
        "samples": columns,
    }


def _paired(above: list[float], below: list[float]) -> dict[str, float]:
    """Returns the median of the rounds' ratios: what slows a whole round down is in both and falls out."""
    return median_interval(np.array(above) / np.array(below)).as_dict()


def trace_table(record: dict[str, Any]) -> Table:
    """Returns the table that ends the benchmark."""
    caption = (
        f"medians, 95 % intervals over rounds; rank 0 recorded {record['spans']} spans, {record['dropped']} dropped; "
        "'off over off' shows the noise"
    )
    table = Table(title=f"cost of the timeline, {record['ranks']} ranks", caption=caption)
    table.add_column("", overflow="fold")
    for title in ("a step, off", "on over off", "off over off"):
        table.add_column(title, justify="right", no_wrap=True)
    for case in record["cases"]:
        table.add_row(case["label"], time_text(case["off_ns"]), _percent(case["cost"]), _percent(case["noise"]))
    return table


def _percent(ratio: dict[str, float]) -> str:
    middle, low, high = (100 * (ratio[key] - 1) for key in ("median", "low", "high"))
    return f"{middle:+.2f} % [{low:+.2f}, {high:+.2f}]"
