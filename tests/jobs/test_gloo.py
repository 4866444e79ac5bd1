"""Whatever torch.distributed does on Gloo it does on ringtune, with the same results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.jobs.cases import gloo as gloo_cases
from tests.jobs.cases import group as group_cases
from tests.jobs.cases import lifecycle as lifecycle_cases
from tests.jobs.launching import Job


@pytest.fixture(scope="module", params=[2, 3])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder, size = tmp_path_factory.mktemp("gloo"), request.param
    with Job(size, folder, {"TEST_RANK": "{rank}", "TEST_SIZE": str(size)}) as job:
        job.run(group_cases.open_group, backend="ringtune", store=str(folder / "store"))
        yield job


@pytest.mark.parametrize("op", gloo_cases.OPS)
def test_reductions(op: str, world: Job) -> None:
    found = world.run(gloo_cases.differences, calls="reductions", dtypes=gloo_cases.DTYPES, ops=[op])
    assert found == [[]] * world.size


@pytest.mark.parametrize("dtype", gloo_cases.DTYPES)
def test_moves(dtype: str, world: Job) -> None:
    found = world.run(gloo_cases.differences, calls="moves", dtypes=[dtype], ops=["SUM"])
    assert found == [[]] * world.size


@pytest.mark.slow
def test_layers_above(world: Job) -> None:
    found = world.run(gloo_cases.differences, calls="layers", dtypes=["float32", "int64"], ops=["SUM"])
    assert found == [[]] * world.size


def test_layers_above_in_torch_s_own_debug_mode(tmp_path: Path) -> None:
    environ = {"TEST_RANK": "{rank}", "TEST_SIZE": "2", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    with Job(2, tmp_path, environ) as job:
        job.run(group_cases.open_group, backend="ringtune", store=str(tmp_path / "store"))
        assert job.run(gloo_cases.differences, calls="layers", dtypes=["float32"], ops=["SUM"]) == [[], []]


@pytest.mark.parametrize("style", lifecycle_cases.STYLES)
def test_groups_begin_and_end_as_on_gloo(style: str, tmp_path: Path) -> None:
    found = []
    for backend in ("ringtune", "gloo"):
        with Job(2, tmp_path, {"TEST_RANK": "{rank}", "TEST_SIZE": "2"}) as job:
            found.append(job.run(lifecycle_cases.live, style=style, backend=backend, store=str(tmp_path / backend)))
    assert found[0] == found[1]
