"""The Communication page's tables and figures against what a schedule put in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ringtune.dashboard.data import communication
from ringtune.dashboard.data.analysis import Analysis, analyse
from ringtune.dashboard.data.timeline import trace
from ringtune.dashboard.figures import communication as figures
from ringtune.dashboard.pages.communication import link_limit
from ringtune.timeline.spans import Trace, concatenate, empty_table
from ringtune.timeline.synthetic.generate import Schedule, generate


@pytest.fixture(scope="module")
def done(runs: dict[str, Path]) -> Analysis:
    return analyse(*trace.read_all(runs["done"], trace.sources(runs["done"])))


def named(figure: Any) -> dict[str, Any]:
    return {one.name: one for one in figure.data}


def test_communication_and_waiting_are_those_of_the_schedule() -> None:
    plan = Schedule(ranks=3, steps=4, late_rank=2, late_ns=500_000)
    job = generate(plan)
    assert job.truth is not None
    instants = tuple(one for known in job.instants.values() for one in known)
    parts = tuple(job.part_info(rank) for rank in job.spans)
    found = analyse(Trace(concatenate(list(job.spans.values())), instants, parts, "merged", "job"))
    for row in communication.exposed(found):
        assert row.exposed_ns == job.truth.exposed_ns[row.rank] / 4
        assert row.overlapped_ns == job.truth.overlapped_ns[row.rank] / 4
        assert row.late_ns == job.truth.waited_late_ns[row.rank] / 4
        waited = row.late_ns + row.exposed_ns + row.copying_ns + row.other_ns
        assert waited == job.truth.wait_ns[row.rank] / 4
    assert [row.busy_ns["communicate"] for row in communication.phases(found)] == [job.truth.communicate_ns / 4] * 3
    waits = communication.waits(found)
    assert (waits.ranks, waits.peers) == ((0, 1, 2), (2,))
    tensors = len(plan.tensors)
    assert waits.waited_ns == ((tensors * 500_000.0, tensors * 500_000.0, 0.0),)
    assert waits.control_ns == (tensors * plan.control_ns,) * 3
    bandwidth = found.columns["batch_moving"]
    expected = sum(size for _, size in plan.batches[0]) * 4 / 3 / plan.communicate_ns * 1e9
    assert bandwidth[0] == pytest.approx(expected) and np.array_equal(bandwidth, found.columns["batch_seen"])


def test_every_batch_is_in_a_bin_of_its_size_and_of_its_share_of_the_buffer(done: Analysis) -> None:
    assert done.columns["bin_count"].sum() == 240
    assert sum(sum(row["counts"]) for row in done.document["fill"]) == 240
    figure = figures.fill(done.document["fill"])
    assert [one.name for one in figure.data] == ["version 1: 6 MiB", "version 2: 3 MiB"]
    # The four batches of a step fill 23, 47, 70 and 94 % of 6 MiB; a bin is 5 % wide.
    assert [(place, count) for place, count in enumerate(figure.data[0].y) if count] == [
        (at, 30) for at in (4, 9, 14, 18)
    ]


def test_the_limit_is_the_users_or_what_batches_reached(done: Analysis) -> None:
    assert link_limit(" 100Gbit/s", done) == ((12.5e9, "link, 100Gbit/s"), "")
    assert link_limit("fast", done) == (None, "expected for example 12.5GB/s or 100Gbit/s")
    limit, _ = link_limit("", done)
    assert limit is not None and limit[0] == pytest.approx(np.percentile(done.columns["batch_moving"], 95))
    figure = named(figures.bandwidth(done.columns, (12.5e9, "link"), "dark"))
    assert figure["link"].y == (12.5, 12.5)
    assert figure["allreduce, all ranks moving"].y[-1] == pytest.approx(3.69, abs=0.01)


def test_many_ranks_that_were_waited_for_become_one_more_bar() -> None:
    pairs = [{"rank": 0, "peer": peer, "total_ns": 100 - peer} for peer in range(1, 9)]
    summary = {"steps": None, "negotiations": [], "peer_waits": []}
    waits = communication.waits(Analysis({"summary": summary, "waits": pairs}))
    assert waits.peers == (1, 2, 3, 4, 5, -1) and waits.waited_ns[-1] == (94 + 93 + 92,)
    bars = named(figures.waits(waits))
    assert len({bar.marker.color for bar in bars.values()}) == len(bars) == 6
    assert bars["Waiting for others"].x == (279,)


def test_figures_of_nothing_say_so() -> None:
    found = analyse(Trace(empty_table(), (), (), "merged", "job"))
    assert communication.exposed(found) == communication.phases(found) == []
    assert [card[1] for card in communication.numbers(found)] == ["–"]
    assert figures.bandwidth(found.columns, None).layout.annotations[0].text == "No batch used the links between ranks"
    assert "does not name" in figures.fill([]).layout.annotations[0].text
    assert "does not say" in figures.exposed([]).layout.annotations[0].text
    assert "No tensor waited" in figures.waits(communication.waits(found)).layout.annotations[0].text
