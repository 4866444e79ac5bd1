"""Merging against ground truth: what was scheduled on rank 0's clock comes back, whatever clocks recorded it."""

from __future__ import annotations

import gzip
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringtune import layout
from ringtune.errors import RingtuneError, TraceIoError
from ringtune.timeline.merging.merge import merge, merge_run
from ringtune.timeline.merging.part_writer import write_part
from ringtune.timeline.reading.reader import read
from ringtune.timeline.spans import Instant, PartInfo
from ringtune.timeline.synthetic.generate import HostClock, Schedule, generate
from ringtune.timeline.vocabulary import Stage
from tests.timeline.generated_run import generate_run
from tests.timeline.helpers import (
    ENGINES,
    Engine,
    events_of,
    four_ranks,
    make_spans,
    merged,
    rows,
    truth_table,
    writing_by,
)


@pytest.fixture(scope="module", params=ENGINES, autouse=True)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Every test here runs with the native writer and with the plain one."""
    with writing_by(request.param):
        yield request.param


def test_one_host_comes_back_exactly(tmp_path: Path) -> None:
    job = generate(Schedule(ranks=3, late_rank=2, late_ns=700_001, knob_change_step=2))
    trace = merged(job, tmp_path)
    assert rows(trace.spans) == rows(truth_table(job))
    assert trace.source == "merged"
    assert trace.origin_ns == job.schedule.start_ns
    assert [part.recorded for part in trace.parts] == [len(job.spans[rank]) for rank in range(3)]


def test_skewed_and_drifting_clocks_come_back_within_a_nanosecond(tmp_path: Path) -> None:
    job = generate(four_ranks(steps=6, late_rank=3, late_ns=2_000_000))
    found, expected = rows(merged(job, tmp_path).spans), rows(truth_table(job))
    assert len(found) == len(expected)
    by_key = {(row[2:], index): row for index, row in enumerate(sorted(expected, key=lambda row: (row[2:], row[0])))}
    for index, row in enumerate(sorted(found, key=lambda row: (row[2:], row[0]))):
        truth = by_key[(row[2:], index)]
        assert abs(row[0] - truth[0]) <= 1
        assert abs(row[1] - truth[1]) <= 1


def test_alignment_is_written_down(tmp_path: Path) -> None:
    trace = merged(generate(four_ranks()), tmp_path)
    assert [part.offset_ns for part in trace.parts[:2]] == [0, 0]
    assert abs(trace.parts[2].offset_ns + 777_000_123_456) < 1000
    # Ranks of one host share one clock: one error bound, and offsets that differ only by drift between first spans.
    assert [part.error_ns for part in trace.parts] == [0, 0, 1_500, 1_500]
    assert trace.clock == "job"


schedules = st.builds(
    four_ranks,
    steps=st.integers(1, 3),
    tensors=st.lists(st.tuples(st.text(min_size=1, max_size=8), st.integers(0, 10**9)), min_size=1, max_size=5).map(
        tuple
    ),
    tensors_per_batch=st.integers(1, 3),
    late_rank=st.sampled_from([None, 0, 3]),
    late_ns=st.integers(0, 5_000_000),
    clocks=st.builds(
        lambda offset, drift: {"host-b": HostClock(offset, drift)},
        st.integers(-(10**12), 10**12),
        st.floats(-100, 100),
    ),
    dropped=st.dictionaries(st.integers(0, 3), st.integers(0, 10**6)),
    job=st.text(max_size=10),
)


@settings(max_examples=25, deadline=None)
@given(plan=schedules, seed=st.integers(0, 1000))
def test_merging_does_not_depend_on_the_order(
    plan: Schedule, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("merge")
    parts = generate(plan).write(folder / "parts")
    merge(parts, folder / "a.json")
    random.Random(seed).shuffle(parts)
    merge([*parts, parts[0]], folder / "b.json")
    assert (folder / "a.json").read_bytes() == (folder / "b.json").read_bytes()
    check_structure(folder / "a.json")
    trace = read(folder / "a.json")
    assert sum(part.dropped for part in trace.parts) == sum(plan.dropped.values())
    assert {tensor for tensor, _ in plan.tensors} <= set(trace.spans.tensors)


def check_structure(path: Path) -> None:
    """Async pairs balance, complete events nest, arrows go forward and join ranks."""
    opened, stacks = {}, defaultdict(list)
    arrows = defaultdict(list)
    for event in events_of(path):
        assert isinstance(event["pid"], int) and isinstance(event["name"], str)
        if event["ph"] != "M":
            assert event["ts"] >= 0
        if event["ph"] == "b":
            own = (event["pid"], event["id2"]["local"])  # of the process, else viewers draw it under no rank
            assert own not in opened
            opened[own] = event
        elif event["ph"] == "e":
            begin = opened.pop((event["pid"], event["id2"]["local"]))
            assert (begin["cat"], begin["pid"], begin["name"]) == (event["cat"], event["pid"], event["name"])
            assert begin["ts"] <= event["ts"]
        elif event["ph"] == "X":
            begin, end = round(event["ts"] * 1000), round(event["ts"] * 1000) + round(event["dur"] * 1000)
            stack = stacks[(event["pid"], event["tid"])]
            while stack and stack[-1] <= begin:
                stack.pop()
            assert not stack or end <= stack[-1]
            stack.append(end)
        elif event["ph"] in "stf":
            arrows[event["id"]].append(event)
    assert not opened
    for chain in arrows.values():
        assert [chain[0]["ph"], chain[-1]["ph"]] == ["s", "f"]
        assert all(event["ph"] == "t" for event in chain[1:-1])
        assert len({event["pid"] for event in chain}) == len(chain) >= 2
        assert all(before["ts"] <= after["ts"] for before, after in pairwise(chain))


def test_arrows_join_each_batch_over_the_ranks(tmp_path: Path) -> None:
    job = generate(four_ranks(steps=3))
    merged(job, tmp_path)
    arrows = [event for event in events_of(tmp_path / "merged.json") if event["ph"] in "stf"]
    assert len(arrows) == 4 * job.truth.batches
    begins = {
        (event["pid"], event["ts"])
        for event in events_of(tmp_path / "merged.json")
        if event["ph"] == "X" and event["cat"] == "communicate"
    }
    assert {(arrow["pid"], arrow["ts"]) for arrow in arrows} == begins


def test_processes_and_tracks_are_named(tmp_path: Path) -> None:
    merged(generate(four_ranks()), tmp_path)
    events = [event for event in events_of(tmp_path / "merged.json") if event["ph"] == "M"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {0: "rank 0 (host-a)", 1: "rank 1 (host-a)", 2: "rank 2 (host-b)", 3: "rank 3 (host-b)"}
    tracks = {(event["tid"], event["args"]["name"]) for event in events if event["name"] == "thread_name"}
    assert {(0, "negotiate"), (3, "communicate"), (6, "step"), (8, "cycle")} <= tracks


def test_knobs_of_rank_0_are_global_and_rare_instants_stay(tmp_path: Path) -> None:
    job = generate(four_ranks(knob_change_step=1))
    stall = Instant("STALL", "stall", 1, job.schedule.start_ns + 5, {"tensor": "x", "missing": [0], "age_ns": 7})
    job = replace(job, instants={**job.instants, 1: (*job.instants[1], stall)})
    trace = merged(job, tmp_path)
    scopes = {(e["pid"], e["s"]) for e in events_of(tmp_path / "merged.json") if e["name"] == "KNOBS"}
    assert scopes == {(0, "g"), (1, "p"), (2, "p"), (3, "p")}
    assert [dict(found.args) for found in trace.instants_named("STALL")] == [dict(stall.args)]
    assert len(trace.instants_named("CLOCK")) == 9


def test_overlapping_ranges_become_pairs_and_nested_ones_do_not(tmp_path: Path) -> None:
    spans = make_spans([(0, 100), (10, 20), (50, 150), (60, 90), (150, 160)], stage=Stage.RANGE)
    write_part(tmp_path / "rank-00000.spans", PartInfo(rank=0), spans, [])
    merge([tmp_path / "rank-00000.spans"], tmp_path / "out.json")
    check_structure(tmp_path / "out.json")
    events = events_of(tmp_path / "out.json")
    assert [event["ts"] for event in events if event["ph"] == "b"] == [0.05]
    assert len([event for event in events if event["ph"] == "X"]) == 4
    assert rows(read(tmp_path / "out.json").spans) == rows(spans)


def test_cycle_marks_stay_instants(tmp_path: Path) -> None:
    spans = make_spans([(5, 5), (9, 9)], stage=Stage.CYCLE)
    write_part(tmp_path / "rank-00000.spans", PartInfo(rank=0), spans, [])
    merge([tmp_path / "rank-00000.spans"], tmp_path / "out.json")
    marks = [event for event in events_of(tmp_path / "out.json") if event.get("cat") == "cycle"]
    assert [(mark["ph"], mark["ts"], mark["args"]) for mark in marks] == [
        ("i", 0.0, {"step": 0, "knobs_version": 0}),
        ("i", 0.004, {"step": 0, "knobs_version": 0}),
    ]
    assert rows(read(tmp_path / "out.json").spans) == rows(spans.shifted(-5))


def test_gzip_by_name_and_nothing_but_the_result_is_left(tmp_path: Path) -> None:
    job = generate(Schedule())
    parts = job.write(tmp_path / "parts")
    merge(parts, tmp_path / "out" / "trace.json.gz")
    merge(parts, tmp_path / "out" / "trace.json")
    assert (
        gzip.decompress((tmp_path / "out" / "trace.json.gz").read_bytes())
        == (tmp_path / "out" / "trace.json").read_bytes()
    )
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["trace.json", "trace.json.gz"]
    assert rows(read(tmp_path / "out" / "trace.json.gz").spans) == rows(truth_table(job))


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    parts = generate(Schedule()).write(tmp_path / "parts")
    (tmp_path / "file").write_text("old")
    with pytest.raises(TraceIoError, match="cannot be written"):
        merge(parts, tmp_path / "file" / "trace.json")
    assert (tmp_path / "file").read_text() == "old"


def test_truncated_missing_broken_and_dropped_are_reported(tmp_path: Path) -> None:
    job = generate(four_ranks(dropped={0: 12}))
    parts = job.write(tmp_path / "parts")
    parts[1].write_bytes(parts[1].read_bytes()[:-700])
    parts[2].write_bytes(b"\x00" * 500)
    report = merge(parts[:3], tmp_path / "out.json")
    assert report.missing == (2, 3)
    assert [part.truncated for part in report.parts] == [False, True]
    assert report.dropped == 12
    text = " | ".join(report.sentences())
    for expected in (str(parts[2]), "no part of rank 2, 3", "rank 1 ends early", "12 spans were dropped"):
        assert expected in text
    about = orjson.loads((tmp_path / "out.json").read_bytes())["otherData"]["ringtune"]
    assert about["missing"] == [2, 3]
    assert about["parts"][1]["truncated"] is True
    assert about["parts"][0]["dropped"] == 12
    assert str(parts[2]) in about["problems"][0]


def test_unmergeable_inputs_are_refused(tmp_path: Path) -> None:
    a = generate(Schedule(job="a")).write(tmp_path / "a")
    b = generate(Schedule(job="b")).write(tmp_path / "b")
    with pytest.raises(RingtuneError, match="different jobs"):
        merge([a[0], b[1]], tmp_path / "out.json")
    with pytest.raises(RingtuneError, match="rank 0 comes twice"):
        merge([a[0], b[0]], tmp_path / "out.json")
    with pytest.raises(RingtuneError, match="no parts given"):
        merge([], tmp_path / "out.json")
    merge(a, tmp_path / "merged.json")
    with pytest.raises(RingtuneError, match="a merged file"):
        merge([tmp_path / "merged.json"], tmp_path / "out.json")
    assert not (tmp_path / "out.json").exists()


def test_a_run_is_merged_in_place(tmp_path: Path) -> None:
    run = generate_run(tmp_path)
    report = merge_run(run)
    assert report.output == layout.timeline_file(run)
    assert read(report.output).ranks == (0, 1)
    with pytest.raises(RingtuneError, match="no parts of a timeline"):
        merge_run(tmp_path / "none")


@settings(max_examples=60, deadline=None)
@given(name=st.text(), tensor=st.text())
def test_any_name_gives_valid_json(name: str, tensor: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("names")
    spans = replace(make_spans([(1, 2), (3, 4)], stage=Stage.COMMUNICATE), names=(name,), tensors=("", tensor))
    spans.tensor[1] = 1
    write_part(folder / "rank-00000.spans", PartInfo(rank=0), spans, [])
    merge([folder / "rank-00000.spans"], folder / "out.json")
    check_structure(folder / "out.json")
    found = read(folder / "out.json").spans
    assert (found.name_texts(), found.tensor_texts()) == ([name, name], ["", tensor])
