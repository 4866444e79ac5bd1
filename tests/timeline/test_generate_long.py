"""A repeated schedule is the same job as one generated step by step."""

from __future__ import annotations

from dataclasses import replace

from ringtune.timeline.synthetic.generate import HostClock, Schedule, generate
from ringtune.timeline.synthetic.generate_long import generate_long, schedule_of
from tests.timeline.helpers import rows


def test_it_is_the_job_that_generate_makes() -> None:
    clocks = {"host-b": HostClock(offset_ns=5_000, drift_ppm=12.0)}
    plan = Schedule(ranks=2, steps=3, late_rank=1, late_ns=700_000, hosts=("host-a", "host-b"), clocks=clocks)
    long, plain = generate_long(plan, 4), generate(replace(plan, steps=12))
    assert long.truth == plain.truth
    assert long.schedule == plain.schedule
    assert long.instants == plain.instants
    assert {rank: rows(table) for rank, table in long.spans.items()} == {
        rank: rows(table) for rank, table in plain.spans.items()
    }


def test_it_has_as_many_spans_as_asked() -> None:
    for events in (1, 10_000, 123_456):
        job = generate_long(*schedule_of(events, 3))
        count = sum(map(len, job.spans.values()))
        assert events <= count < events + 8 * 3 * 252
