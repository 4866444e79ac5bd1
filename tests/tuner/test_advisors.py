"""One contract for all advisors: in this process, and in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import optuna
import psutil
import pytest

from ringtune.knobs import DEFAULTS, Knobs
from ringtune.tuner.advice import Advisor, Near, Outcome, Stored, Workload
from ringtune.tuner.advisor import ProcessAdvisor
from ringtune.tuner.fingerprint import JobDescription
from ringtune.tuner.records import ResultRecord, Source, TrialRecord
from ringtune.tuner.scoring import NO_GAIN, Interval
from ringtune.tuner.space import Space
from ringtune.tuner.study import StudyAdvisor, StudyOptions
from ringtune.tuner.wire import Setup

JOB = JobDescription(world=2, hosts=1, cpu="test", versions=(("python", "3"),), searched=("fusion_bytes",))
WORK = Workload(collectives=10, bytes=1000)
Answer = TypeVar("Answer")
Make = Callable[..., Advisor]


@pytest.fixture(params=["study", pytest.param("process", marks=pytest.mark.slow)])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    made: list[Advisor] = []

    def advisor(options: StudyOptions, space: Space | None = None, job: JobDescription = JOB) -> Advisor:
        setup = Setup(space or Space(), job, options)
        made.append(
            ProcessAdvisor(setup) if request.param == "process" else StudyAdvisor(setup.space, setup.job, setup.options)
        )
        return made[-1]

    yield advisor
    for one in made:
        one.close()


# What is suggested does not depend on the process in which it is computed.
of_the_search = pytest.mark.parametrize("make", ["study"], indirect=True)


def test_what_the_search_does_without_is_said(make: Make, tmp_path: Path) -> None:
    """A storage that cannot be opened but need not be, and a timeline from which no model is learned."""
    trace = tmp_path / "rank-00000.json"
    trace.write_text("[]")
    advisor = make(StudyOptions("/proc/none/studies.db", str(tmp_path / "copy.db"), storage_optional=True))
    advisor.open(replace(WORK, trace=str(trace)))
    notes = wait(advisor.stored).notes
    assert len(notes) == 2 and not advisor.failure
    assert notes[0].startswith("results are not kept in /proc/none/studies.db: ")
    assert notes[1].startswith("no cost model of this job, the search begins at fixed points: ")


def wait(question: Callable[[], Answer | None], seconds: float = 120) -> Answer:
    """Ask until there is an answer, as training does once a step."""
    deadline = time.monotonic() + seconds
    while (answer := question()) is None:
        assert time.monotonic() < deadline, "no answer"
        time.sleep(0.005)
    return answer


def outcome(knobs: Knobs, ratio: float, token: int | None = None, source: Source = "start-point") -> Outcome:
    record = TrialRecord(1, source, "complete", knobs, 7, 10, Interval(2e6, 1e6, 3e6))
    return Outcome(record, ratio, token)


def result(decision: str, knobs: Knobs) -> ResultRecord:
    return ResultRecord(decision, knobs, 9, NO_GAIN, 5, "a test")  # type: ignore[arg-type]


def search(advisor: Advisor, score: Callable[[Knobs], float], trials: int) -> list[tuple[Knobs, float]]:
    advisor.tell(outcome(DEFAULTS, 1.0, source="default"))
    seen = []
    for knobs in Space().start_points():
        advisor.tell(outcome(knobs, score(knobs)))
    for _ in range(trials):
        suggestion = wait(advisor.ask)
        seen.append((suggestion.knobs, score(suggestion.knobs)))
        advisor.tell(outcome(suggestion.knobs, seen[-1][1], suggestion.token, "sampler"))
    return seen


def bowl(knobs: Knobs) -> float:
    """Best at 2 MiB and 0.3 ms: 0.8; the default is near 1."""
    return 0.8 + 0.5 * Space().distance(knobs, Knobs(2 << 20, 300_000)) ** 2


@of_the_search
def test_it_finds_the_bottom_of_a_bowl(make: Make, tmp_path: Path) -> None:
    advisor = make(StudyOptions(str(tmp_path / "s.db"), seed=1))
    assert advisor.open(WORK) == JOB.fingerprint(WORK)
    assert wait(advisor.stored) == Stored(None, 0)
    assert min(score for _, score in search(advisor, bowl, 8)) < 0.82


@of_the_search
def test_the_same_seed_suggests_the_same(make: Make, tmp_path: Path) -> None:
    runs = []
    for name in ("a", "b"):
        advisor = make(StudyOptions(str(tmp_path / name), seed=5))
        advisor.open(WORK)
        runs.append(search(advisor, bowl, 3))
    assert runs[0] == runs[1]


def test_the_next_session_starts_from_the_confirmed_setting(make: Make, tmp_path: Path) -> None:
    storage, kept = str(tmp_path / "s.db"), Knobs(2 << 20, 300_000)
    first = make(StudyOptions(storage))
    first.open(WORK)
    first.tell(outcome(Knobs(1 << 20, 100_000), 0.7))
    first.tell(outcome(kept, 0.8))
    first.conclude(result("improved", kept))
    first.close()
    second = make(StudyOptions(storage))
    second.open(WORK)
    assert wait(second.stored) == Stored(kept, 2, confirmed=True)


def test_an_interrupted_session_leaves_its_best_trial(make: Make, tmp_path: Path) -> None:
    storage, best = str(tmp_path / "s.db"), Knobs(1 << 20, 100_000)
    first = make(StudyOptions(storage))
    first.open(WORK)
    first.tell(outcome(Knobs(4 << 20, 100_000), 0.9))
    first.tell(outcome(best, 0.7))
    wait(first.ask)
    first.conclude(result("interrupted", DEFAULTS))
    first.close()
    second = make(StudyOptions(storage))
    second.open(WORK)
    assert wait(second.stored) == Stored(best, 2)


@of_the_search
def test_a_kept_default_is_nothing_to_start_from(make: Make, tmp_path: Path) -> None:
    storage = str(tmp_path / "s.db")
    first = make(StudyOptions(storage))
    first.open(WORK)
    first.tell(outcome(Knobs(1 << 20, 100_000), 0.7))
    first.conclude(result("keep-default", DEFAULTS))
    first.close()
    second = make(StudyOptions(storage))
    second.open(WORK)
    assert wait(second.stored) == Stored(None, 1)


@of_the_search
def test_another_job_starts_from_nothing(make: Make, tmp_path: Path) -> None:
    storage = str(tmp_path / "s.db")
    first = make(StudyOptions(storage))
    first.open(WORK)
    first.tell(outcome(Knobs(1 << 20, 100_000), 0.7))
    first.close()
    other = make(StudyOptions(storage))
    other.open(Workload(collectives=11, bytes=1000))
    assert wait(other.stored) == Stored(None, 0)


def confirmed(make: Make, storage: str, job: JobDescription, knobs: Knobs) -> None:
    """A finished session of a job."""
    advisor = make(StudyOptions(storage), job=job)
    advisor.open(WORK)
    advisor.conclude(result("improved", knobs))
    advisor.close()


@of_the_search
def test_a_job_of_another_size_starts_from_the_nearest(make: Make, tmp_path: Path) -> None:
    """Only the fusion buffer is searched in these jobs, so the cycle time stays the default's."""
    storage = str(tmp_path / "s.db")
    confirmed(make, storage, replace(JOB, world=4), Knobs(4 << 20, 100_000))
    confirmed(make, storage, replace(JOB, world=16, hosts=2), Knobs(16 << 20, 100_000))
    confirmed(make, storage, replace(JOB, world=8, cpu="other"), Knobs(8 << 20, 100_000))
    now = make(StudyOptions(storage), job=replace(JOB, world=8))
    now.open(WORK)
    assert wait(now.stored) == Stored(None, 0, near=Near(Knobs(4 << 20, DEFAULTS.cycle_time_ns), 4, 1))
    other = make(StudyOptions(storage), job=replace(JOB, world=8))
    other.open(Workload(collectives=10, bytes=1001))
    assert wait(other.stored) == Stored(None, 0), "other gradients"


@of_the_search
def test_a_job_like_it_that_kept_the_default_says_nothing(make: Make, tmp_path: Path) -> None:
    storage = str(tmp_path / "s.db")
    confirmed(make, storage, replace(JOB, world=4), DEFAULTS)
    now = make(StudyOptions(storage))
    now.open(WORK)
    assert wait(now.stored) == Stored(None, 0)


@of_the_search
def test_only_the_searched_knobs_are_suggested(make: Make, tmp_path: Path) -> None:
    space = Space.around(Knobs(fusion_bytes=0), ["fusion_bytes"])
    advisor = make(StudyOptions(str(tmp_path / "s.db")), space)
    advisor.open(WORK)
    assert wait(advisor.ask).knobs.fusion_bytes == 0


def test_a_storage_that_cannot_be_opened_is_a_failure_with_words(make: Make) -> None:
    advisor = make(StudyOptions("postgresql://nobody@127.0.0.1:1/none"))
    advisor.open(WORK)
    wait(lambda: True if advisor.state == "failed" else None)
    assert advisor.failure and "\n" not in advisor.failure
    assert advisor.stored() == Stored(None, 0)
    assert advisor.ask() is None


def test_a_database_without_its_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)  # as if it were not installed
    advisor = StudyAdvisor(Space(), JOB, StudyOptions("postgresql+psycopg://nobody@localhost/none"))
    advisor.open(WORK)
    assert advisor.failure.endswith("for PostgreSQL: pip install 'psycopg[binary]'")


def test_an_optional_storage_may_be_missing(make: Make, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    copy = tmp_path / "run" / "study.db"
    advisor = make(StudyOptions(str(tmp_path / "file" / "s.db"), str(copy), storage_optional=True))
    advisor.open(WORK)
    wait(advisor.stored)
    advisor.tell(outcome(Knobs(1 << 20, 100_000), 0.7))
    advisor.close()
    study = optuna.load_study(study_name=f"ringtune-{JOB.fingerprint(WORK)}", storage=f"sqlite:///{copy}")
    assert len(study.trials) == 1


@pytest.mark.parametrize("place", ["s.db", "sqlite:///{}/url.db", "journal.log"])
def test_what_is_stored_says_what_was_measured(make: Make, tmp_path: Path, place: str) -> None:
    storage = place.format(tmp_path) if "://" in place else str(tmp_path / place)
    copy = tmp_path / "study.db"
    advisor = make(StudyOptions(storage, str(copy)))
    advisor.open(WORK)
    suggestion = wait(advisor.ask)
    advisor.tell(outcome(suggestion.knobs, 3.5, suggestion.token, "sampler"))
    advisor.close()
    study = optuna.load_study(study_name=f"ringtune-{JOB.fingerprint(WORK)}", storage=f"sqlite:///{copy}")
    (trial,) = study.trials
    assert trial.value == 2.0  # clipped; the truth stands beside it
    assert trial.user_attrs["ratio"] == 3.5
    assert trial.user_attrs["step_ns"] == {"median": 2e6, "low": 1e6, "high": 3e6}
    assert (trial.user_attrs["source"], trial.user_attrs["knobs_version"]) == ("sampler", 7)
    assert trial.params == {name: float(value) for name, value in Space().params(suggestion.knobs).items()}
    assert study.user_attrs["ringtune:job"]["collectives"] == 10


# -- the process alone -----------------------------------------------------------------------------------------------


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ProcessAdvisor]:
    advisor = ProcessAdvisor(Setup(Space(), JOB, StudyOptions(str(tmp_path / "s.db"))))
    yield advisor
    advisor.close()


@pytest.mark.slow
def test_asking_never_waits(process: ProcessAdvisor) -> None:
    process.open(WORK)
    process.tell(outcome(Knobs(1 << 20, 100_000), 0.7))
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)  # as long as it is importing, however long this process sleeps here
    begin = time.thread_time()
    answers = [process.ask() for _ in range(5)]
    assert answers == [None] * 5
    assert time.thread_time() - begin < 0.1
    os.kill(process.pid, signal.SIGCONT)


def test_after_finish_the_process_stores_what_it_was_told_and_ends(process: ProcessAdvisor, tmp_path: Path) -> None:
    process.open(WORK)
    wait(process.stored)
    process.conclude(result("improved", Knobs(1 << 20, 100_000)))
    process.finish()
    process.finish()
    wait(lambda: None if process.pid is not None and _alive(process.pid) else True)
    process.close()
    study = optuna.load_study(study_name=f"ringtune-{JOB.fingerprint(WORK)}", storage=f"sqlite:///{tmp_path / 's.db'}")
    assert study.user_attrs["ringtune:confirmed"]["fusion_bytes"] == 1 << 20


@pytest.mark.slow
def test_what_is_learned_is_stored_while_the_sampler_still_computes(tmp_path: Path) -> None:
    """A sampler that never answers: the result and the trials are in the storage when the job has closed."""
    program = (
        "import threading; from ringtune.tuner import advisor, study; "
        "study.StudyAdvisor._ask = lambda self: threading.Event().wait(); advisor.main()"
    )
    place = f"sqlite:///{tmp_path / 's.db'}"
    advisor = ProcessAdvisor(Setup(Space(), JOB, StudyOptions(place)), [sys.executable, "-c", program])
    advisor.open(WORK)
    wait(advisor.stored)
    assert advisor.ask() is None
    advisor.tell(outcome(Knobs(1 << 20, 100_000), 0.7))
    advisor.conclude(result("improved", Knobs(1 << 20, 100_000)))
    advisor.close()
    study = optuna.load_study(study_name=f"ringtune-{JOB.fingerprint(WORK)}", storage=place)
    assert [trial.value for trial in study.trials] == [0.7]
    assert study.user_attrs["ringtune:confirmed"]["fusion_bytes"] == 1 << 20


def test_a_killed_process_is_one_failure(process: ProcessAdvisor) -> None:
    wait(lambda: True if process.state == "ready" else None)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    wait(lambda: True if process.state == "failed" else None)
    assert process.failure == "its process ended with code -9"
    process.tell(outcome(DEFAULTS, 1.0))
    process.conclude(result("interrupted", DEFAULTS))
    assert process.ask() is None and process.stored() == Stored(None, 0)


@pytest.mark.parametrize(
    ("program", "failure"),
    [
        ("import sys; sys.exit('no such sampler')", "its process ended with code 1: no such sampler"),
        ("print('hello'); input(); input()", "not understood: 'hello'"),
    ],
)
def test_a_process_that_breaks_says_its_last_words(program: str, failure: str) -> None:
    advisor = ProcessAdvisor(Setup(Space(), JOB, StudyOptions()), [sys.executable, "-uc", program])
    wait(lambda: True if advisor.state == "failed" else None)
    assert advisor.failure == failure
    advisor.close()


def test_a_program_that_is_not_there_is_a_failure() -> None:
    advisor = ProcessAdvisor(Setup(Space(), JOB, StudyOptions()), ["/nowhere/python"])
    assert advisor.state == "failed" and "does not start" in advisor.failure
    advisor.close()


@pytest.mark.slow
def test_it_is_nice_and_ignores_what_ends_the_job(process: ProcessAdvisor) -> None:
    wait(lambda: True if process.state == "ready" else None)
    assert process.pid is not None
    assert psutil.Process(process.pid).nice() >= 10
    os.kill(process.pid, signal.SIGINT)
    os.kill(process.pid, signal.SIGTERM)
    process.open(WORK)
    assert wait(process.stored) == Stored(None, 0)


@pytest.mark.slow
def test_it_dies_with_its_parent(tmp_path: Path) -> None:
    """Even when a forked child (a data loader) keeps the pipe open."""
    script = tmp_path / "parent.py"
    script.write_text(
        "import os, sys, time\n"
        "from ringtune.tuner.advisor import ProcessAdvisor\n"
        "from ringtune.tuner.fingerprint import JobDescription\n"
        "from ringtune.tuner.space import Space\n"
        "from ringtune.tuner.study import StudyOptions\n"
        "from ringtune.tuner.wire import Setup\n"
        "advisor = ProcessAdvisor(Setup(Space(), JobDescription(), StudyOptions()))\n"
        "while advisor.state != 'ready': time.sleep(0.01)\n"
        "loader = os.fork()\n"
        "if loader == 0: time.sleep(280); os._exit(0)\n"
        "print(advisor.pid, loader, flush=True)\n"
        "time.sleep(280)\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        advisor, loader = (int(word) for word in parent.stdout.readline().split())
        parent.kill()
        parent.wait()
        try:
            wait(lambda: None if psutil.pid_exists(advisor) and _alive(advisor) else True)
        finally:
            os.kill(loader, signal.SIGKILL)


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
