"""What a tuning session's trials let expect, on sessions whose answer is known."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ringtune.dashboard.data import posterior, tuning
from ringtune.dashboard.data.analysis import analyse
from ringtune.dashboard.data.runs import read_run
from ringtune.dashboard.data.timeline.trace import read_all, sources
from ringtune.dashboard.figures import tuning_plane, tuning_settings, tuning_trials
from ringtune.dashboard.pages.tuning import columns, table_rows, version_place

DEFAULT = {"fusion_bytes": 64 << 20, "cycle_time_ns": 1_000_000}


def trial(number: int, knobs: dict[str, int], ratio: float, **more: Any) -> dict[str, Any]:
    median = 1e7 * ratio
    step = {"median": median, "low": median * 0.99, "high": median * 1.01}
    source = {"source": "sampler" if number else "default", "state": "complete", "steps": 10, "knobs_version": number}
    return {"event": "trial", "trial": number, "knobs": knobs, "step_ns": step, **source, **more}


def session(ratio: Any) -> tuning.TuningHistory:
    """A session over a grid whose step time is a function of log2(fusion / 1 MiB) and log10(cycle / 1 ms)."""
    rows = [{"event": "start", "default": DEFAULT}, trial(0, DEFAULT, 1.0)]
    for number, (power, cycle) in enumerate([(p, c) for p in range(-1, 8, 2) for c in (-1.0, -0.5, 0.0, 0.5)], start=1):
        knobs = {"fusion_bytes": int(2.0**power * 2**20), "cycle_time_ns": int(10.0**cycle * 1e6)}
        rows.append(trial(number, knobs, ratio(power, cycle), lost_ns=1000 * number))
    return tuning.history(rows)


def test_the_surface_finds_the_valley_and_the_knob_that_makes_it() -> None:
    known = posterior.learned(session(lambda power, _: 0.8 + 0.02 * (power - 3) ** 2))
    assert known.surface is not None and known.importance is not None
    valley = known.surface.fusion_bytes[known.surface.share.mean(axis=0).argmin()]
    assert 3 * 2**20 < valley < 20 * 2**20
    assert known.surface.share.min() == pytest.approx(0.8, abs=0.03)
    assert np.all(known.surface.deviation > 0)
    assert known.importance["fusion_bytes"] > 0.95
    assert sum(known.importance.values()) == pytest.approx(1)


def test_the_tuners_own_comparison_counts_more_than_a_median_of_another_time() -> None:
    rows = [{"event": "start", "default": DEFAULT}, trial(0, DEFAULT, 1.0)]
    rows += [trial(1, {"fusion_bytes": 1 << 20, "cycle_time_ns": 100_000}, 2.0, gain={"median": 0.25})]
    past = tuning.history(rows)
    assert [tuning.against_default(past, one) for one in past.trials] == [1.0, 0.75]
    assert tuning_plane.plane(past).data[0].marker.color == (100.0, 75.0)


def test_too_few_settings_and_broken_numbers_make_no_surface() -> None:
    assert posterior.learned(tuning.history([])) == posterior.Learned()
    knobs = {"fusion_bytes": 10**400, "cycle_time_ns": 1}
    rows = [trial(n, {"fusion_bytes": 1 << 20 + n, "cycle_time_ns": 1000}, math.nan) for n in range(9)]
    past = tuning.history([trial(0, DEFAULT, 1.0), trial(1, knobs, 1.0), *rows])
    assert tuning.placed(past) == [(past.trials[0], past.trials[0].step_ns)]
    assert posterior.learned(past) == posterior.Learned()
    for figure in (tuning_trials.lost(past), tuning_settings.importance(None), tuning_settings.parallel(past)):
        assert len(figure.data) == 0 and figure.layout.annotations[0].text
    one_knob = session(lambda _power, _cycle: 1.0)
    assert posterior.learned(one_knob).importance == {}


def test_every_measured_setting_is_a_line_and_the_loss_a_staircase(runs: dict[str, Path]) -> None:
    past = tuning.data(read_run("x", runs["done"]))
    lines = [one for one in tuning_settings.parallel(past).data if one.name.startswith("trial ")]
    assert len(lines) == 24 and all(0 <= place <= 1 for line in lines for place in line.y)
    staircase = tuning_trials.lost(past).data[0]
    assert staircase.x[-1] == 23 and staircase.y[-1] == pytest.approx(18 * 23)
    plane = {one.name: one for one in tuning_plane.plane(past, surface=posterior.learned(past).surface).data}
    assert plane["expected"].zmin == plane["trials"].marker.cmin


def with_restarts(decision: str = "improved") -> tuning.TuningHistory:
    """A session that tries two variables: the sockets matter, the other one hardly."""
    tried = [("A", "1"), ("A", "2"), ("B", "x"), ("B", "<b>"), ("A", "4")]
    rows = [{"event": "start", "default": DEFAULT}, {**trial(0, DEFAULT, 1.0), "settings": {}}]
    for number, (name, value) in enumerate(tried, start=1):
        settings = {name: value} if name == "A" else {"A": "2", name: value}
        ratio = 0.5 if settings["A"] == "2" else 0.9
        rows.append({**trial(number, DEFAULT, ratio + 0.01 * number), "settings": settings})
    rows.append({"event": "failed-trial", "trial": 6, "settings": {"A": "8"}, "message": "no <i>such</i> socket"})
    rows.append({**trial(7, DEFAULT, 0.52), "source": "confirm", "settings": {"A": "2"}})
    kept = {"A": "2"} if decision == "improved" else {}
    return tuning.history([*rows, {"event": "result", "decision": decision, "knobs": DEFAULT, "settings": kept}])


def test_a_session_with_restarts_shows_the_variables_of_its_trials() -> None:
    past = with_restarts()
    assert past.variables == ["A", "B"] and tuning.words(past)[0].startswith("A better setting was found")
    assert "A=2" in tuning.words(past)[0] and tuning.words(past)[-1].endswith("1 more failed.")
    rows = table_rows(past)
    assert [row["setting"] for row in rows] == [
        "the command as it is", "A=1", "A=2", "A=2, B=x", "A=2, B=<b>", "A=4", "A=8", "A=2",
    ]  # fmt: skip
    assert rows[6]["state"] == "failed: no <i>such</i> socket" and "step_ns" not in rows[6]
    assert [one["field"] for one in columns(with_restarts=True)] == [
        "trial", "source", "state", "setting", "step_ns", "interval", "steps",
    ]  # fmt: skip
    figure = tuning_settings.parallel(past)
    lines = [one for one in figure.data if one.name.startswith("trial ")]
    assert [tuple(line.y[:2]) for line in lines[:4]] == [(0, 0), (1 / 3, 0), (2 / 3, 0), (2 / 3, 0.5)]
    assert [one.text for one in figure.layout.annotations][5:9] == ["B", "as it is", "x", "&lt;b&gt;"]
    assert [line.name for line in lines if line.line.width == 3] == ["trial 2", "trial 7"]
    assert tuning_plane.plane(past).data == () and tuning.placed(past) == []
    importance = posterior.learned(past).importance
    assert importance is not None and importance["A"] > 0.8


@pytest.mark.parametrize("decision, best", [("improved", [1.0, 0.52]), ("keep-default", [1.0, 1.0])])
def test_the_best_confirmed_of_a_session_with_restarts_is_that_of_the_kept_setting(
    decision: str, best: list[float]
) -> None:
    numbers, found = tuning.best_confirmed(with_restarts(decision))
    assert (numbers[0], numbers[-1]) == (0, 7)
    assert [found[0] / found[0], found[-1] / found[0]] == pytest.approx(best)


def test_a_version_of_the_knobs_leads_to_its_steps(runs: dict[str, Path]) -> None:
    found = analyse(*read_all(runs["done"], sources(runs["done"])))
    first, second = version_place(found, 1), version_place(found, 2)
    assert not isinstance(first, str) and not isinstance(second, str)
    assert first.begin_ns < second.begin_ns < first.end_ns < second.end_ns  # half the steps each, a little widened
    assert version_place(found, 77) == "No step under version 77 is in the timeline"
    assert version_place(None, 1) == "No timeline was recorded"
