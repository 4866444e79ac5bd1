"""Ringtune's own ring between GPUs, over real ranks that share the fake driver's GPU 0."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ringtune.config import Config
from ringtune.gpu import kernels, nvrtc, ring
from tests import fake_cuda
from tests.conftest import find_tool
from tests.jobs.cases import ring as cases
from tests.jobs.launching import Failure, Job

Fresh = Callable[..., Job]


@pytest.fixture(scope="module")
def driver() -> str:
    """Path of the fake driver."""
    find_tool("compiler")
    return str(fake_cuda.build())


class Head:
    """Compiles to what the fake driver takes for a cubin."""

    def __init__(self) -> None:
        found = nvrtc.find()
        self.version, self.architectures = found.version, found.architectures

    def compile(self, *arguments: object) -> bytes:
        return b"\x7fELF" + bytes(100)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder in which the kernels are found."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kernels.cubin_for(90, Head())
    return str(tmp_path)


@pytest.mark.parametrize("size", [2, 3])
def test_tensors_go_from_gpu_to_gpu(size: int, fresh: Fresh, driver: str, cache: str) -> None:
    job = fresh(size, cuda_driver=driver, gpu_data_path="ring")
    job.run(cases.kept, folder=cache)
    assert job.run(cases.sums) == [[0, 1]] * size


def test_a_rank_that_is_killed_leaves_no_stream_waiting(fresh: Fresh, driver: str, cache: str) -> None:
    job = fresh(2, cuda_driver=driver, gpu_data_path="ring")
    job.run(cases.kept, folder=cache)
    said, gone = job.attempt(cases.loses_one)
    assert gone is None or isinstance(gone, Failure)
    assert "rank 1" in said[0]


def test_ringtune_run_starts_ranks_that_share_a_gpu(driver: str, cache: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import ringtune.numpy as hvd\n"
        "from tests.jobs.cases import ring\n"
        "hvd.init()\n"
        "print('came to the host and loaded', ring.sums())\n"
    )
    environ = {**os.environ, "RINGTUNE_CUDA_DRIVER": driver, "RINGTUNE_GPU_DATA_PATH": "ring"}
    environ["PYTHONPATH"] = str(fake_cuda.ROOT)
    command = [str(Path(sys.executable).with_name("ringtune")), "run", "-np", "2", sys.executable, str(script)]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("came to the host and loaded [0, 1]") == 2


def test_without_a_compiler_the_ring_that_is_asked_for_says_what_to_install(fresh: Fresh, driver: str) -> None:
    failed = fresh(2, cuda_driver=driver, gpu_data_path="ring").attempt(cases.without_compiler)
    assert all("pip install nvidia-cuda-nvrtc-cu12" in failure.message for failure in failed)
    assert all("RINGTUNE_GPU_DATA_PATH=ring" in failure.message for failure in failed)


@pytest.mark.parametrize(
    ("settings", "given"),
    [
        ({}, True),
        ({"GPU_DATA_PATH": "ring", "CUDA_DRIVER": "libfake.so"}, True),
        ({"CUDA_DRIVER": "libfake.so"}, False),
        ({"GPU_DATA_PATH": "staged"}, False),
    ],
)
def test_kernels_are_given_where_they_can_be_used(settings: dict[str, str], given: bool) -> None:
    config = Config.from_environ({f"RINGTUNE_{name}": value for name, value in settings.items()})
    before = set(sys.modules)
    assert (ring.kernels(config) is not None) == given
    assert set(sys.modules) == before, "nothing is imported before the runtime asks"
