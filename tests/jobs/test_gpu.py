"""Tensors on a real GPU, which all ranks share: `make test-gpu` runs these, and nothing else needs a GPU.

Ranks that share a GPU go through the host; the ring between them must be asked for. A rank alone goes by NCCL.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.conftest import needs
from tests.jobs.cases import gpu as cases
from tests.jobs.launching import Job

GetJob = Callable[..., Job]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
WAYS = [(2, "shm", "staged"), (2, "tcp", "staged"), (2, "shm", "ring"), (1, "shm", "nccl")]
PATHS = pytest.mark.parametrize(("size", "path"), [(1, "nccl"), (2, "ring"), (4, "ring"), (2, "auto"), (4, "auto")])


@pytest.mark.parametrize(("size", "transport", "path"), WAYS)
@pytest.mark.parametrize("op", ["Sum", "Average", "Min", "Max", "Product"])
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_every_dtype_and_operation_against_float64(
    dtype: str, op: str, size: int, transport: str, path: str, job: GetJob
) -> None:
    job(size, transport, path).run(cases.every_reduction, dtype=dtype, op=op, count=10_007)


@PATHS
def test_every_other_collective(size: int, path: str, job: GetJob) -> None:
    job(size, gpu_data_path=path).run(cases.other_collectives)


@PATHS
def test_a_large_tensor_goes_in_parts(size: int, path: str, job: GetJob) -> None:
    assert len(set(job(size, gpu_data_path=path).run(cases.digest_of_large, count=50_000_001))) == 1


@PATHS
def test_results_stand_behind_the_streams_of_the_program(size: int, path: str, job: GetJob) -> None:
    job(size, gpu_data_path=path).run(cases.behind_the_streams, steps=30, elements=1_000_003)


@PATHS
def test_submitting_does_not_wait_for_the_gpu(size: int, path: str, job: GetJob) -> None:
    for submitted_s, kernel_s in job(size, gpu_data_path=path).run(cases.submits_do_not_wait):
        assert submitted_s < kernel_s / 2


def test_what_cannot_be_is_said(job: GetJob) -> None:
    for said in job(2).run(cases.refusals):
        assert "cannot be part of a CUDA graph" in said[0]
        assert "Mismatched ALLREDUCE CPU/GPU device selection" in said[1]


def test_training_on_the_gpu_is_training_on_the_cpu(fresh: GetJob) -> None:
    ranks = fresh(2)
    on_gpu, on_cpu = (ranks.run(cases.training, device=device, steps=10)[0] for device in ("cuda", "cpu"))
    assert on_gpu == pytest.approx(on_cpu, rel=1e-9)


def test_arrays_of_cupy(job: GetJob) -> None:
    needs("cupy")
    job(2).run(cases.cupy_arrays)
