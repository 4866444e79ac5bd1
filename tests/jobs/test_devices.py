"""Arrays and tensors on GPUs, over real ranks that share the fake driver's GPU 0."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ringtune.check import find_all
from tests import fake_cuda
from tests.conftest import find_tool
from tests.jobs.cases import device as cases
from tests.jobs.launching import Job

Fresh = Callable[..., Job]


@pytest.fixture(scope="module")
def driver() -> str:
    """Path of the fake driver."""
    find_tool("compiler")
    return str(fake_cuda.build())


def test_every_collective_takes_arrays_on_a_gpu(fresh: Fresh, driver: str) -> None:
    fresh(2, cuda_driver=driver).run(cases.arrays)


def test_torch_reduces_tensors_on_a_gpu_in_place(fresh: Fresh, driver: str) -> None:
    fresh(2, cuda_driver=driver).run(cases.tensors)


def test_what_cannot_be_is_said(fresh: Fresh, driver: str) -> None:
    first, second = fresh(2, cuda_driver=driver).run(cases.refused)
    mismatch = (
        "Mismatched ALLREDUCE CPU/GPU device selection: One rank had device GPU, but another rank had device CPU."
    )
    assert first[0].startswith(mismatch) and second[0].startswith(mismatch)
    assert "hand over cupy.from_dlpack(array)" in first[1]
    assert "a Memory does not say how to make another one" in first[2] and first[2].endswith("use an in-place form")


def test_check_names_driver_gpus_and_which_reach_each_other(driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGTUNE_CUDA_DRIVER", driver)
    found = {finding.name: finding for finding in find_all()}
    assert found["CUDA driver"].detail == "for CUDA 12.4"
    assert found["GPUs"].detail == "Fake GPU 0, Fake GPU 1; 1 of 1 pairs reach each other's memory"
    monkeypatch.setenv("RINGTUNE_CUDA_DRIVER", "libno-such-driver.so")
    missing = {finding.name: finding for finding in find_all()}["CUDA driver"]
    assert not missing.available and "which cannot be opened" in missing.detail


def test_a_machine_without_a_driver_says_so(fresh: Fresh) -> None:
    failed = fresh(2, cuda_driver="libno-such-driver.so").attempt(cases.refused_driver)
    assert all("tensors on a GPU need NVIDIA's driver" in failure.message for failure in failed)
