"""Tensors of GPUs in the analyses: their way to the host on the critical path, copies as waiting, the clock's error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from ringtune.timeline import load, summarize
from ringtune.timeline.analysis.critical_path import critical_path
from ringtune.timeline.merging.merge import merge
from ringtune.timeline.spans import Trace
from ringtune.timeline.vocabulary import DEVICE_STAGES, SPAN_WORDS, Stage
from tests.timeline.helpers import ENGINES, Engine, rows, writing_by

NAMES = {word.stage: word.name.replace("<KIND>", "ALLREDUCE") for word in SPAN_WORDS}


def event(stage: Stage, begin_us: int, end_us: int, **args: Any) -> dict[str, Any]:
    times = {"ts": begin_us, "dur": end_us - begin_us, "pid": 0, "tid": int(stage)}
    where = {"step": 0, "knobs_version": 1}
    return {"name": NAMES[stage], "cat": stage.label, "ph": "X", **times, "args": {**args, **where}}


def of_device(stage: Stage, begin_us: int, end_us: int, tensor: str = "grad") -> dict[str, Any]:
    return event(stage, begin_us, end_us, tensor=tensor, bytes=400, dtype="float32", device=0)


def write(folder: Path, rank: int, events: list[dict[str, Any]], error_ns: int = 2000) -> Path:
    """Write a part of one of two ranks on one host."""
    about = {"format": 1, "rank": rank, "size": 2, "host": "a", "job": "j", "unix_ns": 10**18, "monotonic_ns": 0}
    clock = {"name": "DEVICE_CLOCK", "cat": "clock", "ph": "i", "s": "p", "pid": rank, "tid": 8, "ts": 1}
    lines = [
        {"name": "ringtune_part", "ph": "M", "pid": rank, "tid": 0, "args": {**about, "file": 0}},
        {**clock, "args": {"device": 0, "error_ns": error_ns, "drift_ppb": -12}},
        *({**one, "pid": rank} for one in events),
        {
            "name": "ringtune_end",
            "ph": "M",
            "pid": rank,
            "tid": 0,
            "args": {"recorded": len(events), "dropped": 0},
        },
    ]
    path = folder / f"rank-{rank:05d}.json"
    path.write_bytes(b"[\n" + b",\n".join(orjson.dumps(line) for line in lines) + b"\n]\n")
    return path


def job(folder: Path) -> list[Path]:
    """Rank 1's tensor is computed by its GPU until 50 us, waits for another's copy until 55, and is copied until 60."""
    folder.mkdir(exist_ok=True)
    paths = []
    for rank, there in ((0, 20), (1, 50)):
        paths.append(
            write(
                folder,
                rank,
                [
                    event(Stage.STEP, 0, 100, bytes=400),
                    of_device(Stage.WAIT_FOR_DATA, 10, there),
                    of_device(Stage.DEVICE_QUEUE, there, there + 5),
                    of_device(Stage.COPY_TO_HOST, there + 5, there + 10),
                    event(Stage.NEGOTIATE, there + 11, 65, tensor="grad", bytes=400, batch=1),
                    event(Stage.QUEUE, 65, 66, tensor="grad", bytes=400, batch=1),
                    event(Stage.COMMUNICATE, 66, 90, tensor="grad", bytes=400, batch=1),
                    of_device(Stage.COPY_TO_DEVICE, 91, 96),
                    event(Stage.WAIT, 12, 92, tensor="grad", bytes=0),
                ],
            )
        )
    return paths


def joined(folder: Path, engine: Engine = "plain") -> Trace:
    with writing_by(engine):
        merge(job(folder / "parts"), folder / f"{engine}.json")
    return load(folder / f"{engine}.json")


def test_the_critical_path_goes_through_the_copy_to_what_the_gpu_computed(tmp_path: Path) -> None:
    found = [(one.cause, one.rank, one.begin_ns, one.end_ns) for one in critical_path(joined(tmp_path)).stretches]
    us = 1000
    assert found == [
        ("compute", 1, 0, 10 * us),
        ("compute", 1, 10 * us, 31 * us),
        ("late", 1, 31 * us, 50 * us),
        ("queue", 1, 50 * us, 55 * us),
        ("copy_in", 1, 55 * us, 61 * us),
        ("control", found[5][1], 61 * us, 65 * us),
        *found[6:],
    ]
    assert found[5][0] == "control" and found[-1][3] == 100 * us
    assert {cause for cause, *_ in found} == {"compute", "late", "queue", "copy_in", "control", "transfer", "wake"}


def test_copies_of_a_gpu_count_as_waiting_while_copying(tmp_path: Path) -> None:
    summary = summarize(joined(tmp_path))
    first = summary.ranks[0].exposure
    assert first is not None
    assert (first.wait_ns, first.exposed_ns, first.wait_copy_ns) == (80_000, 24_000, 5_000 + 1_000)
    assert summary.device_clock_error_ns == 2000
    assert summary.ranks[1].stages["wait_for_data"].busy_ns == 40_000


def test_a_trace_without_gpus_says_nothing_of_their_clocks(tmp_path: Path) -> None:
    path = write(tmp_path, 0, [event(Stage.STEP, 0, 10, bytes=0)])
    path.write_bytes(b"\n".join(line for line in path.read_bytes().split(b"\n") if b"DEVICE_CLOCK" not in line))
    assert summarize(load(path)).device_clock_error_ns is None


@pytest.mark.parametrize("engine", ENGINES)
def test_spans_of_a_gpu_come_through_every_merge(tmp_path: Path, engine: Engine) -> None:
    trace = joined(tmp_path, engine)
    of_gpus = trace.spans.of_stage(*DEVICE_STAGES)
    assert len(of_gpus) == 8 and set(of_gpus.fact("device").tolist()) == {0}
    assert rows(trace.spans) == rows(joined(tmp_path).spans)
    assert [one.args["drift_ppb"] for one in trace.instants_named("DEVICE_CLOCK")] == [-12, -12]


def test_kernels_of_a_profile_stand_beside_what_waited_for_them(tmp_path: Path) -> None:
    """PyTorch's profile of a rank that recorded too goes onto its clock; its kernels end where data is there."""
    parts = job(tmp_path / "parts")
    kernel = {"ph": "X", "name": "sgemm", "cat": "kernel", "pid": 0, "tid": 7, "ts": 10, "dur": 10, "args": {}}
    profile = {
        "baseTimeNanoseconds": 10**18,
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2},
        "host_name": "a",
        "traceEvents": [kernel],
    }
    path = tmp_path / "rank0.pt.trace.json"
    path.write_bytes(orjson.dumps(profile))
    merge([*parts, path], tmp_path / "both.json")
    first = load(tmp_path / "both.json").spans.of_rank(0)
    kernels, waits = first.of_stage(Stage.KERNEL), first.of_stage(Stage.WAIT_FOR_DATA)
    assert kernels.name_texts() == ["sgemm"]
    assert (kernels.begin_ns.tolist(), kernels.end_ns.tolist()) == (waits.begin_ns.tolist(), waits.end_ns.tolist())
    assert len(first.of_stage(*DEVICE_STAGES)) == 4
