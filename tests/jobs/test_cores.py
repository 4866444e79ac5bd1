"""Ranks that may use different cores, as launchers bind them: how they wait is the same for all of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.jobs.cases import core as core_cases
from tests.jobs.launching import Job, variables

FIRST, *OTHERS = sorted(os.sched_getaffinity(0))
LAST = OTHERS[-1] if OTHERS else FIRST

BINDINGS = {
    "the first has one core": [[FIRST], [FIRST, LAST]],
    "the last has one core": [[FIRST, LAST], [FIRST]],
    "each has its own": [[FIRST], [LAST]],
    "both have the same": [[FIRST], [FIRST]],
    "three of four have one": [[FIRST], [FIRST], [FIRST], [FIRST, LAST]],
}


@pytest.mark.parametrize("bound", list(BINDINGS))
def test_sums_are_right_however_ranks_are_bound(bound: str, tmp_path: Path) -> None:
    cores = BINDINGS[bound]
    size = len(cores)
    with Job(size, tmp_path, variables(size, transport="shm")) as job:
        found = job.run(core_cases.sums, cores=cores)
    assert found == [[size * 4.0 + sum(range(size))] * len(core_cases.SIZES)] * size
