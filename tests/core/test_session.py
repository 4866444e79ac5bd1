from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ringtune
from ringtune import extensions, layout, native, session
from ringtune.bootstrap.departure import departure, exit_code
from ringtune.bootstrap.opening import runtime_options
from ringtune.bootstrap.placement import Placement
from ringtune.config import Config
from ringtune.errors import ConfigError, InvalidArgument, NotInitialized, RingtuneError, TraceIoError
from ringtune.knobs import Knobs
from ringtune.operations import Barrier
from ringtune.session import Session
from ringtune.stats import StepStats
from tests.core.fake_native import fake_of

Open = Callable[..., Session]


class Recorder:
    """An extension that writes down what it is told."""

    def __init__(self, fails_at: str = "") -> None:
        self.told: list[str] = []
        self.fails_at = fails_at

    def _note(self, what: str) -> None:
        self.told.append(what)
        if what == self.fails_at:
            raise RingtuneError("broken")

    def on_step(self, stats: StepStats) -> None:
        self._note(f"step {stats.step}")

    def on_close(self) -> None:
        self._note("close")

    def after_close(self) -> None:
        self._note("after")


@pytest.fixture
def extended(fake: None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Recorder]:
    def add(fails_at: str = "") -> Recorder:
        recorder = Recorder(fails_at)
        before = extensions.registered()
        monkeypatch.setattr(
            extensions, "registered", lambda: [*before, (f"r{len(before)}", lambda: lambda s: recorder)]
        )
        return recorder

    return add


def test_there_is_one_current_session(opened: Open) -> None:
    assert not ringtune.is_initialized()
    now = opened()
    assert Session.current() is now and ringtune.is_initialized() and ringtune.init() is now
    with pytest.raises(InvalidArgument, match="a session is open"):
        Session.open()
    ringtune.shutdown()
    assert Session.current() is None and now.closed and fake_of(now).down
    ringtune.shutdown()


def test_require_before_init() -> None:
    with pytest.raises(NotInitialized, match=r"Horovod has not been initialized; use hvd.init\(\)"):
        session.require()


def test_init_shutdown_init_uses_fresh_keys(opened: Open) -> None:
    first = opened().job
    session.shutdown()
    assert opened().job != first


def test_a_plain_script_writes_nothing(opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    now = opened()
    now.end_step()
    now.close()
    assert now.run_folder is None and list(tmp_path.iterdir()) == []


def test_the_run_folder(opened: Open, tmp_path: Path) -> None:
    now = opened(2, RINGTUNE_RUN_DIR=tmp_path / "r", RINGTUNE_CYCLE_TIME=2)
    assert [now.end_step().step for _ in range(2)] == [0, 1]
    run = json.loads((tmp_path / "r" / "run.json").read_text())
    assert (run["size"], run["hosts"], run["status"]) == (2, ["here", "here"], "running")
    assert run["config"]["RINGTUNE_CYCLE_TIME"] == 2 and run["knobs"]["cycle_time_ns"] == 2_000_000
    now.close()
    assert len(layout.step_log(tmp_path / "r", 0).read_text().splitlines()) == 2
    assert layout.machine_file(tmp_path / "r", 0).exists()
    assert json.loads((tmp_path / "r" / "run.json").read_text())["status"] == "finished"


def test_steps_that_nobody_marks_are_ended_where_the_operations_repeat(
    extended: Any, opened: Open, tmp_path: Path
) -> None:
    recorder = extended()
    now = opened(2, RINGTUNE_RUN_DIR=tmp_path)
    repeated = fake_of(now).step_repeated
    repeated()
    repeated()
    assert recorder.told == ["step 0", "step 1"] and fake_of(now).told == [False, False]
    assert now.end_step().step == 2
    assert fake_of(now).step_repeated is None  # from the first mark on only marks count
    assert fake_of(now).told == [False, False, True] and len(layout.step_log(tmp_path, 0).read_text().splitlines()) == 3


def test_steps_are_watched_only_where_somebody_writes_them_down(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    now = opened()
    assert fake_of(now).step_repeated is None
    now.start_timeline("t.json")
    assert fake_of(now).step_repeated is not None
    now.close()
    assert fake_of(now).step_repeated is None


def test_marked_steps_are_never_watched(opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    now = opened()
    now.end_step()
    now.start_timeline("t.json")
    assert fake_of(now).step_repeated is None


def test_the_launchers_description_is_kept(opened: Open, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"format": 1, "name": "mine", "status": "running", "labels": {}}')
    opened(RINGTUNE_RUN_DIR=tmp_path, RINGTUNE_LAUNCHER=1).close()
    run = json.loads((tmp_path / "run.json").read_text())
    assert (run["name"], run["status"], run["size"]) == ("mine", "running", 1)


def test_the_timeline_is_recorded_into_the_run_folder(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    now = opened(RINGTUNE_TIMELINE="trace.json")
    assert now.recording and now.timeline_file == tmp_path / "trace.json"
    assert now.run_folder is not None and layout.timeline_part(now.run_folder, 0).exists()
    assert json.loads(layout.run_file(now.run_folder).read_text())["labels"] == {
        "timeline": str(tmp_path / "trace.json")
    }
    with now.range("load"), ringtune.range("inner"):
        pass
    assert fake_of(now).ranges == ["inner", "load"]
    now.close()
    assert not fake_of(now).recording


def test_a_dynamic_timeline_waits(opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    now = opened(HOROVOD_TIMELINE="DYNAMIC")
    assert not now.recording and now.run_folder is None
    now.start_timeline("t.json")
    assert now.recording and now.run_folder is not None
    now.stop_timeline()
    now.stop_timeline()


def test_only_the_steps_asked_for_are_recorded(opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    now = opened(RINGTUNE_TIMELINE="trace.json", RINGTUNE_TIMELINE_STEPS="2:4,6:7", RINGTUNE_TIMELINE_DETAIL="full")
    recording = []
    for _ in range(8):
        recording.append(now.recording)
        now.end_step()
    assert recording == [False, False, True, True, False, False, True, False]
    assert [one["pieces"] for one in fake_of(now).timelines] == [True, True]


def test_a_disk_without_room_costs_spans_and_no_step(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    now = opened(RINGTUNE_TIMELINE="trace.json", RINGTUNE_TIMELINE_STEPS="1:2")

    def full(*args: object, **how: object) -> None:
        raise TraceIoError("cannot create the timeline file: No space left on device")

    monkeypatch.setattr(fake_of(now), "start_timeline", full)
    now.end_step()
    now.end_step()
    assert not now.recording
    assert capsys.readouterr().err.count("No space left on device") == 1


def test_range_without_session_does_nothing() -> None:
    with ringtune.range("x"):
        pass


def test_extensions_hear_everything_in_order(extended: Any, opened: Open) -> None:
    recorder = extended()
    now = opened()
    now.end_step()
    now.close()
    assert recorder.told == ["step 0", "close", "after"]


def test_a_failing_extension_is_dropped_and_training_goes_on(
    extended: Any, opened: Open, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, good = extended("step 0"), extended()
    now = opened()
    for _ in range(3):
        now.end_step()
    assert bad.told == ["step 0"] and good.told == ["step 0", "step 1", "step 2"]
    report = capsys.readouterr().err
    assert (
        report.count("\n") == 1 and "extension 'r0' failed at a step and is dropped, training goes on: broken" in report
    )


def test_an_extension_that_cannot_be_loaded_is_reported(
    opened: Open, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> Any:
        raise ImportError("No module named 'x'")

    monkeypatch.setattr(extensions, "registered", lambda: [("gone", missing)])
    opened().end_step()
    assert "extension 'gone' failed at opening" in capsys.readouterr().err


def test_horovods_ignored_variables_warn_once(opened: Open, capsys: pytest.CaptureFixture[str]) -> None:
    opened(HOROVOD_HIERARCHICAL_ALLGATHER=1)
    session.shutdown()
    opened()
    assert capsys.readouterr().err.count("HOROVOD_HIERARCHICAL_ALLGATHER=1 has no effect") == 1


def test_knobs(opened: Open) -> None:
    now = opened(RINGTUNE_FUSION_THRESHOLD=1000)
    assert now.knobs == Knobs(fusion_bytes=1000) and now.knobs_version == 0
    assert now.propose_knobs(Knobs(fusion_bytes=5)) == 1
    assert now.knobs.fusion_bytes == 5 and now.knobs_version == 1


def test_native_errors_are_translated(opened: Open) -> None:
    now = opened()
    fake_of(now).rank = 1
    with pytest.raises(InvalidArgument, match="only rank 0"):
        now.propose_knobs(Knobs())
    with pytest.raises(InvalidArgument, match="unknown"):
        now.poll(99)


def test_waiting_looks_at_signals(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    now = opened()
    fake_of(now).held.add("barrier.x")
    ticket = now.submit(Barrier("barrier.x"))
    monkeypatch.setattr(fake_of(now), "wait", _interrupt_after(fake_of(now).wait, 3))
    with pytest.raises(KeyboardInterrupt):
        now.wait(ticket)


def _interrupt_after(wait: Callable[[int, int], bool], calls: int) -> Callable[[int, int], bool]:
    left = [calls]

    def interrupting(ticket: int, timeout_ns: int) -> bool:
        assert timeout_ns <= 100_000_000
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return wait(ticket, timeout_ns)

    return interrupting


def test_options_carry_the_settings(fake: None) -> None:
    config = Config.from_environ(
        {
            "RINGTUNE_TRANSPORT": "tcp",
            "RINGTUNE_STALL_CHECK_TIME_SECONDS": "2.5",
            "RINGTUNE_THREAD_AFFINITY": "4,5",
            "RINGTUNE_LOG_LEVEL": "debug",
            "RINGTUNE_INTERFACE_ADDRESS": "10.0.0.1",
        }
    )
    placement = Placement(3, 4, local_rank=1, local_size=2, host="h")
    options = runtime_options(config, placement, ("s", 9), "j.1")
    assert (options.rank, options.size, options.host, options.job) == (3, 4, "h", "j.1")
    assert (options.store_host, options.store_port, options.bind_address) == ("s", 9, "10.0.0.1")
    assert (options.transport, options.thread_affinity, options.log_level) == (2, 5, 1)
    assert options.stall_warning_ns == 2_500_000_000
    assert callable(options.gpu_kernels), "compiled when they are asked for"
    config = Config.from_environ({"RINGTUNE_GPU_DATA_PATH": "staged"})
    assert not hasattr(runtime_options(config, placement, ("s", 9), "j.1"), "gpu_kernels")


def test_stall_check_can_be_switched_off(fake: None) -> None:
    config = Config.from_environ({"RINGTUNE_STALL_CHECK_DISABLE": "1", "RINGTUNE_STALL_SHUTDOWN_TIME_SECONDS": "3"})
    options = runtime_options(config, Placement(), ("", 0), "j")
    assert (options.stall_warning_ns, options.stall_shutdown_ns) == (0, 0)


@pytest.mark.parametrize(
    ("environ", "silence_ns"),
    [
        ({}, 60_000_000_000),
        ({"RINGTUNE_LIVENESS_TIMEOUT": "2.5"}, 2_500_000_000),
        ({"RINGTUNE_LIVENESS_TIMEOUT": "0"}, 0),
    ],
)
@pytest.mark.parametrize("rank", [0, 1], ids=["coordinator", "rank 1"])
def test_signs_of_life_are_looked_for_without_any_setting(
    environ: dict[str, str], silence_ns: int, rank: int, fake: None
) -> None:
    options = runtime_options(Config.from_environ(environ), Placement(rank, 2, host="h"), ("s", 9), "j.1")
    assert options.silence_ns == silence_ns


def test_too_few_cores_for_the_ranks(fake: None) -> None:
    config = Config.from_environ({"RINGTUNE_THREAD_AFFINITY": "4"})
    with pytest.raises(ConfigError, match="names 1 cores, but this is local rank 1"):
        runtime_options(config, Placement(1, 2, 1, 2), ("s", 1), "j")


def test_what_the_others_are_told_of_a_departure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys, "last_value", raising=False)
    assert departure(at_exit=False) == ("", False)
    assert departure(at_exit=True) == ("has come to the end of its script", False)
    monkeypatch.setattr(sys, "last_value", ValueError("bad\n  batch"), raising=False)
    assert departure(at_exit=False) == ("", False), "an error that the script has survived"
    assert departure(at_exit=True) == ("ended its script with ValueError: bad batch", True)
    monkeypatch.setattr(sys, "last_value", KeyboardInterrupt(), raising=False)
    assert departure(at_exit=True) == ("ended its script with KeyboardInterrupt", True)
    try:
        raise RuntimeError("x" * 1000)
    except RuntimeError:
        how, failed = departure(at_exit=False)
    assert failed and how.startswith("has shut down after RuntimeError: xxx") and len(how) < 500


def test_an_error_without_words_is_told_by_its_class() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise TypeError("not me")

    try:
        raise Mute
    except Mute:
        assert departure(at_exit=False) == ("has shut down after Mute", True)


def test_a_session_that_ends_with_its_script_says_why(opened: Open) -> None:
    first = opened()
    runtime = fake_of(first)
    try:
        raise ValueError("bad batch")
    except ValueError:
        session.shutdown()
    assert runtime.departure == ("has shut down after ValueError: bad batch", True)


def test_the_exit_code_shows_an_uncaught_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys, "last_value", raising=False)
    assert exit_code() is None
    monkeypatch.setattr(sys, "last_value", ValueError(), raising=False)
    assert exit_code() == 1
    monkeypatch.setattr(sys, "last_value", KeyboardInterrupt(), raising=False)
    assert exit_code() == 130


def test_a_missing_extension_module_is_one_clear_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ringtune._native", None)
    native.load.cache_clear()
    with pytest.raises(RingtuneError, match=r"native runtime cannot be loaded .* C\+\+20 compiler"):
        native.load()
    native.load.cache_clear()


def test_a_step_is_cheap(opened: Open) -> None:
    now = opened()
    begin = time.thread_time()
    for _ in range(1000):
        now.end_step()
    assert time.thread_time() - begin < 0.5
