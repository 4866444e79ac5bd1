"""`ringtune.spark.run` and `run_elastic` on real Spark: in one process of Python each, and with executors."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ringtune.errors import InvalidArgument, RankFailed, Timeout
from tests.engines import cases

pyspark = pytest.importorskip("pyspark", reason="pyspark is not installed; `make test-engines` makes an environment")
if shutil.which("java") is None:
    pytest.skip("Spark needs Java (Debian: openjdk-17-jre-headless)", allow_module_level=True)

import ringtune.spark as spark  # noqa: E402

pytestmark = pytest.mark.slow


def connect(master: str, folder: Path) -> Any:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    conf = pyspark.SparkConf().setMaster(master).setAppName("ringtune-tests")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.executor.memory": "600m",
        "spark.driver.memory": "600m",
    }.items():
        conf.set(name, value)
    context = pyspark.SparkContext(conf=conf)
    context.setLogLevel("OFF")
    return context


def disconnect(context: Any) -> None:
    """Stop the context and the Java process that belongs to it."""
    gateway = pyspark.SparkContext._gateway
    context.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(30)
    pyspark.SparkContext._gateway = pyspark.SparkContext._jvm = None


@pytest.fixture(scope="module", params=["local[2]", "local-cluster[2,1,600]"], ids=["threads", "executors"])
def context(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    found = connect(request.param, tmp_path_factory.mktemp("spark"))
    yield found
    disconnect(found)


def test_training_reaches_the_loss_of_one_process(context: Any, alone: float) -> None:
    found = spark.run(cases.train, args=("digits",), num_proc=2)
    assert [one["rank"] for one in found] == [0, 1]
    assert {one["name"] for one in found} == {"digits"}
    assert len({one["pid"] for one in found}) == 2
    assert [one["local_size"] for one in found] == [2, 2]  # they share memory, whatever executor they are in
    assert found[0]["loss"] == found[1]["loss"] == pytest.approx(alone, rel=1e-9)
    # The Python workers go on to the next job as if nothing had been.
    assert len(spark.run(cases.place, num_proc=2)) == 2
    assert spark.run(cases.reduce_in_torch, num_proc=2) == [3.0, 3.0]


@pytest.mark.parametrize("local", [True, False], ids=["driver", "cluster"])
def test_pysparks_own_distributor_knows_the_backend(context: Any, local: bool) -> None:
    from pyspark.ml.torch.distributor import TorchDistributor
    from pyspark.sql import SparkSession

    SparkSession.builder.getOrCreate()  # over this context, with which it ends

    def reduce() -> float:
        import torch
        import torch.distributed as dist

        dist.init_process_group("ringtune")
        tensor = torch.tensor([float(dist.get_rank() + 1)])
        dist.all_reduce(tensor)
        return float(tensor)

    assert TorchDistributor(num_processes=2, local_mode=local, use_gpu=False).run(reduce) == 3.0


def test_ranks_get_their_environment_and_no_other(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECOND", "not for executors by itself")
    first = spark.run(cases.place, num_proc=2, env={"WORD": "ring"})
    second = spark.run(cases.place, num_proc=2)
    assert [one["RINGTUNE_RANK"] for one in first] == ["0", "1"]
    assert {one["WORD"] for one in first} == {"ring"} and {one["WORD"] for one in second} == {None}
    assert len({one["RINGTUNE_SECRET"] for one in [*first, *second]}) == 2  # each job has its own
    left = context.parallelize([0], 1).map(lambda _: dict(os.environ)).collect()[0]
    assert not {name for name in left if name.startswith("RINGTUNE_")}


def test_output_of_ranks_reaches_the_driver(context: Any) -> None:
    out, err = io.StringIO(), io.StringIO()

    def speak() -> None:
        print("hello")
        print("beware", file=sys.stderr)

    spark.run(speak, num_proc=2, stdout=out, stderr=err)
    assert out.getvalue().splitlines() == ["[0]<stdout>:hello", "[1]<stdout>:hello"]
    assert "[1]<stderr>:beware" in err.getvalue().splitlines()


def test_the_rank_that_fails_is_named(context: Any) -> None:
    with pytest.raises(RankFailed, match=r"rank 1 on .* raised KeyError: 'no such row on rank 1'") as caught:
        spark.run(cases.fail_on, args=(1,), num_proc=2)
    assert caught.value.rank == 1 and isinstance(caught.value.__cause__, KeyError)


def test_a_killed_rank_ends_the_job_and_is_named_on_the_others(
    context: Any, tmp_path: Path, text_of: Callable[[Path], str], noticed: Callable[[Path], None]
) -> None:
    with pytest.raises(RankFailed, match="a process of the job ended without a result") as caught:
        spark.run(cases.die_on, args=(1, str(tmp_path)), num_proc=2)
    assert "\n" not in str(caught.value)
    assert "PeerLost" in text_of(tmp_path / "error-0")
    noticed(tmp_path)
    assert len(spark.run(cases.place, num_proc=2)) == 2


def test_spark_starts_again_from_the_last_commit(context: Any, tmp_path: Path, alone: float) -> None:
    found = spark.run_elastic(cases.train_elastically, args=(str(tmp_path), 7), num_proc=2)
    assert found[0]["loss"] == found[1]["loss"] == pytest.approx(alone, rel=1e-9)
    assert (tmp_path / "starts").read_text().splitlines() == ["0 2", "7 2"]
    assert "PeerLost" in (tmp_path / "error-0").read_text()


def test_too_many_deaths_end_an_elastic_job(context: Any, tmp_path: Path) -> None:
    def die() -> None:
        os._exit(9)

    with pytest.raises(RankFailed, match=r"start 2 of 2; reset_limit"):
        spark.run_elastic(die, num_proc=2, reset_limit=1)


def test_the_call_of_databricks_scripts(context: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def main(first: int) -> tuple[int, str]:
        print("hello")
        return first, os.environ["RINGTUNE_SIZE"]

    assert spark.HorovodRunner(np=2, driver_log_verbosity="all").run(main, first=4) == (4, "2")
    assert "[1]<stdout>:hello" in capsys.readouterr().out
    assert spark.HorovodRunner(np=-2).run(main, first=5) == (5, "2")
    with pytest.raises(InvalidArgument, match="np=0: expected"):
        spark.HorovodRunner(np=0)


def test_more_ranks_than_slots_is_an_error_at_once(context: Any) -> None:
    began = time.monotonic()
    with pytest.raises(Timeout, match=r"3 ranks need 3 task slots at a time, and Spark .* has 2"):
        spark.run(cases.place, num_proc=3, start_timeout=1)
    assert time.monotonic() - began < 20


def test_the_timeline_of_both_ranks_is_merged(context: Any, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    spark.run(cases.train, num_proc=2, env={"RINGTUNE_TIMELINE": str(trace), "RINGTUNE_RUN_DIR": str(tmp_path / "run")})
    cases.merged(trace)
    cases.seen_in_the_dashboard(tmp_path / "run")


@pytest.mark.parametrize("arguments", [{"num_proc": 0}, {"num_proc": "2"}, {"use_mpi": True, "use_gloo": True}])
def test_wrong_arguments(context: Any, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        spark.run(cases.place, **arguments)


def test_what_cannot_be_pickled_is_refused(context: Any) -> None:
    with pytest.raises(InvalidArgument, match="cannot be pickled"):
        spark.run(cases.place, args=(sys._getframe(),), num_proc=2)
    with pytest.raises(InvalidArgument, match="expected a function, got str"):
        spark.run("train.py", num_proc=2)


def test_without_a_context() -> None:
    # In a process of its own: here the context of other tests may be active.
    program = "import ringtune.spark as spark; spark.run(int, num_proc=2)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "InvalidArgument: Could not find an active SparkContext" in result.stderr.splitlines()[-1]
