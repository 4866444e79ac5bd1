"""`ringtune bench resnet`: scaling efficiency of real models on synthetic images.

Source: the method of Horovod's `pytorch_synthetic_benchmark.py` (warm-up batches, then iterations of several batches on
one fixed random batch per rank), with medians and bootstrap intervals instead of mean and standard deviation.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ringtune import layout, runfolder
from ringtune.benchmarks.harness.environments import SUBJECT
from ringtune.benchmarks.harness.jobs import WorkerJob, run_worker
from ringtune.benchmarks.harness.peers import Selection
from ringtune.benchmarks.harness.progress import Reporter, open_progress
from ringtune.benchmarks.harness.statistics import share_text
from ringtune.benchmarks.training.config import TrainingRun
from ringtune.benchmarks.training.records import RankCountSamples, Workload, scaling_record
from ringtune.benchmarks.training.vision import check_model
from ringtune.errors import RingtuneError
from ringtune.tuner.scoring import Interval

UNIT = "images/s"
# Per participant, per rank count.
Results = dict[str, dict[int, RankCountSamples]]


@dataclass(frozen=True)
class ScalingRequest:
    """What the user asked for.

    Args:
        ranks: rank counts, ascending.
        hosts: as for `ringtune run -H`; None for this host.
        rounds: how often the rank counts are launched in turn; samples of all rounds count.
        run: what each rank does.
        peers: who takes part.
    """

    ranks: Sequence[int]
    hosts: str | None
    rounds: int
    run: TrainingRun
    peers: Selection


def run_resnet(request: ScalingRequest, console: Console) -> dict[str, Any]:
    """Measures, prints the table and returns the scaling record.

    Raises:
        UsageError: no such model.
        RingtuneError: a job failed.
    """
    check_model(request.run.task.model)
    created_unix_ns = time.time_ns()
    results: Results = {name: {} for name in request.run.contenders}
    steps = len(request.ranks) * request.rounds * len(request.run.contenders) * (request.run.iters + 1)
    with open_progress(console, request.run.task.model, steps) as reporter:
        for name, reason in request.peers.absent.items():
            reporter.say(f"absent: {name} ({reason})")
        for _ in range(request.rounds):
            for ranks in request.ranks:
                _measure(request, ranks, reporter, results)
    task = request.run.task
    record = scaling_record(
        Workload("resnet", task.model, task.batch_size, task.image_size, task.dtype, UNIT),
        {name: list(by_ranks.values()) for name, by_ranks in results.items()},
        command=["ringtune", *sys.argv[1:]],
        created_unix_ns=created_unix_ns,
    )
    record |= {
        "threads_per_rank": request.run.threads,
        "fp16_allreduce": task.fp16_allreduce,
        "device": task.device,
        "absent": dict(request.peers.absent),
    }
    console.print(scaling_table(record, results))
    return record


def store_record(run: Path, record: dict[str, Any]) -> Path:
    """Writes `record` into the run folder `run`, which is described first if it is new, and returns its path.

    Raises:
        RingtuneError: the folder cannot be written.
    """
    if not layout.is_run(run):
        name = f"bench-{record['model']}"
        runfolder.create(
            run,
            runfolder.RunRecord(
                name,
                record["command"],
                created_unix_ns=record["created_unix_ns"],
                size=max(row["ranks"] for row in record["records"]),
            ),
        )
        runfolder.finish(run, 0)
    path = layout.scaling_file(run, f"{record['benchmark']}-{record['model']}")
    runfolder.write_json(path, record)
    return path


def _measure(request: ScalingRequest, ranks: int, reporter: Reporter, results: Results) -> None:
    """Runs one job and adds its samples to `results`."""
    answer: dict[str, Any] = {}

    def on_event(event: dict[str, Any]) -> None:
        if event["event"] == "result":
            answer.update(event)
        elif event["event"] == "warm":
            reporter.advance(f"{_ranks(ranks)}, {event['contender']}: warmed up")
        elif event["event"] == "iteration":
            number = event["iteration"] + 1
            reporter.advance(
                f"{_ranks(ranks)}, {event['contender']}: iteration {number}, {event['rate']:.1f} {UNIT} per rank"
            )

    run_worker(WorkerJob("training.scaling_worker", request.run, ranks, request.hosts, request.run.threads), on_event)
    if not answer:
        raise RingtuneError(f"the training benchmark on {_ranks(ranks)} ended without a result")
    for name, per_rank in answer["rates"].items():
        entry = results[name].setdefault(ranks, RankCountSamples(ranks, answer["hosts"]))
        entry.add(per_rank)
        reporter.say(f"{_ranks(ranks)}, {name}: {_text(entry.rate)} {UNIT}")


def scaling_table(record: dict[str, Any], results: Results) -> Table:
    """Returns the table that ends the benchmark."""
    title = f"{record['model']}, batch {record['batch_size']} per rank, {record['image_size']} px, {UNIT}"
    caption = "in brackets: 95 % interval of the median; efficiency: rate per rank against the smallest rank count"
    table = Table(title=title, caption=caption)
    for heading in ("", "ranks", "all ranks", "each rank", "efficiency"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for name, by_ranks in results.items():
        base = by_ranks[min(by_ranks)]
        for ranks, entry in sorted(by_ranks.items()):
            efficiency = entry.efficiency(base)
            per_rank = " ".join(f"{rate:.2f}" for rate in entry.per_rank)
            style = "bold" if name == SUBJECT else None
            table.add_row(name, str(ranks), _text(entry.rate), per_rank, share_text(efficiency.as_dict()), style=style)
    return table


def _text(interval: Interval) -> str:
    return f"{interval.median:.2f} [{interval.low:.2f}, {interval.high:.2f}]"


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"
