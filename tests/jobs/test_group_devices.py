"""ringtune as a backend of torch.distributed on GPUs: real ranks, the fake driver, and a stand-in for torch's CUDA."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests import fake_cuda
from tests.conftest import find_tool
from tests.jobs.cases import group as group_cases
from tests.jobs.cases import group_device as cases
from tests.jobs.launching import Job

SIZES = [2, 3]


@pytest.fixture(scope="module", params=SIZES)
def group(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """A job whose world serves the CPU and GPUs."""
    find_tool("compiler")
    size, folder = request.param, tmp_path_factory.mktemp("groups")
    environ = {"TEST_RANK": "{rank}", "TEST_SIZE": str(size), "RINGTUNE_CUDA_DRIVER": str(fake_cuda.build())}
    backend = "ringtune" if size == 2 else "cpu:ringtune,cuda:ringtune"
    with Job(size, folder, environ) as job:
        served = job.run(cases.open_on_gpus, store=str(folder / "store"), backend=backend)
        assert served == [["cpu", "cuda"]] * size
        yield job
        assert job.run(group_cases.close_group) == [False] * size


@pytest.mark.parametrize(
    "case",
    [cases.reductions, cases.moves, cases.streams_of_the_program, cases.futures, cases.points, cases.subgroup],
    ids=lambda case: case.__name__,
)
def test_on_tensors_of_a_gpu(group: Job, case: Callable[[], None]) -> None:
    group.run(case)


def test_a_failure_is_told(group: Job) -> None:
    for said in group.run(cases.failing):
        assert len(said) == 2 and all("Mismatched ALLREDUCE CPU/GPU device selection" in one for one in said)
