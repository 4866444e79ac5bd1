"""Who runs when in a race, with jobs that are only a list of answers."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import pytest

import ringtune.benchmarks.harness.race
from ringtune.benchmarks.harness.race.bursts import Burst, CopyContest, run_burst
from ringtune.benchmarks.harness.race.patterns import Task
from ringtune.benchmarks.harness.racejob import JobLost, JobPlan, RaceJob, TaskUnsupported
from ringtune.benchmarks.harness.races import BURST_NS, LONG_CALL_NS, Budget, Race, plan_burst


class FakeJob:
    """A job of two ranks; `call_ns` is what a call takes on the slower one."""

    def __init__(self, name: str, log: list[str], call_ns: float = BURST_NS, **trouble: Any) -> None:
        self.plan = JobPlan(name, {name: "way"}, 2, lambda join: [])
        self._log = log
        self._call_ns = call_ns
        self._trouble = trouble
        self._bursts = 0
        self.closed = False

    def ask(self, seconds: float, **order: Any) -> list[dict[str, Any]]:
        if order["do"] == "open":
            if "unsupported" in self._trouble:
                raise TaskUnsupported(self._trouble["unsupported"])
            return [{"max_calls": 5}] * 2
        if order["do"] == "burst":
            self._bursts += 1
            if self._bursts == self._trouble.get("dies_in_burst"):
                raise JobLost(f"{self.plan.name}: died")
            self._log.append(self.plan.name)
            return [{"ns": self._call_ns / 2}, {"ns": self._call_ns}]
        return [{}, {}]

    def close(self) -> None:
        self.closed = True


def race_of(*jobs: FakeJob) -> tuple[Race, list[str]]:
    lost: list[str] = []
    race = Race(_as_jobs(jobs), lambda plan, error: lost.append(f"{plan.name} <- {error}"))
    return race, lost


def _as_jobs(jobs: Any) -> list[RaceJob]:
    return list(jobs)


FLOATS = {"sizes_bytes": [4], "dtype": "float32"}
FOUR_ROUNDS = Budget(seconds=60, min_rounds=1, max_rounds=4)
CALIBRATION = [*"aaaaa", *"bbbbb", *"ccccc"]


def test_turns_rotate_and_the_slowest_rank_counts() -> None:
    log: list[str] = []
    race, lost = race_of(*(FakeJob(name, log, BURST_NS + index) for index, name in enumerate("abc")))
    result = race.run_case(FLOATS, FOUR_ROUNDS)
    assert log == [*CALIBRATION, *"abc", *"bca", *"cab", *"abc"]
    assert result.times_ns == {name: [float(BURST_NS + index)] * 4 for index, name in enumerate("abc")}
    assert not lost


def test_a_job_that_dies_is_left_out_and_the_others_go_on() -> None:
    log: list[str] = []
    jobs = [FakeJob("a", log), FakeJob("b", log, dies_in_burst=7), FakeJob("c", log)]
    race, lost = race_of(*jobs)
    result = race.run_case(FLOATS, FOUR_ROUNDS)
    # b runs in the first round and dies at the beginning of the second.
    assert log == [*CALIBRATION, *"abc", *"ca", *"ac", *"ca"]
    assert sorted(result.times_ns) == ["a", "c"]
    assert lost == ["b <- b: died"]
    assert [job.closed for job in jobs] == [False, True, False]
    assert sorted(race.run_case(FLOATS, FOUR_ROUNDS).times_ns) == ["a", "c"]


def test_a_job_that_dies_while_it_warms_up() -> None:
    race, lost = race_of(FakeJob("a", []), FakeJob("b", [], dies_in_burst=2))
    assert sorted(race.run_case(FLOATS, FOUR_ROUNDS).times_ns) == ["a"]
    assert lost == ["b <- b: died"]


def test_who_cannot_do_a_case_is_named_in_it() -> None:
    race, lost = race_of(FakeJob("a", []), FakeJob("b", [], unsupported="no float16"))
    result = race.run_case({**FLOATS, "dtype": "float16"}, FOUR_ROUNDS)
    assert (sorted(result.times_ns), result.unsupported, lost) == (["a"], {"b": "no float16"}, [])


def test_a_race_without_ranks_ends() -> None:
    race, lost = race_of(FakeJob("a", [], dies_in_burst=1))
    assert race.run_case(FLOATS, FOUR_ROUNDS).times_ns == {}
    assert len(lost) == 1


@pytest.mark.parametrize(
    ("call_ns", "max_calls", "before", "burst"),
    [
        (1000.0, 253, Burst(40, 252), Burst(40, 252)),
        (1000.0, 253, Burst(1, 1), Burst(1, 16)),
        (BURST_NS / 4, 253, Burst(1, 252), Burst(1, 4)),
        (BURST_NS * 9.0, 253, Burst(1, 1), Burst(1, 1)),
        (BURST_NS / 10, 1, Burst(1, 1), Burst(10, 1)),
        (0.0, 64, Burst(1, 1), Burst(1, 16)),
        (LONG_CALL_NS + 1.0, 64, Burst(1, 1), Burst(1, 1, lead_in=False)),
    ],
)
def test_bursts_fill_their_time(call_ns: float, max_calls: int, before: Burst, burst: Burst) -> None:
    assert plan_burst(call_ns, max_calls, before) == burst


class Counting:
    """A contest that writes down what is done with it."""

    def __init__(self, max_calls: int) -> None:
        self.max_calls = max_calls
        self.settle = None
        self.log: list[str] = []

    def call(self) -> None:
        self.log.append("call")

    def fill(self) -> None:
        self.log.append("fill")

    def check(self, calls: int) -> None:
        self.log.append(f"check {calls}")


def test_every_loop_is_filled_called_and_checked() -> None:
    contest = Counting(9)
    run_burst(contest, Burst(2, 3))
    assert contest.log == ["fill", *["call"] * 4, "check 4"] * 2


def test_a_sum_that_is_exact_once_is_filled_again_after_the_lead_in() -> None:
    contest = Counting(1)
    run_burst(contest, Burst(1, 1))
    assert contest.log == ["fill", "call", "fill", "call", "check 1"]


def test_copies_are_checked() -> None:
    contest = CopyContest(Task([400, 8], "float32", 1, 2))
    assert run_burst(contest, Burst(2, 3)) > 0
    contest.fill()
    with pytest.raises(ArithmeticError):
        contest.check(1)


def test_ranks_need_numpy_alone() -> None:
    package = ringtune.benchmarks.harness.race
    allowed = {*sys.stdlib_module_names, "numpy", "mpi4py"}
    for path in Path(package.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.split(".")[0] in allowed or name.startswith(package.__name__ + "."), f"{path}: {name}"
