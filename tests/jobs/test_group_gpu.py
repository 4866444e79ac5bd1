"""ringtune as a backend of torch.distributed on a real GPU, which all ranks share: `make test-gpu`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.jobs.cases import group as group_cases
from tests.jobs.cases import group_gpu as cases
from tests.jobs.launching import Job

GetJob = Callable[..., Job]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def environ(size: int) -> dict[str, str]:
    return {"TEST_RANK": "{rank}", "TEST_SIZE": str(size)}


@pytest.mark.parametrize("size", [2, 3])
def test_every_collective(size: int, tmp_path: Path) -> None:
    with Job(size, tmp_path, environ(size)) as job:
        assert job.run(cases.collectives, store=str(tmp_path / "store")) == [["cpu", "cuda"]] * size


def test_works_stand_to_streams_as_nccl_s_do(tmp_path: Path) -> None:
    with Job(2, tmp_path, environ(2)) as job:
        for started_s, kernel_s in job.run(cases.works, store=str(tmp_path / "store")):
            assert started_s < kernel_s / 2


@pytest.mark.parametrize("kind", ["ddp", "fsdp", "zero"])
def test_training_on_the_gpu_is_training_on_the_cpu(kind: str, tmp_path: Path) -> None:
    rows = []
    for device in ("cpu", "cuda"):
        with Job(2, tmp_path, environ(2)) as job:
            store = str(tmp_path / f"{device}-{kind}")
            rows.append(
                job.run(group_cases.train, kind=kind, backend="ringtune", store=store, steps=20, device=device)[0]
            )
    assert rows[1] == pytest.approx(rows[0], abs=1e-4)


def test_the_hook_reduces_buckets_on_the_gpu(tmp_path: Path) -> None:
    with Job(2, tmp_path, environ(2)) as job:
        hooked = job.run(cases.hooked, store=str(tmp_path / "store"), steps=20)[0]
    with Job(2, tmp_path, environ(2)) as job:
        plain = job.run(group_cases.train, kind="ddp", backend="ringtune", store=str(tmp_path / "cpu"), steps=20)[0]
    assert hooked == pytest.approx(plain, abs=1e-4)


def test_batches_are_normalised_over_all_ranks(job: GetJob) -> None:
    for difference in job(2).run(cases.batch_norm):
        assert difference < 1e-12
