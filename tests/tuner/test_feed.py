from __future__ import annotations

from ringtune.stats import StepStats
from ringtune.tuner.feed import Sample, StepFeed


def step(number: int, wall: int, *, knobs_version: int = 0, world: tuple[int, int] = (-1, 0)) -> StepStats:
    return StepStats(
        number, knobs_version, 1000, 1000 + wall, bytes=8, collectives=2, world_step=world[0], world_step_ns=world[1]
    )


def test_alone_the_ranks_own_time_counts() -> None:
    feed = StepFeed()
    assert feed.add(step(0, 70)) == Sample(0, 70, 8, 2)
    assert feed.add(step(1, 80, knobs_version=3)) == Sample(3, 80, 8, 2)
    assert feed.add(step(2, 0)) is None


def test_the_slowest_rank_counts_where_known() -> None:
    feed = StepFeed()
    feed.add(step(0, 70, knobs_version=1))
    assert feed.add(step(1, 70, knobs_version=2, world=(0, 95))) == Sample(1, 95, 8, 2)  # step 0 ran under version 1


def test_a_world_step_counts_once_and_the_own_time_never_again() -> None:
    feed = StepFeed()
    assert feed.add(step(0, 70, world=(0, 95))) is not None
    assert feed.add(step(1, 70, world=(0, 95))) is None
    assert feed.add(step(2, 70)) is None
    assert feed.add(step(3, 70, world=(2, 96))) == Sample(0, 96, 8, 2)


def test_memory_is_bounded() -> None:
    feed = StepFeed()
    for number in range(10_000):
        feed.add(step(number, 5))
    assert len(feed._knobs_versions) <= 256
