from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringtune.knobs import DEFAULTS, Knobs
from ringtune.tuner.space import CYCLE, FUSION, Space, Surroundings, distinct


def test_bounds() -> None:
    assert (FUSION.low, FUSION.high) == (64 << 10, 256 << 20)
    assert (CYCLE.low, CYCLE.high) == (50_000, 50_000_000)


def test_the_scale_is_logarithmic() -> None:
    assert FUSION.at(0.0) == FUSION.low and FUSION.at(1.0) == FUSION.high
    assert FUSION.at(0.5) == 4 << 20  # sqrt(64 KiB * 256 MiB)
    assert FUSION.unit(4 << 20) == pytest.approx(0.5)


@given(st.floats(0, 1))
def test_places_survive_the_way_there_and_back(unit: float) -> None:
    for dimension in (FUSION, CYCLE):
        assert abs(dimension.unit(dimension.at(unit)) - unit) < 0.004
        assert dimension.snap(dimension.at(unit)) == dimension.at(unit)


def test_values_outside_are_moved_to_the_edge() -> None:
    space = Space()
    assert space.params(Knobs(fusion_bytes=0, cycle_time_ns=0)) == {"fusion_bytes": 64 << 10, "cycle_time_ns": 50_000}
    assert space.knobs({"fusion_bytes": 1e12, "cycle_time_ns": 1.0}) == Knobs(256 << 20, 50_000)


def test_the_default_is_inside() -> None:
    assert Space().knobs(Space().params(DEFAULTS)) == DEFAULTS
    horovods = Knobs(128 << 20, 1_000_000)
    assert Space(horovods).knobs(Space(horovods).params(horovods)) == horovods


def test_knobs_fixed_by_the_user_keep_his_value() -> None:
    default = Knobs(fusion_bytes=0, cycle_time_ns=2_000_000)
    space = Space.around(default, ["fusion_bytes"])
    assert [dimension.name for dimension in space.dimensions] == ["cycle_time_ns"]
    assert {knobs.fusion_bytes for knobs in space.start_points()} == {0}
    assert space.knobs({"cycle_time_ns": 70_000}) == Knobs(0, 70_000)


def test_nothing_is_left_when_all_is_fixed() -> None:
    space = Space.around(DEFAULTS, ["fusion_bytes", "cycle_time_ns"])
    assert space.dimensions == () and space.start_points() == []


def words(settings: list[Knobs], base: Knobs) -> list[dict[str, int]]:
    """What each setting changes."""
    usual = base.as_dict()
    return [{name: value for name, value in one.as_dict().items() if value != usual[name]} for one in settings]


def test_ranks_of_one_host_have_only_the_step_schedule_to_switch() -> None:
    space = Space.around(DEFAULTS, place=Surroundings(hosts=1, local=4))
    assert words(space.alternatives(DEFAULTS), DEFAULTS) == [{"step_schedule": 0}]
    assert space.names == ("fusion_bytes", "cycle_time_ns", "step_schedule", "cache_capacity")


def test_the_cache_counts_only_without_a_step_schedule() -> None:
    space = Space.around(DEFAULTS, place=Surroundings(hosts=1, local=4))
    negotiated = Knobs(step_schedule=0)
    assert words(space.alternatives(negotiated), negotiated) == [{"step_schedule": 1}, {"cache_capacity": 0}]


def test_algorithms_are_tried_where_the_levels_do_not_decide() -> None:
    flat = Space.around(DEFAULTS, ["step_schedule", "segment_bytes"], Surroundings(hosts=4, local=1))
    assert words(flat.alternatives(DEFAULTS), DEFAULTS) == [{"algorithm": 1}, {"algorithm": 4}, {"algorithm": 3}]
    levels = Space.around(DEFAULTS, ["step_schedule", "segment_bytes"], Surroundings(hosts=2, local=4))
    assert words(levels.alternatives(DEFAULTS), DEFAULTS) == [{"hierarchical": 2}]
    off = Knobs(hierarchical=2)
    assert {"algorithm": 1} in words(levels.alternatives(off), off)


def test_streams_of_nccl_are_tried_once_tensors_go_by_it() -> None:
    begun = False
    space = Space.around(DEFAULTS, ["step_schedule"], Surroundings(by_nccl=lambda: begun))
    assert space.alternatives(DEFAULTS) == []
    assert "nccl_streams" not in space.names
    begun = True
    assert words(space.alternatives(DEFAULTS), DEFAULTS) == [{"nccl_streams": 2}, {"nccl_streams": 4}]
    own = Space.around(Knobs(nccl_streams=3), ["step_schedule", "nccl_streams"], Surroundings(by_nccl=lambda: True))
    assert own.alternatives(Knobs(nccl_streams=3)) == []


def test_segments_are_a_matter_of_links() -> None:
    space = Space.around(DEFAULTS, ["step_schedule", "algorithm"], Surroundings(hosts=2, local=1))
    assert [one.segment_bytes >> 10 for one in space.alternatives(DEFAULTS)] == [512, 32, 2048]


def test_start_points_differ_from_each_other_and_from_the_default() -> None:
    space = Space()
    points = space.start_points()
    assert len(points) == 4
    assert distinct(space, points, apart=0.1, taken=[DEFAULTS]) == points


def test_distance_is_on_the_logarithmic_scale() -> None:
    space = Space()
    low, high = Knobs(64 << 10, 50_000), Knobs(256 << 20, 50_000_000)
    assert space.distance(low, high) == pytest.approx(math.sqrt(2))
    assert space.distance(Knobs(1 << 20), Knobs(2 << 20)) == pytest.approx(
        space.distance(Knobs(1 << 24), Knobs(1 << 25))
    )
