"""What the dashboard reads from a tuning session's journal, and how it says the outcome."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ringtune.algorithms import ALGORITHMS
from ringtune.dashboard.data import tuning
from ringtune.dashboard.data.runs import read_run
from tests.timeline.generated_run import generate_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return generate_run(tmp_path, "exact")


def test_best_confirmed_counts_only_confirmed_trials(run: Path) -> None:
    past = tuning.data(read_run("x", run))
    assert len(past.trials) == 5
    assert tuning.best_confirmed(past) == ([0, 1, 2, 3, 4], [14.0e6, 14.0e6, 14.0e6, 14.0e6, 11.4e6])
    level = tuning.default_step_ns(past)
    assert level is not None and level.median == 14.0e6


def test_the_decision_in_words(run: Path) -> None:
    words = tuning.words(tuning.data(read_run("x", run)))
    assert words == [
        "A better setting was found and confirmed: fusion buffer 16 MiB, cycle time 250 µs. "
        "A step takes 19.0 % less time than with the default (15.0 % to 23.0 %).",
        "To keep it: RINGTUNE_FUSION_THRESHOLD=16777216 RINGTUNE_CYCLE_TIME=0.25.",
        "The search cost 3.20 ms against training with the default.",
        "5 trials, 1 of them stopped early for being clearly slower.",
    ]


def result(**more: Any) -> list[dict[str, Any]]:
    about = {"decision": "improved", "knobs_version": 4, "gain": None, "lost_ns": 0, "reason": "", "at_unix_ns": 1}
    return [{"event": "start", "default": {}}, {"event": "result", "knobs": {}, **about, **more}]


def test_every_knob_of_the_result_is_said_and_in_the_lines_that_keep_it() -> None:
    switches = {"algorithm": 3, "step_schedule": 0, "segment_bytes": 4096}
    knobs = {"fusion_bytes": 1 << 20, "cycle_time_ns": 500_000, **switches}
    said, kept, *_ = tuning.words(tuning.history(result(knobs=knobs)))
    words = (
        "fusion buffer 1 MiB",
        "cycle time 500 µs",
        "no step schedule",
        f"algorithm {ALGORITHMS[3]}",
        "segment 4 KiB",
    )
    assert not [one for one in words if one not in said], said
    assert kept.startswith("To keep it: RINGTUNE_FUSION_THRESHOLD=1048576 RINGTUNE_CYCLE_TIME=0.5 ")
    lines = ("RINGTUNE_STEP_SCHEDULE=0", f"RINGTUNE_ALGORITHM={ALGORITHMS[3]}", "RINGTUNE_SEGMENT_BYTES=4096")
    assert not [line for line in lines if line not in kept], kept


def test_what_restarts_found_is_said_as_lines_of_the_script_too() -> None:
    row = {"event": "trial", "trial": 0, "source": "default", "settings": {}}
    rows = result(settings={"RINGTUNE_BUCKET_CAP_MB": "50"})
    _, kept, script, *_ = tuning.words(tuning.history([rows[0], row, rows[1]]))
    assert kept == "To keep it: RINGTUNE_BUCKET_CAP_MB=50."
    assert script == "Or in the script: DistributedDataParallel(model, bucket_cap_mb=50)."
    first = {"settings": {"RINGTUNE_DDP_FIRST_BUCKET_MB": "4"}, "made": {"RINGTUNE_BUCKET_CAP_MB": "100"}}
    _, _, script, *_ = tuning.words(tuning.history([rows[0], row, {**rows[1], **first}]))
    assert script == "Or in the script: DistributedDataParallel(model, bucket_cap_mb_list=[4, 100])."


@pytest.mark.parametrize("knobs", [{"algorithm": 99}, {"hierarchical": -1}, {"nccl_streams": 1 << 40}])
def test_knobs_that_none_can_have_are_not_said(knobs: dict[str, int]) -> None:
    assert tuning.other_words(knobs) == []
    assert tuning.words(tuning.history(result(knobs=knobs)))[0].startswith("A better setting")


def test_only_the_last_session_of_a_journal_counts() -> None:
    rows = [
        {"event": "start"},
        {"event": "result", "decision": "improved", "knobs": {}},
        {"event": "start", "world": 3},
    ]
    past = tuning.history(rows)
    assert (past.world, past.result, past.trials) == (3, None, ())


def test_broken_trials_are_left_out() -> None:
    past = tuning.history([{"event": "trial", "trial": "x"}, {"event": "trial"}, {"event": 5}])
    assert past.trials == () and len(past.problems) == 2


def trial_row(number: int, source: str, knobs: dict[str, int], median: float) -> dict[str, object]:
    step = {"median": median, "low": median - 1.0, "high": median + 1.0}
    return {
        "event": "trial", "trial": number, "source": source, "state": "complete", "knobs": knobs,
        "knobs_version": number, "steps": 10, "step_ns": step,
    }  # fmt: skip


def test_a_journal_of_an_earlier_version_is_read() -> None:
    row = trial_row(0, "default", {"fusion_bytes": 1, "plan": 0}, 10.0)
    row["epoch"] = row.pop("knobs_version") or 4
    past = tuning.history([{"event": "start", "default": {"plan": 0}, "world": 2}, row])
    assert past.default == {"step_schedule": 0} and past.trials[0].knobs_version == 4
    assert past.trials[0].knobs == {"fusion_bytes": 1, "step_schedule": 0}


@pytest.mark.parametrize(
    ("decision", "expected"), [("keep-default", [10.0, 10.0, 9.0, 9.0]), ("improved", [10.0, 10.0, 10.0, 8.0])]
)
def test_a_lower_median_is_confirmed_only_by_the_result(decision: str, expected: list[float]) -> None:
    default = {"fusion_bytes": 1, "cycle_time_ns": 1}
    rival = {"fusion_bytes": 2, "cycle_time_ns": 1}
    past = tuning.history(
        [
            {"event": "start", "default": default, "world": 2},
            trial_row(0, "default", default, 10.0),
            trial_row(1, "sampler", rival, 7.0),
            trial_row(2, "confirm", default, 9.0),
            trial_row(3, "confirm", rival, 8.0),
            {"event": "result", "decision": decision, "knobs": default if decision == "keep-default" else rival},
        ]
    )
    assert tuning.best_confirmed(past) == ([0, 1, 2, 3], expected)
