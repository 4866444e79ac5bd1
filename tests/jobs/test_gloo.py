"""Whatever torch.distributed does on Gloo it does on ringtune, with the same results."""

from __future__ import annotations

from typing import Any

import pytest

from tests.jobs import gloo_cases, group_cases
from tests.jobs.launching import Job


@pytest.fixture(scope="module", params=[2, 3])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder, size = tmp_path_factory.mktemp("gloo"), request.param
    with Job(size, folder, {"TEST_RANK": "{rank}", "TEST_SIZE": str(size)}) as job:
        job.run(group_cases.open_group, backend="ringtune", store=str(folder / "store"))
        yield job


@pytest.mark.parametrize("op", gloo_cases.OPS)
def test_reductions(op: str, world: Job) -> None:
    found = world.run(gloo_cases.differences, calls="REDUCTIONS", dtypes=gloo_cases.DTYPES, ops=[op])
    assert found == [[]] * world.size


@pytest.mark.parametrize("dtype", gloo_cases.DTYPES)
def test_moves(dtype: str, world: Job) -> None:
    found = world.run(gloo_cases.differences, calls="MOVES", dtypes=[dtype], ops=["SUM"])
    assert found == [[]] * world.size


def test_layers_above(world: Job) -> None:
    found = world.run(gloo_cases.differences, calls="OTHERS", dtypes=["float32", "int64"], ops=["SUM"])
    assert found == [[]] * world.size
