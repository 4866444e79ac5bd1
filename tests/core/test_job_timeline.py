"""How the generations of an elastic job share one timeline."""

from __future__ import annotations

import orjson

from ringtune.bootstrap.placement import Placement
from ringtune.elastic.job_timeline import Continuation, JobTimeline
from ringtune.elastic.tracks import Tracks


def test_numbers_go_on_behind_all_that_a_lost_worker_may_have_used() -> None:
    job = Continuation()
    assert job.begin([0, 1], ["a", "a"]) == JobTimeline((0, 1), hosts={0: "a", 1: "a"})
    job.came(1, (7, 40, 0, 0))
    job.came(0, (8, 39, 0, 0))
    second = job.begin([1, 2], ["a", "a"])
    assert second == JobTimeline((1, 2), 10, 1064, (0, 0), {0: "a", 1: "a", 2: "a"})
    job.came(1, (3, 1, 0, 0))  # of an earlier generation: nothing goes back
    assert job.begin([1], ["a"]).first_step == 10


def test_a_generation_led_from_another_host_keeps_the_clock_of_the_first() -> None:
    job = Continuation()
    job.begin([0, 1, 2], ["a", "b", "c"])
    job.came(1, (1, 1, -500, 20))
    assert job.begin([1, 2], ["b", "c"]).clock == (-500, 20)
    assert job.begin([0, 1], ["a", "b"]).clock == (0, 0)
    assert job.begin([2], ["c"]).clock == (0, -1)  # nobody has looked at its clock


def test_it_travels_as_json() -> None:
    given = JobTimeline((3, 1), 4, 5, (-6, 7), {1: "a", 3: "b"})
    assert JobTimeline.from_dict(orjson.loads(orjson.dumps(given.as_dict()))) == given


def test_a_process_has_its_worker_s_number_and_in_a_fixed_job_its_rank() -> None:
    timeline = JobTimeline((3, 1), 4, hosts={0: "a", 1: "a", 3: "b"})
    tracks = Tracks(Placement(rank=0, size=2, job="j", generation=3, timeline=timeline), ["b", "a"])
    assert (tracks.own, tracks.of_ranks, tracks.first_step, tracks.elastic) == (3, (3, 1), 4, True)
    assert tracks.hosts == {0: "a", 1: "a", 3: "b"} and tracks.earlier_jobs == ["j.1", "j.2"]
    fixed = Tracks(Placement(rank=1, size=2), ["a", "b"])
    assert (fixed.own, list(fixed.of_ranks), fixed.hosts, fixed.elastic) == (1, [0, 1], {0: "a", 1: "b"}, False)
    assert not fixed.earlier_jobs and not fixed.going_on
