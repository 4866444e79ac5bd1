"""Jobs with a planted fault whose verdicts were wrong once: each by its numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from ringtune.timeline.analysis.comparison import compare
from ringtune.timeline.analysis.critical_path import critical_path
from ringtune.timeline.analysis.steps import counted
from ringtune.timeline.analysis.stragglers import stragglers
from ringtune.timeline.analysis.verdicts import when
from ringtune.timeline.cli import timeline
from ringtune.timeline.inputs import load
from tests.timeline import nccl_profiles
from tests.timeline.helpers import trace_of, write_json
from tests.timeline.planted import MS, PLANTED, job, late_loader, profile
from tests.timeline.scenario import Scenario


@pytest.mark.parametrize(("plan", "rank", "said", "share"), PLANTED.values(), ids=PLANTED)
def test_the_fault_is_the_first_verdict(plan: Scenario, rank: int, said: str, share: float) -> None:
    found = stragglers(counted(trace_of(plan)[0]).trace).verdicts
    assert (found[0].rank, found[0].cause, when(found[0])) == (rank, "compute", said)
    assert found[0].share == pytest.approx(share, abs=0.05)
    assert {one.rank for one in found} == {rank}


def test_a_step_that_is_longer_is_called_slower() -> None:
    late = job(2, 200, 15, {(1, step): 12 * MS for step in range(60, 200)}, seed=1)
    runs = [counted(trace_of(plan)[0]).trace for plan in (job(2, 200, 15, {}), late)]
    step = next(one for one in compare(*runs).changes if one.kind == "step")
    assert step.verdict == "slower" and step.ratio == pytest.approx(1.43, abs=0.05)  # 0.7 x 12 ms of 19.7 ms


def test_profiles_name_the_data_loader_in_the_steps_in_which_it_was_late(tmp_path: Path) -> None:
    paths = [write_json(tmp_path / f"rank{rank}.json", profile(rank, 4, late_loader)) for rank in range(4)]
    said = CliRunner().invoke(timeline, ["stragglers", *map(str, paths)], catch_exceptions=False).output
    assert "of the job (12" in said.splitlines()[0] or "of the job (11" in said.splitlines()[0]
    assert "was lost to rank 2 in steps 6-11, by data loading: look at rank 2 in step" in said


def test_the_critical_path_has_what_kernels_of_the_others_waited_for_the_late_rank(tmp_path: Path) -> None:
    paths = [write_json(tmp_path / f"rank{rank}.json", one) for rank, one in enumerate(nccl_profiles.profiles())]
    late = {step: 0 for step in range(nccl_profiles.STEPS)}
    for one in critical_path(load(paths)).stretches:
        if one.cause == "late" and one.rank == nccl_profiles.LATE_RANK:
            late[one.step] += one.duration_ns
    # The others had computed 20 ms earlier; two of the three allreduces of 2.5 ms ran in that time.
    for step, late_ns in late.items():
        expected = (nccl_profiles.LATE_US - 2 * 2_500) * 1000 if step in nccl_profiles.LATE_STEPS else 0
        assert late_ns == pytest.approx(expected, abs=MS), step
