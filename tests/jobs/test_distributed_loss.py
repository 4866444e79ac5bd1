"""A collective that fails under DDP, FSDP, hooks or futures is raised in words, whatever of torch's C++ looks at it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.jobs.cases import group as group_cases
from tests.jobs.cases import loss as loss_cases
from tests.jobs.launching import Job


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("loss")
    with Job(2, folder, {"TEST_RANK": "{rank}", "TEST_SIZE": "2"}) as job:
        job.run(group_cases.open_group, backend="ringtune", store=str(folder / "store"))
        yield job


@pytest.mark.parametrize("style", loss_cases.STYLES)
def test_a_failed_collective_is_raised_in_words(style: str, pair: Job) -> None:
    said, _ = pair.run(loss_cases.survive, style=style)
    assert re.search(r"rank 1 on host \S+ has shut down", said), said
