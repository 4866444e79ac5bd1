"""Traces of other tools: Horovod's own timeline and plain Chrome traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ringtune.timeline.analysis.summary import summarize
from ringtune.timeline.reading.reader import read
from ringtune.timeline.vocabulary import Stage
from tests.timeline.helpers import write_json


def horovod_events() -> list[dict[str, Any]]:
    """Two tensors as Horovod 0.28.1 with Gloo writes them: first time with ticks, then cached, then fused."""
    start = {"start_time_since_epoch_in_micros": 1_700_000_000_000_000}
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": 0, "args": start},
        {"name": "process_sort_index", "ph": "M", "pid": 0, "args": {"sort_index": 0}},
    ]
    for pid, tensor in ((1, "allreduce.a"), (2, "allreduce.b")):
        events.append({"name": "process_name", "ph": "M", "pid": pid, "args": {"name": tensor}})
        events.append({"name": "process_sort_index", "ph": "M", "pid": pid, "args": {"sort_index": pid}})

    def begin(pid: int, ts: int, name: str) -> None:
        events.append({"name": name, "ph": "B", "pid": pid, "ts": ts})

    def end(pid: int, ts: int, **args: Any) -> None:
        events.append({"ph": "E", "pid": pid, "ts": ts, **({"args": args} if args else {})})

    begin(1, 100, "NEGOTIATE_ALLREDUCE")
    events.append({"name": "1", "ph": "X", "pid": 1, "ts": 100, "dur": 0})
    events.append({"name": "0", "ph": "X", "pid": 1, "ts": 130, "dur": 0})
    end(1, 131)
    begin(1, 140, "ALLREDUCE")
    begin(1, 141, "MEMCPY_IN_FUSION_BUFFER")
    end(1, 143)
    begin(1, 143, "GLOO_ALLREDUCE")
    end(1, 160)
    begin(1, 160, "MEMCPY_OUT_FUSION_BUFFER")
    end(1, 161)
    end(1, 162, dtype="float32", shape="[4, 3]")
    events.append({"name": "CYCLE_START", "ph": "i", "s": "g", "ts": 170})
    begin(2, 200, "NEGOTIATE_BARRIER")
    end(2, 210)
    end(2, 211)  # Horovod's barrier leaves one end too many
    return events


def test_horovods_timeline_is_read_as_rank_0s_view(tmp_path: Path) -> None:
    trace = read(write_json(tmp_path / "hvd.json", horovod_events()))
    assert trace.source == "horovod"
    assert trace.ranks == (0, 1)
    spans = trace.spans
    found = {
        (name, tensor, Stage(stage).label, begin // 1000, end // 1000)
        for name, tensor, stage, begin, end in zip(
            spans.name_texts(),
            spans.tensor_texts(),
            spans.stage.tolist(),
            spans.begin_ns.tolist(),
            spans.end_ns.tolist(),
            strict=True,
        )
    }
    assert found == {
        ("NEGOTIATE_ALLREDUCE", "allreduce.a", "negotiate", 100, 131),
        ("ALLREDUCE", "allreduce.a", "other", 140, 162),
        ("MEMCPY_IN_FUSION_BUFFER", "allreduce.a", "copy_in", 141, 143),
        ("GLOO_ALLREDUCE", "allreduce.a", "communicate", 143, 160),
        ("MEMCPY_OUT_FUSION_BUFFER", "allreduce.a", "copy_out", 160, 161),
        ("CYCLE_START", "", "cycle", 170, 170),
        ("NEGOTIATE_BARRIER", "allreduce.b", "negotiate", 200, 210),
    }
    assert trace.skipped == 1


def test_horovods_ticks_say_who_was_late(tmp_path: Path) -> None:
    summary = summarize(read(write_json(tmp_path / "hvd.json", horovod_events())))
    assert [(rank.rank, rank.tensors_last, rank.median_lateness_ns) for rank in summary.arrivals.ranks] == [
        (0, 1, 30_000.0),
        (1, 0, 0.0),
    ]
    assert summary.ranks[0].exposure is None
    assert summary.missing == ()


def test_an_unfinished_horovod_file_is_read(tmp_path: Path) -> None:
    path = write_json(tmp_path / "hvd.json", horovod_events())
    path.write_bytes(path.read_bytes()[:-40])
    trace = read(path)
    assert trace.source == "horovod"
    assert trace.parts[0].truncated


def test_processes_of_a_chrome_trace_become_ranks(tmp_path: Path) -> None:
    events = [
        {"name": "work", "ph": "X", "pid": 900, "tid": 1, "ts": 10.5, "dur": 2},
        {"name": "work", "ph": "X", "pid": 70, "tid": "main", "ts": 11, "dur": 2},
        {"name": "outer", "ph": "B", "pid": 70, "tid": 2, "ts": 1},
        {"name": "inner", "ph": "B", "pid": 70, "tid": 2, "ts": 2},
        {"ph": "E", "pid": 70, "tid": 2, "ts": 3},
        {"ph": "E", "pid": 70, "tid": 2, "ts": 4},
        {"name": "mark", "ph": "i", "pid": 70, "tid": 2, "ts": 4},
        {"name": "counter", "ph": "C", "pid": 70, "ts": 4, "args": {"value": 1}},
    ]
    trace = read(write_json(tmp_path / "chrome.json", {"traceEvents": events}))
    assert (trace.source, trace.skipped) == ("chrome", 0)
    found = sorted(
        zip(trace.spans.rank.tolist(), trace.spans.name_texts(), trace.spans.duration_ns.tolist(), strict=True)
    )
    assert found == [(0, "inner", 1000), (0, "outer", 3000), (0, "work", 2000), (1, "work", 2000)]
    assert [(instant.name, instant.rank) for instant in trace.instants] == [("mark", 0)]


def test_processes_labelled_as_ranks_keep_their_number(tmp_path: Path) -> None:
    events = [
        {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": f"rank {rank}"}}
        for pid, rank in ((5, 3), (6, 1))
    ]
    events += [{"name": "x", "ph": "X", "pid": pid, "ts": 0, "dur": 1} for pid in (5, 6)]
    trace = read(write_json(tmp_path / "chrome.json", events))
    assert sorted(trace.spans.rank.tolist()) == [1, 3]


def test_the_pytorch_profiler_names_rank_steps_and_collectives(tmp_path: Path) -> None:
    events = [
        {"name": "ProfilerStep#7", "cat": "user_annotation", "ph": "X", "pid": 4242, "tid": 1, "ts": 0, "dur": 100},
        {"name": "nccl:all_reduce", "cat": "user_annotation", "ph": "X", "pid": 4242, "tid": 1, "ts": 10, "dur": 5},
        {"name": "aten::add", "cat": "cpu_op", "ph": "X", "pid": 4242, "tid": 1, "ts": 20, "dur": 5},
        {"name": "gpu", "ph": "X", "pid": "Spans", "tid": "PyTorch Profiler", "ts": 0, "dur": 5},
    ]
    document = {"schemaVersion": 1, "distributedInfo": {"rank": 2, "world_size": 4}, "traceEvents": events}
    trace = read(write_json(tmp_path / "kineto.json", document))
    assert set(trace.spans.rank.tolist()) == {2}
    assert trace.skipped == 0
    steps = trace.spans.of_stage(Stage.STEP)
    assert (steps.step.tolist(), steps.duration_ns.tolist()) == ([7], [100_000])
    assert trace.spans.of_stage(Stage.COMMUNICATE).name_texts() == ["nccl:all_reduce"]


@pytest.mark.parametrize("backend", ["gloo", "nccl", "mpi", "ucc", "ringtune"])
def test_a_profile_shows_what_every_backend_communicates(backend: str, tmp_path: Path) -> None:
    kinds = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "send", "recv", "barrier")
    shapes = {"Input Dims": [[8, 4]], "Input type": ["float"]}
    events = [
        {
            "name": f"{backend}:{kind}",
            "cat": "cpu_op",
            "ph": "X",
            "pid": 9,
            "tid": 1,
            "ts": 10 * at,
            "dur": 5,
            "args": shapes,
        }
        for at, kind in enumerate(kinds)
    ]
    events.append({"name": f"{backend}_like::op", "cat": "cpu_op", "ph": "X", "pid": 9, "tid": 1, "ts": 0, "dur": 5})
    moves = read(write_json(tmp_path / "p.json", {"schemaVersion": 1, "traceEvents": events})).spans
    moves = moves.of_stage(Stage.COMMUNICATE)
    assert moves.name_texts() == [f"{backend}:{kind}" for kind in kinds]
    assert set(moves.bytes.tolist()) == {128}


def test_operators_on_the_cpu_overlap_what_gloo_moves(tmp_path: Path) -> None:
    shapes = {"Input Dims": [[8, 4]], "Input type": ["float"]}

    def event(name: str, begin: int, end: int, thread: int, **more: Any) -> dict[str, Any]:
        return {
            "name": name,
            "cat": "cpu_op",
            "ph": "X",
            "pid": 9,
            "tid": thread,
            "ts": begin,
            "dur": end - begin,
            **more,
        }

    events = [
        event("ProfilerStep#3", 0, 400, 1),
        event("gloo:all_reduce", 100, 200, 7, args=shapes),
        event("autograd::engine::evaluate_function: MmBackward0", 90, 250, 1),  # waits for what it has started
        event("aten::mm", 90, 130, 1),
        event("aten::mm", 110, 140, 2),
        event("gloo:all_reduce", 300, 350, 7, args=shapes),
    ]
    trace = read(write_json(tmp_path / "p.json", {"schemaVersion": 1, "traceEvents": events}))
    (rank,) = summarize(trace).ranks
    assert rank.exposure is not None
    assert (rank.exposure.overlapped_ns, rank.exposure.exposed_ns) == (40_000, 110_000)
