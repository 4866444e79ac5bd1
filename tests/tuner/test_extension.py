"""The tuner inside a session: a session-like object over a simulated job, with the real advisor process."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from ringtune import layout
from ringtune.bootstrap.placement import Placement
from ringtune.config import Config
from ringtune.elastic.job_timeline import JobTimeline
from ringtune.elastic.tracks import Tracks
from ringtune.errors import InvalidArgument
from ringtune.knobs import Knobs
from ringtune.tuner import extension
from ringtune.tuner.extension import TunerExtension, open_tuner, space_of
from ringtune.tuner.landscape import Noise, SimulatedRun, SyntheticJob
from ringtune.tuner.messages import sentence
from ringtune.tuner.records import StartRecord, parse

online_options = extension.online_options
SMALL = SyntheticJob(gradients=400, backward_ns=2e6, bytes=4 << 20, latency_ns=20e3)
BAD = Knobs(256 << 10, 20_000_000)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated steps pass far quicker than the advisor's real seconds: wait for it as long as it takes."""
    monkeypatch.setattr(
        extension,
        "online_options",
        lambda config, world: replace(online_options(config, world), advisor_wait_ns=10**18),
    )


class FakeSession:
    """What the tuner needs of a session."""

    rank, size = 0, 2
    hosts: tuple[str, ...] = ("here", "here")
    tracks = Tracks(Placement(rank=0, size=2), hosts)

    def __init__(self, folder: Path, **environ: str) -> None:
        self.config = Config.from_environ({"RINGTUNE_AUTOTUNE": "1", "RINGTUNE_AUTOTUNE_SEED": "1", **environ})
        self.run = SimulatedRun(SMALL, Noise(0.01), BAD, 1)
        self.knobs = BAD
        self.refuses = False
        # Nothing is recorded, but from the beginning it is said to be: as where the user records a timeline himself.
        self.recording = True
        self.parts: list[str] = []
        self._folder = folder

    def ensure_run_folder(self) -> Path:
        return self._folder

    def start_part(self, path: str) -> None:
        self.recording = True
        self.parts.append(path)

    def stop_part(self) -> None:
        self.recording = False

    def uses_nccl(self) -> bool:
        return False

    def propose_knobs(self, knobs: Knobs) -> int:
        if self.refuses:
            raise InvalidArgument("no knobs today")
        return self.run.propose(knobs)


def opened(session: Any) -> TunerExtension:
    extension = open_tuner(session)
    assert extension is not None
    return extension


def train(session: FakeSession, tuner: TunerExtension, seconds: float = 120) -> None:
    """Step until the tuner has decided, then end; steps take a little real time, as the advisor does."""
    deadline = time.monotonic() + seconds
    while tuner.tuner.result is None:
        assert time.monotonic() < deadline
        tuner.on_step(session.run.next_step())
        time.sleep(0.0005)
    tuner.on_close()


def journal(folder: Path) -> list[dict[str, Any]]:
    """What a session has written, without how far its comparisons were."""
    rows = [orjson.loads(line) for line in layout.tuning_journal(folder).read_bytes().splitlines()]
    return [row for row in rows if row["event"] != "progress"]


@pytest.mark.slow
def test_steps_that_the_script_marks_after_all_are_tuned_anew(tmp_path: Path) -> None:
    session = FakeSession(tmp_path, RINGTUNE_AUTOTUNE_MAX_TRIALS="3")
    tuner = opened(session)
    deadline = time.monotonic() + 120
    while not tuner.tuner.trials:  # the default was measured in what the operations' repetition made of steps
        assert time.monotonic() < deadline
        tuner.on_step(replace(session.run.next_step(), detected=True))
        time.sleep(0.0005)
    train(session, tuner)
    rows = journal(tmp_path)
    events = [(row["event"], row.get("decision")) for row in rows]
    end = events.index(("result", "interrupted"))
    assert rows[end]["reason"].startswith("the script began to mark its steps")
    assert events[0] == events[end + 1] == ("start", None)
    assert events[-1][0] == "result" and len([event for event in events if event[0] == "result"]) == 2


def test_without_a_timeline_of_the_warm_up_the_reason_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: FakeSession, path: str) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(FakeSession, "start_part", full)
    session = FakeSession(tmp_path)
    session.recording = False
    opened(session).on_close()
    said = capsys.readouterr().err
    assert (
        said.count("no timeline of the warm-up, the search begins without a cost model: No space left on device") == 1
    )


@pytest.mark.slow
def test_a_session_finds_a_better_setting_and_the_next_starts_from_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    csv = tmp_path / "autotune.csv"
    first = FakeSession(tmp_path / "one", RINGTUNE_AUTOTUNE_LOG=str(csv), RINGTUNE_AUTOTUNE_MAX_TRIALS="8")
    tuner = opened(first)
    train(first, tuner)
    result = journal(tmp_path / "one")[-1]
    assert (result["event"], result["decision"]) == ("result", "improved")
    for _ in range(3):
        first.run.next_step()
    assert first.run.knobs.as_dict() | result["knobs"] == first.run.knobs.as_dict()
    assert first.run.knobs_version == result["knobs_version"]
    assert "ringtune autotune: improved: fusion" in capsys.readouterr().err
    assert csv.read_text().startswith("hierarchical_allreduce,")
    rows = len(csv.read_text().splitlines())
    assert layout.tuning_study(tmp_path / "one").is_file()

    # As in the next generation of an elastic job: the search goes on with what is stored, the log with its rows.
    second = FakeSession(tmp_path / "two", RINGTUNE_AUTOTUNE_LOG=str(csv), RINGTUNE_AUTOTUNE_MAX_TRIALS="3")
    place = Placement(rank=0, size=2, job="job", generation=2, timeline=JobTimeline((1, 2), hosts={1: "a", 2: "a"}))
    second.tracks = Tracks(place, second.hosts)
    tuner = opened(second)
    train(second, tuner)
    start, note, default, stored, end = journal(tmp_path / "two")
    assert start["stored_trials"] >= 5 and note["message"].startswith("the stored result of this job runs at once")
    assert (default["trial"], default["source"]) == (0, "default")
    assert (stored["trial"], stored["source"], stored["knobs"]) == (1, "confirm", result["knobs"])
    assert (end["decision"], end["knobs"], end["trials"]) == ("improved", result["knobs"], 2)
    lines = csv.read_text().splitlines()
    assert len(lines) > rows and [line.startswith("hierarchical_allreduce,") for line in lines].count(True) == 1
    assert "the stored result still holds: " in capsys.readouterr().err

    larger = FakeSession(tmp_path / "three", RINGTUNE_AUTOTUNE_MAX_TRIALS="2")
    larger.size, larger.hosts = 4, ("here",) * 4
    train(larger, opened(larger))
    start, note, _, near, *_ = journal(tmp_path / "three")
    assert (start["world"], start["stored_trials"]) == (4, 0)
    assert note["message"].startswith("starts from what the same gradients had with 2 ranks on 1 host(s): ")
    assert near["source"] == "near" and near["knobs"]["fusion_bytes"] == result["knobs"]["fusion_bytes"]


@pytest.mark.slow
def test_the_warm_up_is_recorded_unless_the_user_records(tmp_path: Path) -> None:
    session = FakeSession(tmp_path, RINGTUNE_AUTOTUNE_MAX_TRIALS="1")
    session.recording = False
    tuner = opened(session)
    assert session.parts == [str(tmp_path / "tuning" / "rank-00000.json")] and session.recording
    train(session, tuner)
    assert not session.recording
    session = FakeSession(tmp_path, RINGTUNE_AUTOTUNE_MAX_TRIALS="1")
    train(session, opened(session))
    assert session.parts == [] and session.recording


@pytest.mark.slow
def test_a_training_that_ends_early_keeps_what_was_learned(tmp_path: Path) -> None:
    session = FakeSession(tmp_path / "run")
    tuner = opened(session)
    deadline = time.monotonic() + 120
    while len(tuner.tuner.trials) < 3:
        assert time.monotonic() < deadline
        tuner.on_step(session.run.next_step())
        time.sleep(0.0005)
    tuner.on_close()
    result = journal(tmp_path / "run")[-1]
    assert result["decision"] == "interrupted"
    assert result["reason"].startswith("training ended in the search phase after 3 of at most 16 trials")
    tuner.on_step(session.run.next_step())  # nothing happens any more

    again = FakeSession(tmp_path / "again", RINGTUNE_AUTOTUNE_MAX_TRIALS="2")
    tuner = opened(again)
    train(again, tuner)
    assert journal(tmp_path / "again")[2]["source"] == "stored"


def test_refused_knobs_end_the_tuner_and_its_process(tmp_path: Path) -> None:
    session = FakeSession(tmp_path)
    tuner = opened(session)
    session.refuses = True
    with pytest.raises(InvalidArgument, match="no knobs today"):
        train(session, tuner)
    assert tuner._closed
    tuner.on_close()


def test_every_trial_is_printed_when_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session = FakeSession(tmp_path, RINGTUNE_LOG_LEVEL="info", RINGTUNE_AUTOTUNE_MAX_TRIALS="2")
    train(session, opened(session))
    printed = capsys.readouterr().err.splitlines()
    assert printed[0].startswith(
        "ringtune autotune: searching fusion, cycle, step schedule, cache on 2 ranks, at most 2 trials"
    )
    assert printed[1].startswith("ringtune autotune: trial 0 (default): fusion 256 KiB, cycle 20 ms: ")


def test_other_ranks_and_jobs_without_autotune_have_no_tuner(tmp_path: Path) -> None:
    session: Any = FakeSession(tmp_path)
    session.rank = 1
    assert open_tuner(session) is None
    session = FakeSession(tmp_path, RINGTUNE_AUTOTUNE="0")
    assert open_tuner(session) is None
    assert list(tmp_path.iterdir()) == []


def test_a_job_of_one_rank_has_nothing_to_tune(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session: Any = FakeSession(tmp_path)
    session.size = 1
    assert open_tuner(session) is None
    assert "nothing to tune" in capsys.readouterr().err


@pytest.mark.parametrize("prefix", ["RINGTUNE_", "HOROVOD_"])
def test_knobs_that_the_user_sets_are_left_alone(prefix: str) -> None:
    config = Config.from_environ({f"{prefix}FUSION_THRESHOLD": "1048576"})
    space = space_of(config, config.knobs)
    assert [dimension.name for dimension in space.dimensions] == ["cycle_time_ns"]
    assert space.default.fusion_bytes == 1 << 20
    assert space.pinned == (f"fusion (1 MiB, set by {prefix}FUSION_THRESHOLD)",)


def test_every_knob_that_the_user_sets_is_said_not_to_be_searched() -> None:
    given = {
        "FUSION_THRESHOLD": "65536", "CYCLE_TIME": "2.5", "SEGMENT_BYTES": "131072", "CACHE_CAPACITY": "0",
        "ALGORITHM": "ring", "HIERARCHICAL_ALLREDUCE": "0", "STEP_SCHEDULE": "0", "NUM_NCCL_STREAMS": "4",
    }  # fmt: skip
    config = Config.from_environ({f"RINGTUNE_{name}": value for name, value in given.items()})
    space = space_of(config, config.knobs, extension.Surroundings(hosts=2, local=2))
    texts = ("fusion (64 KiB", "cycle (2.5 ms", "segment (128 KiB", "cache (0 tensors", "algorithm (ring",
             "hierarchical (off", "step schedule (off", "NCCL streams (4")  # fmt: skip
    said = [f"{text}, set by RINGTUNE_{name})" for text, name in zip(texts, given, strict=True)]
    assert sorted(space.pinned) == sorted(said) and space.names == ()
    start = StartRecord(space.default, "ab", 4, space.names, 16, 10, not_searched=space.pinned)
    assert parse(start.as_dict()) == start
    assert all(text in sentence(start) for text in said)


def test_the_budget_comes_from_the_environment() -> None:
    environ = {"HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "7", "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "20"}
    options = online_options(Config.from_environ(environ), 4)
    assert (options.max_trials, options.steps_per_trial, options.warmup_steps, options.world) == (7, 20, 5, 4)


@pytest.mark.parametrize(("percent", "share"), [("1.5", 0.015), ("0", None)])
def test_the_bound_on_lost_time_comes_from_the_environment(percent: str, share: float | None) -> None:
    environ = {"RINGTUNE_AUTOTUNE_BUDGET": percent, "RINGTUNE_AUTOTUNE_HORIZON": "400"}
    options = online_options(Config.from_environ(environ), 2)
    assert (options.budget, options.horizon_steps) == (share, 400)


def test_a_storage_of_the_users_choice_is_the_only_one() -> None:
    config = Config.from_environ({"RINGTUNE_AUTOTUNE_STUDY": "postgresql://team/db"})
    options = extension.study_options(config, "/run/study.db")
    assert (options.storage, options.copy, options.storage_optional) == ("postgresql://team/db", "", False)
