"""Timeouts of process groups: who waits for a rank that does not come is told in time which one it is."""

from __future__ import annotations

from typing import Any

import pytest

from tests.jobs.cases import group as group_cases
from tests.jobs.cases import timeout as timeout_cases
from tests.jobs.launching import STARVED_S, Job


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("timeouts")
    with Job(2, folder, {"TEST_RANK": "{rank}", "TEST_SIZE": "2"}) as job:
        job.run(group_cases.open_group, backend="ringtune", store=str(folder / "store"))
        yield job


@pytest.mark.parametrize("steps", [0, 8])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_wait_with_a_time_of_its_own_names_the_missing_rank_and_the_group_goes_on(
    rank: int, steps: int, pair: Job
) -> None:
    said = pair.run(timeout_cases.impatient, rank=rank, steps=steps)[1 - rank]
    assert len(said) == 4
    assert all(f"within the 0.05 s of wait(timeout) and waits for rank {rank}; it goes on" in one for one in said), said


@pytest.mark.parametrize("steps", [0, 8])
@pytest.mark.parametrize("rank", [0, 1])
def test_every_call_ends_in_time_and_names_the_missing_rank(rank: int, steps: int, pair: Job) -> None:
    found = pair.run(timeout_cases.missing, rank=rank, steps=steps)[1 - rank]
    assert set(found) == set(timeout_cases.CALLS)
    wrong = {name: said for name, (said, _) in found.items() if f"rank {rank}" not in said or "Timeout" not in said}
    assert not wrong
    late = {name: late_s for name, (_, late_s) in found.items() if not -0.2 < late_s < 1 + STARVED_S}
    assert not late
