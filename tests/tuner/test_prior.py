"""First points of a search by the cost model."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringtune.errors import RingtuneError
from ringtune.knobs import DEFAULTS, Knobs
from ringtune.tuner.prior import first_points, learned
from ringtune.tuner.space import Space


def test_the_best_of_the_model_comes_first_and_others_lie_apart() -> None:
    def prior(knobs: Knobs) -> float:
        return 1.0 + abs(Space().dimensions[0].unit(knobs.fusion_bytes) - 0.25)

    points = first_points(Space(), prior, 3)
    assert Space().dimensions[0].unit(points[0].fusion_bytes) == pytest.approx(0.25, abs=0.01)
    assert len(points) == 3
    assert min(Space().distance(a, b) for a in points for b in points if a != b) >= 0.2


def test_a_model_that_sees_nothing_better_gives_no_points() -> None:
    assert first_points(Space(), lambda knobs: 5.0, 3) == []
    assert first_points(Space(), lambda knobs: 1.0 if knobs == DEFAULTS else 0.996, 3) == []


def test_a_timeline_without_steps_is_an_error(tmp_path: Path) -> None:
    trace = tmp_path / "rank-00000.json"
    trace.write_text("[]")
    with pytest.raises(RingtuneError):
        learned(trace, ["a", "b"])


def test_settings_that_the_model_cannot_tell_apart_change_as_little_as_they_can() -> None:
    (first,) = first_points(Space(), lambda knobs: 1.0 if knobs.fusion_bytes >= 16 << 20 else 0.5, 1)
    assert 0.2 <= Space().distance(first, DEFAULTS) <= 0.25
