"""`ringtune.spark` on a standalone cluster: two workers with an executor each, and an executor that is killed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ringtune.errors import RankFailed
from tests.engines import cases

pytest.importorskip("pyspark", reason="pyspark is not installed; `make test-engines` makes an environment")
if shutil.which("java") is None:
    pytest.skip("Spark needs Java (Debian: openjdk-17-jre-headless)", allow_module_level=True)

import ringtune.spark as spark
from tests.engines.spark_standalone import Standalone
from tests.engines.test_cluster_spark import connect, disconnect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
START_S = 120.0
"""An executor that was killed is started again by its worker, within seconds where the machine is quiet."""


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    cluster = Standalone(tmp_path_factory.mktemp("standalone"), 2)
    try:
        found = connect(cluster.master, tmp_path_factory.mktemp("spark"))
        yield found
        disconnect(found)
    finally:
        cluster.close()


def test_training_reaches_the_loss_of_one_process(context: Any, alone: float) -> None:
    found = spark.run(cases.train, num_proc=2, start_timeout=START_S)
    assert [one["rank"] for one in found] == [0, 1] and len({one["pid"] for one in found}) == 2
    assert [one["local_size"] for one in found] == [2, 2]  # two executors of two workers, and one machine
    assert found[0]["loss"] == found[1]["loss"] == pytest.approx(alone, rel=1e-9)


def test_the_timeline_of_both_executors_is_merged(context: Any, tmp_path: Path) -> None:
    trace, run = tmp_path / "trace.json", tmp_path / "run"
    env = {"RINGTUNE_TIMELINE": str(trace), "RINGTUNE_RUN_DIR": str(run)}
    spark.run(cases.train, num_proc=2, env=env, start_timeout=START_S)
    cases.merged(trace)
    cases.seen_in_the_dashboard(run)


def test_a_killed_executor_is_named_on_the_others_and_comes_back(
    context: Any,
    tmp_path: Path,
    text_of: Callable[[Path], str],
    noticed: Callable[[Path], None],
) -> None:
    with pytest.raises(RankFailed, match="a process of the job ended without a result"):
        spark.run(cases.die_on, args=(1, str(tmp_path), True), num_proc=2, start_timeout=START_S)
    assert "PeerLost: rank 1" in text_of(tmp_path / "error-0")
    noticed(tmp_path)
    assert len(spark.run(cases.place, num_proc=2, start_timeout=START_S)) == 2


def test_spark_starts_again_from_the_last_commit(context: Any, tmp_path: Path, alone: float) -> None:
    found = spark.run_elastic(
        cases.train_elastically,
        args=(str(tmp_path), 7),
        kwargs={"executor": True},
        num_proc=2,
        start_timeout=START_S,
        elastic_timeout=START_S,
    )
    assert found[0]["loss"] == found[1]["loss"] == pytest.approx(alone, rel=1e-9)
    assert (tmp_path / "starts").read_text().splitlines() == ["0 2", "7 2"]
    assert "PeerLost" in (tmp_path / "error-0").read_text()
