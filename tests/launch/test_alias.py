"""Scripts written for Horovod, untouched; functions as jobs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import ringtune
from ringtune.errors import InvalidArgument, RingtuneError
from tests.launch.conftest import Jobs

SCRIPT = """
import horovod
import horovod.torch as hvd
from horovod.common.exceptions import HorovodInternalError
from horovod.common.util import split_list
from horovod.runner.elastic.worker import HostUpdateResult
from horovod.torch.elastic.state import TorchState
from horovod.torch.mpi_ops import allreduce_async, synchronize
import ringtune.torch
import torch
hvd.init()
assert hvd is ringtune.torch and HorovodInternalError is hvd.HorovodInternalError
print(horovod.__version__, callable(horovod.run), hvd.size(), hvd.allreduce(torch.ones(1), op=hvd.Sum).item())
"""


def test_untouched_script(jobs: Jobs) -> None:
    result = jobs.run_script(2, SCRIPT, "--as-horovod", "--no-prefix")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["0.28.1 True 2 2.0"] * 2


@pytest.mark.slow
def test_one_import_instead_of_the_flag() -> None:
    program = "import ringtune.as_horovod\n" + SCRIPT
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "0.28.1 True 1 1.0\n", done.stderr


@pytest.mark.parametrize("name", ["data", "metrics"])
def test_other_frameworks_are_refused_in_words(name: str) -> None:
    program = f"import ringtune.as_horovod\nimport horovod.{name}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "serves PyTorch, TensorFlow, Keras, MXNet, Spark and Ray" in done.stderr.splitlines()[-1]


def test_the_user_s_own_path_stays(jobs: Jobs) -> None:
    result = jobs.run(
        "-np", "1", "--no-run-dir", "--as-horovod", "--no-prefix", sys.executable, "-c",
        "import sys; print('/own/path' in sys.path)", environ={"PYTHONPATH": "/own/path"},
    )  # fmt: skip
    assert result.stdout == "True\n"


def run_function(tmp_path: Path, body: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "caller.py"
    script.write_text(f"import ringtune\n{body}", encoding="utf-8")
    return subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, cwd=tmp_path)


@pytest.mark.slow
def test_run_returns_results_by_rank(tmp_path: Path) -> None:
    done = run_function(
        tmp_path,
        """
def work(first, second=0):
    import torch, ringtune.torch as hvd
    hvd.init()
    return hvd.rank(), hvd.allreduce(torch.ones(1) * first, op=hvd.Sum).item() + second

print(ringtune.run(work, (3,), {"second": 1}, num_proc=2))
""",
    )
    assert done.stdout == "[(0, 7.0), (1, 7.0)]\n", done.stderr


@pytest.mark.slow
def test_run_of_an_elastic_job_returns_the_least_number(tmp_path: Path) -> None:
    done = run_function(
        tmp_path,
        """
def work():
    import ringtune.torch as hvd
    hvd.init()
    return hvd.rank()

print(ringtune.run(work, num_proc=2, min_num_proc=1, max_num_proc=2))
""",
    )
    assert done.stdout == "[0]\n", done.stderr


def test_run_raises_when_a_rank_fails(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RingtuneError, match="rank 0 on localhost raised ZeroDivisionError"):
        ringtune.run(lambda: 1 // 0, num_proc=1)
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_run_refuses_what_excludes_each_other() -> None:
    with pytest.raises(InvalidArgument, match="not both"):
        ringtune.run(print, hosts="a:1", hostfile="b")
    with pytest.raises(InvalidArgument, match="use_gloo or use_mpi"):
        ringtune.run(print, use_gloo=True, use_mpi=True)


def test_old_names_warn() -> None:
    with pytest.warns(DeprecationWarning, match="num_proc"):
        assert ringtune.run(int, np=1) == [0]
