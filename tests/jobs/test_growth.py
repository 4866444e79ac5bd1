"""Memory stays, however many calls come: with names that count the steps, without names, and on process groups."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.jobs.cases import group as group_cases
from tests.jobs.cases import growth as cases
from tests.jobs.launching import Job

GetJob = Callable[..., Job]

MOST_BYTES = 50  # that a call may leave behind
ENOUGH = 10_000

# These take thousands of calls to fill what is remembered, which `make test-long` has time for.
SLOW_GROUPS = ("all_reduce of sizes", "send and receive")
QUICK = list(cases.CALLS)
QUICK_GROUPS = [kind for kind in cases.GROUP_CALLS if kind not in SLOW_GROUPS]
NAMES = pytest.mark.parametrize("named", [True, False], ids=["counting names", "no names"])


def _stays(job: Job, function: Callable[..., object], kinds: list[str], calls: int, **more: bool) -> None:
    """Warm up as long as measured: until then what is remembered, a bounded number of names, is still filled."""
    rounds = max(64, calls // len(kinds))
    found = job.run(function, timeout_s=1500, kinds=kinds, warm_up=rounds, calls=rounds, **more)
    for allocated, resident in found:
        assert allocated / len(kinds) < MOST_BYTES, f"{allocated:.0f} bytes a round stay allocated"
        if rounds >= ENOUGH:  # until then malloc's own gaps are more than what is asked for
            assert resident / len(kinds) < MOST_BYTES, f"{resident:.0f} bytes a round stay resident"


def _started(fresh: GetJob, folder: Path, recording: bool = False) -> Job:
    """A job that remembers few operations, so that few calls are enough to fill what it remembers."""
    files = {"run_dir": folder / "run", "timeline": folder / "t.json"} if recording else {}
    return fresh(2, cache_capacity=256, dynamic_process_sets=1, **files)


@pytest.mark.slow
@NAMES
def test_memory_stays(named: bool, fresh: GetJob, tmp_path: Path) -> None:
    _stays(_started(fresh, tmp_path), cases.growth, QUICK, 12_000, named=named)


@pytest.mark.long
def test_memory_stays_while_a_timeline_is_recorded(fresh: GetJob, tmp_path: Path) -> None:
    _stays(_started(fresh, tmp_path, recording=True), cases.growth, QUICK, 24_000, named=True)


@pytest.fixture
def group(tmp_path: Path) -> Job:
    with Job(2, tmp_path, {"TEST_RANK": "{rank}", "TEST_SIZE": "2", "RINGTUNE_CACHE_CAPACITY": "256"}) as job:
        job.run(group_cases.open_group, backend="ringtune", store=str(tmp_path / "store"))
        yield job


@pytest.mark.long
def test_memory_of_process_groups_stays(group: Job) -> None:
    _stays(group, cases.group_growth, QUICK_GROUPS, 6_000)


def test_tensors_of_other_sizes_are_let_go(group: Job) -> None:
    """Their names are remembered, some hundred bytes each; the tensors are of 32,000 on average."""
    found = group.run(cases.group_growth, kinds=["all_reduce of sizes"], warm_up=2000, calls=2000)
    assert max(allocated for allocated, _ in found) < 4000


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("recording", [False, True], ids=["quiet", "recording"])
@NAMES
@pytest.mark.parametrize("kind", list(cases.CALLS))
def test_memory_stays_in_a_long_job(kind: str, named: bool, recording: bool, fresh: GetJob, tmp_path: Path) -> None:
    job = _started(fresh, tmp_path, recording)
    _stays(job, cases.growth, [kind], 20_000, named=named)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", list(cases.GROUP_CALLS))
def test_memory_of_process_groups_stays_in_a_long_job(kind: str, group: Job) -> None:
    _stays(group, cases.group_growth, [kind], 20_000)
