"""A run's steps for other tools: event files of TensorBoard, a store of MLflow, an offline run of Weights & Biases.

Each is written by its own library, which is imported only here; nothing is sent anywhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ringtune.dashboard.data.run_figures import Floats, blocked
from ringtune.dashboard.data.runs import RunInfo, read_run
from ringtune.dashboard.data.step_totals import common_steps
from ringtune.dashboard.data.steps import StepReader, Steps
from ringtune.errors import RingtuneError, UsageError
from ringtune.timeline.spans import Ints

METRICS = ("ringtune/step_ms", "ringtune/exposed_ms", "ringtune/waiting_ms", "ringtune/efficiency")
"""Names under which the tools show what `StepSeries` holds; times in milliseconds."""
_BATCH = 250
"""Steps in a request to MLflow, which takes a thousand numbers at once."""


@dataclass(frozen=True)
class StepSeries:
    """What every step of a run cost, of the steps that all ranks have ended; arrays of one length.

    Attributes:
        step: Numbers of the steps, the first left out.
        at_unix_ns: When the step ended, as far as the run says when it began.
        step_ns: Its duration on the slowest rank.
        exposed_ns: How long the rank that was blocked least was blocked: communication that hid behind nothing.
        waiting_ns: How much longer ranks were blocked on average: for a late rank.
        efficiency: Share of the ranks' time in which they were not blocked.
    """

    step: Ints
    at_unix_ns: Ints
    step_ns: Floats
    exposed_ns: Floats
    waiting_ns: Floats
    efficiency: Floats

    def rows(self) -> Iterator[tuple[int, int, dict[str, float]]]:
        """Yield number, moment (ns since 1970) and the values by their names in `METRICS`."""
        columns = (self.step_ns / 1e6, self.exposed_ns / 1e6, self.waiting_ns / 1e6, self.efficiency)
        for step, at_ns, *values in zip(self.step.tolist(), self.at_unix_ns.tolist(), *columns, strict=True):
            yield step, at_ns, dict(zip(METRICS, map(float, values), strict=True))


def series(table: Steps, created_unix_ns: int = 0) -> StepSeries:
    """Return the series of the steps that all ranks have.

    Args:
        table: The step logs.
        created_unix_ns: When the run began.

    Raises:
        UsageError: There is no such step.
    """
    ranks = [rank for rank in table.ranks if len(rank)]
    common = common_steps([rank.step for rank in ranks])
    common = common[common > 0]
    if not len(common):
        raise UsageError("the run has no steps behind the first one that all ranks have ended: nothing to export")
    rows = [np.searchsorted(rank.step, common) for rank in ranks]
    wall = np.array([rank.wall_ns[row] for rank, row in zip(ranks, rows, strict=True)], dtype=np.float64)
    wait = np.array([rank.wait_ns[row] for rank, row in zip(ranks, rows, strict=True)], dtype=np.float64)
    wait = np.clip(wait, 0, wall)
    exposed, waiting = blocked(wait)
    total = wall.sum(axis=0)
    efficiency = 1 - np.divide(wait.sum(axis=0), total, out=np.zeros_like(total), where=total > 0)
    at_ns = created_unix_ns + ranks[0].end_ns[rows[0]] - int(ranks[0].begin_ns[0])
    return StepSeries(common, at_ns, wall.max(axis=0), exposed, waiting, efficiency)


def export(run: Path, tool: str, target: Path) -> int:
    """Write the steps of a run for another tool and return their number.

    Args:
        run: The run folder.
        tool: One of `TOOLS`.
        target: Folder that receives the files.

    Raises:
        UsageError: There is no such run, or it has no steps.
        RingtuneError: The tool's library is not installed, or the folder cannot be written.
    """
    if not run.is_dir():
        raise UsageError(f"{run}: no such run folder. Give one of the folders under runs/")
    info = read_run(run.resolve().name, run.resolve())
    found = series(StepReader(info.path).read(), info.created_unix_ns)
    try:
        target.mkdir(parents=True, exist_ok=True)
        TOOLS[tool](info, found, target)
    except ImportError as error:
        raise RingtuneError(
            f"the export to {tool} needs its package, which is not installed ({error}): pip install 'ringtune[{tool}]'"
        ) from None
    except OSError as error:
        raise RingtuneError(f"{target}: cannot be written: {error.strerror or error}") from None
    return len(found.step)


def _tensorboard(info: RunInfo, found: StepSeries, target: Path) -> None:
    """Write one event file into a folder of the run's own, which TensorBoard shows under its name."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(target / info.path.name))
    for step, at_ns, values in found.rows():
        summary = Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()])
        writer.add_event(Event(wall_time=at_ns / 1e9, step=step, summary=summary))
    writer.close()


def _mlflow(info: RunInfo, found: StepSeries, target: Path) -> None:
    """Write a run of the experiment "ringtune" into a store of files, which `mlflow ui` shows."""
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # newer versions ask for a word before they use one
    from mlflow.entities import Metric, Param
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=target.resolve().as_uri())
    known = client.get_experiment_by_name("ringtune")
    place = known.experiment_id if known else client.create_experiment("ringtune")
    run_id = client.create_run(place, run_name=info.path.name, start_time=info.created_unix_ns // 10**6).info.run_id
    client.log_batch(run_id, params=[Param(name, value[:500]) for name, value in list(_facts(info).items())[:100]])
    batch: list[Any] = []
    for step, at_ns, values in found.rows():
        batch += [Metric(name, value, at_ns // 10**6, step) for name, value in values.items()]
        if len(batch) >= _BATCH * len(METRICS):
            client.log_batch(run_id, metrics=batch)
            batch = []
    client.log_batch(run_id, metrics=batch)
    client.set_terminated(run_id, end_time=(info.ended_unix_ns or int(found.at_unix_ns[-1])) // 10**6)


def _wandb(info: RunInfo, found: StepSeries, target: Path) -> None:
    """Write an offline run of the project "ringtune", which `wandb sync` uploads if somebody wants that."""
    import wandb

    settings = wandb.Settings(silent=True, console="off", disable_git=True, x_disable_stats=True, x_disable_meta=True)
    run = wandb.init(
        project="ringtune", name=info.path.name, dir=str(target), mode="offline", config=_facts(info), settings=settings
    )
    for step, _, values in found.rows():
        run.log(values, step=step)
    run.finish()
    wandb.teardown()  # the library's service would live as long as this process


def _facts(info: RunInfo) -> dict[str, str]:
    """Return what the run was started with, by names that all tools take."""
    knobs = {name: str(value) for name, value in info.knobs.items()}
    facts = {"ranks": str(info.ranks), "command": " ".join(info.command), "tags": ", ".join(info.tags), **knobs}
    return {name: value for name, value in facts.items() if value}


TOOLS: dict[str, Callable[[RunInfo, StepSeries, Path], None]] = {
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
    "wandb": _wandb,
}
"""What writes for which tool; each is also the name of the extra that installs its library."""
