"""Traces of PyTorch's profiler and of Horovod, joined with one another and with ringtune's own."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ringtune.errors import RingtuneError
from ringtune.timeline.analysis.comparison import compare
from ringtune.timeline.analysis.critical_path import critical_path
from ringtune.timeline.analysis.efficiency import efficiency
from ringtune.timeline.analysis.stragglers import stragglers
from ringtune.timeline.analysis.summary import summarize
from ringtune.timeline.database import query
from ringtune.timeline.inputs import load
from ringtune.timeline.merging.merge import merge
from ringtune.timeline.reading.reader import read
from ringtune.timeline.synthetic.generate import Schedule, generate
from ringtune.timeline.vocabulary import Stage
from tests.conftest import needs
from tests.timeline.helpers import ENGINES, Engine, events_of, rows, write_json, writing_by
from tests.timeline.test_foreign import horovod_events
from tests.timeline.test_merge import check_structure

STEPS = 8
STEP_US, COMPUTE_US, LATE_US, MOVE_US = 10_000, 4_000, 3_000, 1_000
BASE_NS = 1_700_000_000_000_000_000


def nccl_events(rank: int) -> list[dict[str, Any]]:
    """Steps of 10 ms: a rank's device computes 4 ms (rank 1 3 ms longer), then all reduce until 1 ms after the last."""
    events: list[dict[str, Any]] = []

    def add(name: str, category: str, tid: int, begin: float, duration: float, **args: Any) -> None:
        at = {"pid": 70 if tid == 1 else 0, "tid": tid, "ts": begin, "dur": duration}
        events.append({"ph": "X", "name": name, "cat": category, **at, "args": args})

    for step in range(STEPS):
        start = step * STEP_US
        compute = COMPUTE_US + LATE_US * (rank == 1)
        moved = COMPUTE_US + LATE_US + MOVE_US
        add(f"ProfilerStep#{step}", "user_annotation", 1, start, STEP_US)
        add("nccl:all_reduce", "user_annotation", 1, start + 100, 20)
        add(f"ProfilerStep#{step}", "gpu_user_annotation", 7, start, STEP_US)
        add("volta_sgemm", "kernel", 7, start, compute)
        add("nccl:all_reduce", "gpu_user_annotation", 20, start + compute, moved - compute)
        message = {"In msg nelems": 1000, "Out msg nelems": 1000, "dtype": "BFloat16", "Collective name": "allreduce"}
        name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)"
        add(name, "kernel", 20, start + compute, moved - compute, **message)
        add("sgd", "kernel", 7, start + moved, STEP_US - moved)
    return events


def kineto(folder: Path, rank: int, *, distributed: bool = True, host: str = "a", base_ns: int = BASE_NS) -> Path:
    """One rank's trace as PyTorch's profiler writes it."""
    document: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": [], "baseTimeNanoseconds": base_ns}
    if distributed:
        document["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 2}
    decoration = {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 1}
    document |= {"host_name": host, "traceEvents": [*nccl_events(rank), decoration]}
    return write_json(folder / f"trace_rank{rank}.pt.trace.json", document)


def test_ranks_of_nccl_are_joined_and_analysed(tmp_path: Path) -> None:
    trace = load([kineto(tmp_path, rank) for rank in (1, 0)])
    assert (trace.ranks, trace.skipped, trace.source) == ((0, 1), 0, "merged")
    moves = trace.spans.of_stage(Stage.COMMUNICATE)
    assert set(moves.name_texts()) == {"ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)"}
    assert set(moves.bytes.tolist()) == {2000}
    assert moves.of_rank(0).batch.tolist() == moves.of_rank(1).batch.tolist()
    assert moves.of_rank(0).step.tolist() == list(range(STEPS))
    summary = summarize(trace)
    assert [rank.exposure.wait_ns for rank in summary.ranks if rank.exposure] == [
        STEPS * (LATE_US + MOVE_US) * 1000,
        STEPS * MOVE_US * 1000,
    ]
    assert [kind.kind for kind in summary.traffic] == ["ALLREDUCE"]
    assert summary.clock_error_ns == 0  # one host, one clock
    found = stragglers(trace)
    assert {rank.rank: rank.verdict for rank in found.ranks if rank.verdict} == {1: ("compute",)}
    assert found.ranks[1].causes["compute"].total_ns == STEPS * LATE_US * 1000
    assert found.ranks[1].causes["negotiation"].total_ns == 0  # the trace shows none
    path = critical_path(trace)
    assert path.length_ns == STEPS * STEP_US * 1000
    assert path.causes["late"] == STEPS * LATE_US * 1000
    assert path.causes["transfer"] == STEPS * MOVE_US * 1000
    factors = efficiency(trace)
    assert factors.runtime_ns - factors.ideal_ns == STEPS * MOVE_US * 1000


def test_profiles_are_compared_and_asked(tmp_path: Path) -> None:
    trace = load([kineto(tmp_path, rank) for rank in (0, 1)])
    found = compare(trace, trace)
    steps, us = {(change.kind, change.what): change for change in found.changes}, 1000
    assert {key: (change.first_ns, change.second_ns) for key, change in steps.items()} == {
        ("step", "step"): (STEP_US * us,) * 2,
        ("compute", "rank 0"): ((STEP_US - LATE_US - MOVE_US) * us,) * 2,
        ("compute", "rank 1"): ((STEP_US - MOVE_US) * us,) * 2,
        ("waiting", "rank 0"): ((LATE_US + MOVE_US) * us,) * 2,
        ("waiting", "rank 1"): (MOVE_US * us,) * 2,
        ("stage", "communicate"): ((LATE_US / 2 + MOVE_US) * us,) * 2,  # a rank
    }
    pytest.importorskip("duckdb")
    answer = query(trace, "select rank, sum(duration_ns) from spans where stage = 'communicate' group by 1 order by 1")
    assert answer.rows == ((0, STEPS * (LATE_US + MOVE_US) * us), (1, STEPS * MOVE_US * us))


def test_what_horovods_timeline_does_not_say_is_named(tmp_path: Path) -> None:
    trace = read(write_json(tmp_path / "hvd.json", horovod_events()))
    for analysis in (critical_path, efficiency):
        with pytest.raises(RingtuneError, match=r"in the trace: .* needs steps and waits of every rank"):
            analysis(trace)
    found = stragglers(trace)
    assert [rank.causes["compute"].total_ns for rank in found.ranks] == [30_000, 0]
    assert {rank.causes[cause].p_value for rank in found.ranks for cause in ("negotiation", "network")} == {1.0}
    with pytest.raises(RingtuneError, match="0 steps; a comparison draws steps"):
        compare(trace, trace)
    pytest.importorskip("duckdb")
    answer = query(
        trace, "select stage, sum(duration_ns) from spans where tensor = 'allreduce.a' group by 1 order by 1"
    )
    assert answer.rows == (
        ("communicate", 17_000),
        ("copy_in", 2_000),
        ("copy_out", 1_000),
        ("negotiate", 31_000),
        ("other", 22_000),
    )


def test_a_trace_of_something_else_has_no_critical_path(tmp_path: Path) -> None:
    trace = read(write_json(tmp_path / "other.json", [{"name": "x", "ph": "X", "pid": 1, "tid": 1, "ts": 0, "dur": 5}]))
    for analysis in (critical_path, efficiency):
        with pytest.raises(RingtuneError, match=r"in the trace: .* needs steps and waits of every rank"):
            analysis(trace)


def test_joined_traces_are_written_and_read_back(tmp_path: Path) -> None:
    parts = [kineto(tmp_path, rank) for rank in (0, 1)]
    merge(parts, tmp_path / "merged.json")
    merge(reversed(parts), tmp_path / "again.json")
    assert (tmp_path / "merged.json").read_bytes() == (tmp_path / "again.json").read_bytes()
    check_structure(tmp_path / "merged.json")
    assert rows(read(tmp_path / "merged.json").spans) == rows(load(parts).spans)
    arrows = [event for event in events_of(tmp_path / "merged.json") if event["ph"] == "s"]
    assert len(arrows) == STEPS


@pytest.mark.parametrize("engine", ENGINES)
def test_threads_and_streams_have_tracks_of_their_own(engine: Engine, tmp_path: Path) -> None:
    """What nests on each of them needs no async pairs, of which Perfetto draws a track for each name."""
    document = json.loads(kineto(tmp_path, 0).read_bytes())
    at = {"ph": "X", "cat": "cpu_op", "pid": 70, "dur": 9_000}
    document["traceEvents"] += [
        {**at, "name": "aten::linear", "tid": 2, "ts": 500},
        {**at, "name": "aten::addmm", "tid": 2, "ts": 500, "dur": 4_000},
        {**at, "name": "backward", "tid": 3, "ts": 800},
        {"ph": "M", "name": "thread_name", "pid": 70, "tid": 2, "args": {"name": "thread 2 (python)"}},
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "args": {"name": "stream 7 "}},
    ]
    with writing_by(engine):
        merge([write_json(tmp_path / "trace_rank0.pt.trace.json", document)], tmp_path / "merged.json")
    events = events_of(tmp_path / "merged.json")
    assert not [event for event in events if event["ph"] == "b"]
    named = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    found = defaultdict(set)
    for event in events:
        if event["ph"] == "X":
            found[event["cat"], named[event["tid"]], event["args"].get("thread")].add(event["name"])
    profiler = {f"gpu ProfilerStep#{step}" for step in range(STEPS)}
    assert found == {
        ("step", "step", None): {f"ProfilerStep#{step}" for step in range(STEPS)},
        ("communicate", "communicate", None): {"ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)"},
        ("kernel", "stream 7", "stream 7"): {"volta_sgemm", "sgd"},
        ("other", "thread 1", "thread 1"): {"nccl:all_reduce"},
        ("other", "python 2", "python 2"): {"aten::linear", "aten::addmm"},
        ("other", "thread 3", "thread 3"): {"backward"},
        ("other", "stream 7", "stream 7"): profiler,
        ("other", "thread 20", "thread 20"): {"gpu nccl:all_reduce"},
    }


def test_without_a_distributed_job_the_name_says_the_rank(tmp_path: Path) -> None:
    trace = load([kineto(tmp_path, rank, distributed=False) for rank in (0, 1)])
    assert trace.ranks == (0, 1)
    assert {rank.rank for rank in stragglers(trace).ranks if rank.verdict} == {1}


def unnamed(folder: Path, number: int, *, base_ns: int = BASE_NS) -> Path:
    """A profile that says its rank neither inside nor by its name."""
    made = kineto(folder, number, distributed=False, base_ns=base_ns)
    return made.rename(folder / f"kineto-{number}.json")


@pytest.mark.parametrize("engine", ENGINES)
def test_two_profiles_of_one_rank_at_the_same_time_are_refused(engine: Engine, tmp_path: Path) -> None:
    files = [kineto(tmp_path, 0), kineto(tmp_path, 0).rename(tmp_path / "again.json")]
    kineto(tmp_path, 0)
    said = r"again\.json and .*trace_rank0\.pt\.trace\.json are both taken for rank 0.*rank0\.json"
    with pytest.raises(RingtuneError, match=said), writing_by(engine):
        merge(files, tmp_path / "merged.json")
    assert not (tmp_path / "merged.json").exists()


@pytest.mark.parametrize("engine", ENGINES)
def test_profiles_of_the_same_moments_without_a_rank_have_one_by_their_names(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [unnamed(tmp_path, number) for number in (0, 1)]
    # What tensorboard_trace_handler adds when one process profiles again: its second file is of the same rank.
    later = BASE_NS + 3_600 * 10**9
    for number, path in enumerate(files):
        path.rename(tmp_path / f"host_{number}7.1700000000000000001.pt.trace.json")
        second = unnamed(tmp_path, number, base_ns=later)
        second.rename(tmp_path / f"host_{number}7.1700000000000000002.pt.trace.json")
    with writing_by(engine):
        report = merge(reversed(sorted(tmp_path.glob("host*"))), tmp_path / "merged.json")
    assert [part.rank for part in report.parts] == [0, 1]
    said = capsys.readouterr().err
    assert "2 profiles do not name their ranks" in said and "host_07.pt.trace.json is rank 0" in said
    named = load([kineto(tmp_path, rank) for rank in (0, 1)]).spans
    spans = read(tmp_path / "merged.json").spans
    for rank in (0, 1):
        assert np.sum(spans.rank == rank) == 2 * np.sum(named.rank == rank)


def test_profiles_of_one_rank_one_after_another_are_joined(tmp_path: Path) -> None:
    files = [unnamed(tmp_path, number, base_ns=BASE_NS + number * 3_600 * 10**9) for number in (0, 1)]
    assert merge(files, tmp_path / "merged.json").sentences() == []


def test_a_folder_stands_for_its_parts_beside_profiles(tmp_path: Path) -> None:
    plan = Schedule(ranks=2, steps=3)
    parts = generate(plan).write(tmp_path / "parts")
    profile = kineto(tmp_path, 1, base_ns=plan.start_unix_ns)
    merge([*parts, profile], tmp_path / "files.json")
    merge([profile, tmp_path / "parts"], tmp_path / "folder.json")
    assert (tmp_path / "folder.json").read_bytes() == (tmp_path / "files.json").read_bytes()


def test_hosts_apart_are_compared_only_as_far_as_wall_clocks_go(tmp_path: Path) -> None:
    traces = [kineto(tmp_path, 0, host="a"), kineto(tmp_path, 1, host="b")]
    assert summarize(load(traces)).clock_error_ns is None
    assert [rank.verdict for rank in stragglers(load(traces)).ranks] == [(), ()]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_profile_joins_ringtunes_own_part_of_its_rank(engine: Engine, tmp_path: Path) -> None:
    plan = Schedule(ranks=2, steps=3)
    parts = generate(plan).write(tmp_path / "parts")
    # Two milliseconds after the job's begin, on the wall clock of the same machine.
    profile = kineto(tmp_path, 1, base_ns=plan.start_unix_ns + 2_000_000)
    with writing_by(engine):
        report = merge([*parts, profile], tmp_path / "merged.json")
    assert [part.rank for part in report.parts] == [0, 1]
    assert report.sentences() == []
    spans = read(tmp_path / "merged.json").spans
    kernels = spans.of_stage(Stage.KERNEL)
    assert set(kernels.rank.tolist()) == {1}
    assert int(kernels.begin_ns.min()) == 2_000_000
    assert len(spans.of_rank(0)) == len(read(parts[0]).spans)
    check_structure(tmp_path / "merged.json")


def test_horovods_timeline_becomes_a_merged_file(tmp_path: Path) -> None:
    path = write_json(tmp_path / "hvd.json", horovod_events())
    report = merge([path], tmp_path / "merged.json")
    assert report.spans == len(read(path).spans)
    again = read(tmp_path / "merged.json")
    assert {row[-2:] for row in rows(again.spans)} == {row[-2:] for row in rows(read(path).spans)}
    assert again.instants_named("ARRIVAL")
    check_structure(tmp_path / "merged.json")


def test_a_trace_without_a_wall_clock_cannot_join(tmp_path: Path) -> None:
    events = [{"name": "work", "ph": "X", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]
    path = write_json(tmp_path / "other.json", events)
    with pytest.raises(RingtuneError, match="no wall clock by which it could be joined"):
        merge([path], tmp_path / "merged.json")
    with pytest.raises(RingtuneError, match="no wall clock"):
        load([path, kineto(tmp_path, 0)])
    report = merge([path, kineto(tmp_path, 0)], tmp_path / "merged.json")
    assert "other.json: no part, and no wall clock" in report.sentences()[0]


def test_the_real_profiler_is_understood(tmp_path: Path) -> None:
    torch = needs("torch")
    layer = torch.nn.Linear(8, 8)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=0, warmup=1, active=3),
        on_trace_ready=lambda found: found.export_chrome_trace(str(tmp_path / "rank3.json")),
    ) as profiler:
        for _ in range(4):
            layer(torch.ones(4, 8)).sum().backward()
            profiler.step()
    trace = read(tmp_path / "rank3.json")
    assert (trace.ranks, trace.skipped) == ((3,), 0)
    steps = trace.spans.of_stage(Stage.STEP)
    assert sorted(steps.step.tolist()) == [1, 2, 3]
    backward = trace.spans.take(trace.spans.name_mask("aten::mm"))
    assert set(backward.step.tolist()) == {1, 2, 3}
    merge([tmp_path / "rank3.json"], tmp_path / "merged.json")
    assert len(read(tmp_path / "merged.json").spans) == len(trace.spans)
