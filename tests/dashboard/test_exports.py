"""A run's steps for other tools: the values, what each library reads back, and what is said without it."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from ringtune import layout
from ringtune.dashboard import cli
from ringtune.dashboard.data import steps
from ringtune.dashboard.exports import METRICS, TOOLS, export, series
from ringtune.errors import RingtuneError, UsageError
from ringtune.timeline.synthetic.generate import Schedule
from tests.timeline.generated_run import generate_run

MS = 10**6


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return generate_run(tmp_path, "x", Schedule(ranks=3, steps=6, late_rank=2), tuning=False, scaling=False)


def logs(*ranks: list[tuple[int, int]]) -> steps.Steps:
    """Step logs of ranks with these durations and blocked times in ms, from step 0 on."""
    tables = []
    for rank, own in enumerate(ranks):
        ends = np.cumsum([wall for wall, _ in own]).tolist()
        rows = [
            {"step": n, "begin_ns": (end - wall) * MS, "end_ns": end * MS, "wait_ns": wait * MS}
            for n, (end, (wall, wait)) in enumerate(zip(ends, own, strict=True))
        ]
        tables.append(steps.rank_steps(rank, rows))
    return steps.Steps(tuple(tables))


def test_waiting_for_the_late_rank_is_apart_from_what_all_are_blocked_for() -> None:
    found = series(logs([(99, 9), (10, 4), (10, 1)], [(99, 9), (12, 1), (10, 1), (10, 1)]), created_unix_ns=5)
    assert found.step.tolist() == [1, 2]  # not the first, and none that a rank has not ended
    assert found.step_ns.tolist() == [12 * MS, 10 * MS]
    assert (found.exposed_ns.tolist(), found.waiting_ns.tolist()) == ([1 * MS, 1 * MS], [1.5 * MS, 0])
    assert found.efficiency.tolist() == pytest.approx([1 - 5 / 22, 0.9])
    assert found.at_unix_ns.tolist() == [5 + 109 * MS, 5 + 119 * MS]
    assert next(found.rows()) == (
        1,
        5 + 109 * MS,
        dict(zip(METRICS, (12, 1, 1.5, pytest.approx(17 / 22)), strict=True)),
    )


@pytest.mark.parametrize("table", [logs(), logs([(9, 1)]), logs([(9, 1), (9, 1)], [(9, 1)])])
def test_a_run_without_steps_is_told(table: steps.Steps) -> None:
    with pytest.raises(UsageError, match="nothing to export"):
        series(table)


def test_a_step_without_length_is_a_number() -> None:
    found = series(logs([(9, 1), (0, 0)]))
    assert not math.isnan(found.efficiency[0])


@pytest.mark.parametrize("tool", TOOLS)
def test_a_missing_library_names_the_extra(
    tool: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [one for one in sys.modules if one.partition(".")[0] == tool]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, tool, None)
    with pytest.raises(RingtuneError, match=rf"pip install 'ringtune\[{tool}\]'"):
        export(run, tool, tmp_path / "out")


def test_a_folder_that_is_no_run_is_told(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli.report, [str(tmp_path / "none"), "--tensorboard", str(tmp_path / "out")])
    assert isinstance(done.exception, UsageError) and "no such run folder" in str(done.exception)


def test_tensorboard_reads_back_every_step(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the optional extra ringtune[tensorboard] is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    done = CliRunner().invoke(cli.report, [str(run), "--tensorboard", str(tmp_path / "out")])
    assert done.exception is None and "5 steps for tensorboard" in done.output
    read = EventAccumulator(str(tmp_path / "out" / run.name))
    read.Reload()
    wanted = series(steps.StepReader(run).read())
    assert set(METRICS) <= set(read.Tags()["scalars"])
    told = [(one.step, one.value) for one in read.Scalars("ringtune/step_ms")]
    assert told == [(int(n), pytest.approx(ns / MS)) for n, ns in zip(wanted.step, wanted.step_ns, strict=True)]
    assert layout.run_file(run).exists()


def test_mlflow_reads_back_every_step(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="the optional extra ringtune[mlflow] is not installed")
    assert export(run, "mlflow", tmp_path / "out") == 5
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=(tmp_path / "out").as_uri())
    experiment = client.get_experiment_by_name("ringtune")
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.data.params["ranks"] == "3"
    told = [one.value for one in client.get_metric_history(found.info.run_id, "ringtune/efficiency")]
    assert told == pytest.approx(series(steps.StepReader(run).read()).efficiency.tolist())


def test_wandb_writes_an_offline_run(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="the optional extra ringtune[wandb] is not installed")
    assert export(run, "wandb", tmp_path / "out") == 5
    assert [path.suffix for path in (tmp_path / "out").glob("wandb/offline-run-*/run-*.wandb")] == [".wandb"]
