"""`ringtune bench predict`: what `ringtune predict` says beside what jobs then measure.

Jobs play a profile's gradients (`workers/replayed.py`) over network namespaces with shaped links. The model sees the
timeline of one job only: two hosts of one rank, one rate, one setting. Then other settings, sizes, rates and numbers
of ranks are predicted and measured, all of them in turn for some rounds.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from ringtune import layout, runfolder
from ringtune.benchmarks import network, published
from ringtune.benchmarks.jobs import thread_variables
from ringtune.benchmarks.progress import open_console
from ringtune.errors import RingtuneError, UsageError
from ringtune.timeline import load, open_run
from ringtune.tuner.model.calibrate import Model, calibrate
from ringtune.tuner.model.questions import Answer, Change, ask
from ringtune.tuner.model.workload import Workload

_STORE_PORT = 29480
_WORKER = "ringtune.benchmarks.workers.replayed"
_JOB_SECONDS = 120
_SKIPPED_STEPS = 8
"""Until the runtime follows its plan."""


@dataclass(frozen=True)
class Case:
    """A job to predict and to measure.

    Args:
        label: for tables.
        hosts: network namespaces.
        slots: ranks in each.
        rate: of their links, as `network.parse_rate` reads it.
        work: the step it plays.
        variables: of the environment, beside the job's own.
        knobs: what these variables set.
    """

    label: str
    hosts: int
    slots: int
    rate: str
    work: Workload
    variables: dict[str, str] = field(default_factory=dict)
    knobs: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A prediction beside the medians of its jobs' steps, one a round, in ns."""

    case: Case
    answer: Answer
    measured_ns: tuple[float, ...]

    @property
    def error(self) -> float:
        """Predicted over the median measured, less 1."""
        return self.answer.step_ns.value / statistics.median(self.measured_ns) - 1.0


def cases(work: Workload, other: Workload, rate: str) -> list[Case]:
    """What is predicted: nothing of it was seen in calibration, which is two hosts at `rate` with `work`."""
    small = {"RINGTUNE_FUSION_THRESHOLD": str(1 << 20)}
    base = Case("calibrated: 2 hosts", 2, 1, rate, work)
    half = f"{network.rate_number(rate) / 2 / 1e6:g}mbit"
    return [
        base,
        replace(base, label="4 hosts", hosts=4),
        replace(base, label="8 hosts", hosts=8),
        replace(base, label="2 hosts of 2 ranks", slots=2),
        replace(base, label=f"2 hosts at {half}", rate=half),
        replace(base, label="fusion 1 MiB", variables=small, knobs={"fusion_bytes": 1 << 20}),
        replace(base, label="4 hosts, fusion 1 MiB", hosts=4, variables=small, knobs={"fusion_bytes": 1 << 20}),
        replace(base, label=f"{other.name}, 2 hosts", work=other),
        replace(base, label=f"{other.name}, 4 hosts", work=other, hosts=4),
    ]


def predicted(model: Model, case: Case, rate: str) -> Answer:
    """What the model calibrated at `rate` says of `case`."""
    scale = network.rate_number(case.rate) / network.rate_number(rate)
    same = len(case.work.gradients) == len(model.work.gradients)
    seen = model if same else replace(model, work=case.work, draws=tuple((case.work, link) for _, link in model.draws))
    bandwidth = model.cluster.network.bytes_per_s * scale
    change = Change(case.label, ranks=case.hosts * case.slots, slots=case.slots, knobs=case.knobs, bandwidth=bandwidth)
    return ask(seen, change)


def run_prediction(profiles: Sequence[Workload], rate: str, plan: tuple[int, int], console: Console) -> dict[str, Any]:
    """Calibrates, predicts, measures and prints; returns the record.

    Args:
        profiles: the one that is calibrated, and another.
        rate: of the links.
        plan: rounds, and steps of each job.
        console: for progress and the table.

    Raises:
        UsageError: root or a program is missing.
        RingtuneError: a rank failed.
    """
    lacking = network.missing()
    if lacking is not None:
        raise UsageError(f"'ringtune bench predict' makes hosts of network namespaces and needs {lacking}")
    rounds, steps = plan
    wanted = cases(profiles[0], profiles[1], rate)
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder)
        model = calibrate(load(play(wanted[0], steps, runs / "calibration", record=True)), profiles[0].name)
        measured: list[list[float]] = [[] for _ in wanted]
        for number in range(rounds):
            for index, case in enumerate(wanted):
                console.print(f"round {number + 1} of {rounds}: {case.label}")
                run = play(case, steps, runs / f"{number}-{index}", record=False)
                measured[index].append(_step_ns(run))
    rows = [Row(case, predicted(model, case, rate), tuple(times)) for case, times in zip(wanted, measured, strict=True)]
    console.print(_table(rows, f"{profiles[0].name} at {rate}, {rounds} rounds of {steps} steps"))
    return _record(rows, rate)


def play(case: Case, steps: int, run: Path, *, record: bool) -> Path:
    """Runs the case as a job, with its timeline or without; returns its run folder.

    Raises:
        RingtuneError: a rank failed, or the job did not end.
    """
    run.mkdir(parents=True)
    workload = run / "workload.json"
    workload.write_text(json.dumps(_document(case.work)))
    with network.hosts(case.hosts, network.parse_rate(case.rate)) as (_, hosts):
        ranks = case.hosts * case.slots
        processes = []
        for rank in range(ranks):
            host = hosts[rank // case.slots]
            variables = {
                "RINGTUNE_RANK": str(rank),
                "RINGTUNE_SIZE": str(ranks),
                "RINGTUNE_STORE": f"{hosts[0].address}:{_STORE_PORT}",
                "RINGTUNE_HOSTNAME": host.namespace,
                "RINGTUNE_INTERFACE_ADDRESS": host.address,
                "RINGTUNE_RUN_DIR": str(run),
                **({"RINGTUNE_TIMELINE": str(run / "timeline.json")} if record else {}),
                **case.variables,
            }
            settings = [f"{name}={value}" for name, value in variables.items()]
            command = host.command(["env", *settings, sys.executable, "-m", _WORKER, str(workload), str(steps)])
            environ = {**os.environ, **thread_variables(1)}
            processes.append(subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
        _finish(processes, case.label)
    return run


def _finish(processes: list[subprocess.Popen[bytes]], label: str) -> None:
    deadline = time.monotonic() + _JOB_SECONDS
    try:
        for rank, process in enumerate(processes):
            said, _ = process.communicate(timeout=max(deadline - time.monotonic(), 1.0))
            if process.returncode != 0:
                raise RingtuneError(f"{label}: rank {rank} failed: {said.decode(errors='replace').strip()[-400:]}")
    except subprocess.TimeoutExpired:
        raise RingtuneError(f"{label}: the job did not end within {_JOB_SECONDS} s") from None
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _step_ns(run: Path) -> float:
    """Median step of the run, mean over its ranks, without the first ones."""
    tables = open_run(run).steps.values()
    if not tables:
        raise RingtuneError(f"{run}: the job left no step statistics")
    return statistics.mean(float(np.median(table.wall_ns[_SKIPPED_STEPS:])) for table in tables)


def _document(work: Workload) -> dict[str, Any]:
    return {
        "ready_ns": [gradient.ready_ns for gradient in work.gradients],
        "bytes": [gradient.bytes for gradient in work.gradients],
        "backward_end_ns": work.backward_end_ns,
        "after_ns": work.after_ns,
    }


def _table(rows: list[Row], title: str) -> Table:
    table = Table(title=title)
    table.add_column("", no_wrap=True)
    for name in ("measured", "predicted", "error"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        spread = "-".join(f"{value / 1e6:.1f}" for value in (min(row.measured_ns), max(row.measured_ns)))
        table.add_row(
            row.case.label,
            f"{statistics.median(row.measured_ns) / 1e6:.1f} ms ({spread})",
            f"{row.answer.step_ns.value / 1e6:.1f} ms",
            f"{100 * row.error:+.1f} %",
        )
    errors = [abs(row.error) for row in rows[1:]]
    table.caption = f"not calibrated: mean {100 * statistics.mean(errors):.1f} %, worst {100 * max(errors):.1f} %"
    return table


def _record(rows: list[Row], rate: str) -> dict[str, Any]:
    errors = [abs(row.error) for row in rows[1:]]
    return {
        "format": layout.FORMAT,
        "benchmark": "predict",
        "command": ["ringtune", *sys.argv[1:]],
        "created_unix_ns": time.time_ns(),
        "rate": rate,
        "unit": "ns",
        "mean_error": statistics.mean(errors),
        "worst_error": max(errors),
        "cases": [
            {
                "label": row.case.label,
                "measured": list(row.measured_ns),
                "predicted": row.answer.as_dict(),
                "error": row.error,
            }
            for row in rows
        ],
    }


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--profiles", type=click.Path(path_type=Path), required=True, help="Folder of backward profiles.")
@click.option("--rate", default="500mbit", show_default=True, help="Of the links between the namespaces.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--steps", type=click.IntRange(min=16), default=40, show_default=True, help="Of each job.")
@click.option(
    "--scale", type=click.FloatRange(min=0.0, min_open=True), default=0.05, show_default=True, help="Of the bytes."
)
@click.option("--published", "against_published", is_flag=True, help="Predict Horovod's published results instead.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the record to this file.")
def predict(profiles: Path, json_file: Path | None, against_published: bool, **values: Any) -> int:
    """Predict jobs that were not seen in calibration, measure them, and print every miss."""
    console = open_console()
    if against_published:
        record = published.run_published(profiles, console)
    else:
        read = [_profile(profiles, name, values["scale"]) for name in ("resnet50", "resnet101")]
        record = run_prediction(read, values["rate"], (values["rounds"], values["steps"]), console)
    if json_file is not None:
        runfolder.write_json(json_file, record)
    return 0


def _profile(folder: Path, name: str, scale: float) -> Workload:
    """A profile with a share of its bytes, as multiples of a float32."""
    work = published.read_profile(folder, name)
    gradients = tuple(replace(one, bytes=max(4, round(one.bytes * scale) // 4 * 4)) for one in work.gradients)
    return replace(work, gradients=gradients)
