"""`ringtune bench allreduce --learn FILE`: times every algorithm by size on the job's links and writes the table.

The table holds for the number of ranks that was measured and fewer; `RINGTUNE_ALGORITHM_TABLE=FILE` uses it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ringtune.algorithms import Rule, dump_table
from ringtune.benchmarks.comm.config import LearnRun
from ringtune.benchmarks.harness.jobs import WorkerJob, run_worker
from ringtune.errors import RingtuneError, UsageError
from ringtune.output_file import write_output
from ringtune.timeline.units import bytes_text, time_text

# An algorithm must be so much faster than the one of the next larger size to take its place.
_GAIN = 1.03
_MEMORY_ONLY = (
    "all ranks share memory, where there is no choice of algorithm: give hosts with -H, or set RINGTUNE_TRANSPORT=tcp "
    "to learn for TCP between processes of this host"
)


@dataclass(frozen=True)
class LearnRequest:
    """What the user asked for.

    Args:
        ranks: ranks of the job.
        hosts: as for `ringtune run -H`; None for this host.
        sizes_bytes: tensor sizes.
        seconds: measured per size and algorithm.
        file: where the table goes.
    """

    ranks: int
    hosts: str | None
    sizes_bytes: Sequence[int]
    seconds: float
    file: Path


def run_learn(request: LearnRequest, console: Console) -> None:
    """Measures, prints the times and writes the table.

    Raises:
        UsageError: there is nothing to choose on these links.
        RingtuneError: the job failed, or the file cannot be written.
    """
    if request.ranks == 1:
        raise UsageError("--learn needs at least two ranks; see -np")
    medians: dict[int, Mapping[str, float]] = {}
    classes: list[str] = []

    def on_event(event: dict[str, Any]) -> None:
        if event["event"] == "links":
            classes.append(event["links"])
        elif event["event"] == "size":
            medians[event["bytes"]] = event["median_ns"]
            console.print(f"{bytes_text(event['bytes'])}: {_fastest(event['median_ns'])}")

    run = LearnRun(sorted(request.sizes_bytes), request.seconds)
    run_worker(WorkerJob("comm.learn_worker", run, request.ranks, request.hosts, 1), on_event)
    if classes == ["memory"]:
        raise UsageError(_MEMORY_ONLY)
    rules = rules_from(medians, classes[0], request.ranks)
    console.print(learn_table(medians))
    try:
        write_output(request.file, dump_table(rules).encode())
    except OSError as error:
        raise RingtuneError(f"cannot write {request.file}: {error.strerror}") from None
    console.print(f"table: {request.file} (use it with RINGTUNE_ALGORITHM_TABLE)", soft_wrap=True)


def rules_from(medians: Mapping[int, Mapping[str, float]], links: str, ranks: int) -> list[Rule]:
    """Returns the table that takes the fastest algorithm at every size.

    Between two sizes with different algorithms the border is their geometric mean. Going down from the largest size,
    the algorithm only changes for one that is clearly faster, so that noise makes no rules.

    Args:
        medians: bytes -> algorithm -> time; the same algorithms for every size.
        links: class of the links, one of `ringtune.algorithms.LINKS`.
        ranks: up to how many ranks the rules hold.
    """
    sizes = sorted(medians, reverse=True)
    chosen = min(medians[sizes[0]], key=medians[sizes[0]].__getitem__)
    rules = [Rule(links, ranks, 0, chosen)]
    for larger, size in pairwise(sizes):
        times = medians[size]
        best = min(times, key=times.__getitem__)
        if times[best] * _GAIN < times[chosen]:
            chosen = best
            rules.append(Rule(links, ranks, math.isqrt(larger * size), chosen))
    return rules[::-1]


def learn_table(medians: Mapping[int, Mapping[str, float]]) -> Table:
    """Returns the measured times by size and algorithm."""
    table = Table(title="allreduce by algorithm", caption="median on the slowest rank")
    table.add_column("", no_wrap=True)
    for name in next(iter(medians.values())):
        table.add_column(name, justify="right")
    for size_bytes in sorted(medians):
        table.add_row(bytes_text(size_bytes), *(time_text(time) for time in medians[size_bytes].values()))
    return table


def _fastest(times: Mapping[str, float]) -> str:
    name = min(times, key=times.__getitem__)
    return f"{name} {time_text(times[name])}"
