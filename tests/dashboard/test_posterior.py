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
from ringtune.dashboard.data.trace import read_all, sources
from ringtune.dashboard.figures import tuning as figures
from ringtune.dashboard.figures import tuning_more as more
from ringtune.dashboard.pages.tuning import version_place

DEFAULT = {"fusion_bytes": 64 << 20, "cycle_time_ns": 1_000_000}


def trial(number: int, knobs: dict[str, int], ratio: float, **more: Any) -> dict[str, Any]:
    median = 1e7 * ratio
    step = {"median": median, "low": median * 0.99, "high": median * 1.01}
    source = {"source": "sampler" if number else "default", "state": "complete", "steps": 10, "epoch": number}
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
    assert figures.plane(past).data[0].marker.color == (100.0, 75.0)


def test_too_few_settings_and_broken_numbers_make_no_surface() -> None:
    assert posterior.learned(tuning.history([])) == posterior.Learned()
    knobs = {"fusion_bytes": 10**400, "cycle_time_ns": 1}
    rows = [trial(n, {"fusion_bytes": 1 << 20 + n, "cycle_time_ns": 1000}, math.nan) for n in range(9)]
    past = tuning.history([trial(0, DEFAULT, 1.0), trial(1, knobs, 1.0), *rows])
    assert tuning.placed(past) == [(past.trials[0], past.trials[0].step_ns)]
    assert posterior.learned(past) == posterior.Learned()
    for figure in (more.lost(past), more.importance(None), more.parallel(past)):
        assert len(figure.data) == 0 and figure.layout.annotations[0].text
    one_knob = session(lambda _power, _cycle: 1.0)
    assert posterior.learned(one_knob).importance == {}


def test_every_measured_setting_is_a_line_and_the_loss_a_staircase(runs: dict[str, Path]) -> None:
    past = tuning.data(read_run("x", runs["done"]))
    lines = [one for one in more.parallel(past).data if one.name.startswith("trial ")]
    assert len(lines) == 24 and all(0 <= place <= 1 for line in lines for place in line.y)
    staircase = more.lost(past).data[0]
    assert staircase.x[-1] == 23 and staircase.y[-1] == pytest.approx(18 * 23)
    plane = {one.name: one for one in figures.plane(past, surface=posterior.learned(past).surface).data}
    assert plane["expected"].zmin == plane["trials"].marker.cmin


def test_a_version_of_the_knobs_leads_to_its_steps(runs: dict[str, Path]) -> None:
    found = analyse(*read_all(runs["done"], sources(runs["done"])))
    first, second = version_place(found, 1), version_place(found, 2)
    assert not isinstance(first, str) and not isinstance(second, str)
    assert first.begin_ns < second.begin_ns < first.end_ns < second.end_ns  # half the steps each, a little widened
    assert version_place(found, 77) == "No step under version 77 is in the timeline"
    assert version_place(None, 1) == "No timeline was recorded"
