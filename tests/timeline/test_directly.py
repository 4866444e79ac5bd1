"""Tensors that go from GPU to GPU in the analyses: streams that wait, data that comes late, two clocks."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from ringtune.timeline import load, summarize
from ringtune.timeline.analysis.batches import MISSING, batch_table
from ringtune.timeline.analysis.causality import causality
from ringtune.timeline.analysis.critical_path import critical_path
from ringtune.timeline.analysis.stragglers import stragglers
from ringtune.timeline.merging.merge import merge
from ringtune.timeline.spans import Trace
from ringtune.timeline.vocabulary import DEVICE_STAGES, Stage
from tests.timeline.helpers import ENGINES, Engine, rows, writing_by
from tests.timeline.test_staged import event, of_device, write

US = 1000


def job(folder: Path, error_ns: int = 2000, steps: int = 1) -> list[Path]:
    """In each step of 100 us both hosts launch at 20 us. GPU 0 has its tensor at 30, GPU 1 at 60; NCCL ends at 80.

    The streams come to where they need the result at 70.
    """
    folder.mkdir(exist_ok=True)
    paths = []
    for rank, there in ((0, 30), (1, 60)):
        spans = []
        for step in range(steps):
            at = 100 * step
            about = {"tensor": "grad", "bytes": 400, "batch": step + 1, "dtype": "float32", "device": 0}
            of_step = [
                event(Stage.STEP, at, at + 100, bytes=400),
                event(Stage.NEGOTIATE, at + 12, at + 18, tensor="grad", bytes=400, batch=step + 1),
                event(Stage.QUEUE, at + 18, at + 20, tensor="grad", bytes=400, batch=step + 1),
                event(Stage.WAIT, at + 13, at + 25, tensor="grad", bytes=0),
                event(Stage.WAIT_FOR_DATA, at + 12, at + there, **about),
                event(Stage.DEVICE_QUEUE, at + there, at + there + 1, **about),
                event(Stage.COMMUNICATE, at + there + 1, at + 80, algorithm="nccl", **about),
                of_device(Stage.DEVICE_WAIT, at + 70, at + 80),
            ]
            for one in of_step:
                one["args"]["step"] = step
            spans += of_step
        paths.append(write(folder, rank, spans, error_ns))
    return paths


def joined(folder: Path, engine: Engine = "plain", steps: int = 1) -> Trace:
    with writing_by(engine):
        merge(job(folder / "parts", steps=steps), folder / f"{engine}.json")
    return load(folder / f"{engine}.json")


@pytest.mark.parametrize("engine", ENGINES)
def test_spans_come_through_every_merge(tmp_path: Path, engine: Engine) -> None:
    trace = joined(tmp_path, engine)
    assert len(trace.spans.of_stage(*DEVICE_STAGES)) == 6
    assert set(trace.spans.of_stage(Stage.COMMUNICATE).fact("device").tolist()) == {0}
    assert set(trace.spans.of_stage(Stage.DEVICE_QUEUE).batch.tolist()) == {1}
    assert rows(trace.spans) == rows(joined(tmp_path).spans)


def test_exposed_is_what_the_programs_streams_waited(tmp_path: Path) -> None:
    first = summarize(joined(tmp_path)).ranks[0].exposure
    assert first is not None
    assert (first.wait_ns, first.exposed_ns, first.overlapped_ns) == (10 * US, 10 * US, 39 * US)


def test_batches_know_when_a_gpu_had_its_data(tmp_path: Path) -> None:
    table = batch_table(joined(tmp_path))
    assert table.ready.tolist() == [[30 * US, 60 * US]]
    assert table.directly.tolist() == [True]
    assert table.submit.tolist() == [[12 * US] * 2] and table.with_data().submit.tolist() == [[30 * US, 60 * US]]


def test_batches_on_the_host_have_no_such_moment(tmp_path: Path) -> None:
    spans = [event(Stage.COMMUNICATE, 10, 20, tensor="t", bytes=4, batch=1)]
    table = batch_table(load(write(tmp_path, 0, spans)))
    assert table.ready.tolist() == [[MISSING]] and table.directly.tolist() == [False]


def test_the_critical_path_goes_through_nccl_to_the_gpu_that_was_late(tmp_path: Path) -> None:
    found = [(one.cause, one.rank, one.begin_ns, one.end_ns) for one in critical_path(joined(tmp_path)).stretches]
    assert found == [
        ("compute", 1, 0, 30 * US),
        ("late", 1, 30 * US, 60 * US),
        ("queue", 1, 60 * US, 61 * US),
        ("transfer", found[3][1], 61 * US, 80 * US),
        ("compute", found[4][1], 80 * US, 100 * US),
    ]


def test_the_straggler_is_the_gpu_that_was_late_though_its_host_was_not(tmp_path: Path) -> None:
    found = stragglers(joined(tmp_path, steps=12))
    late = {one.rank: one.causes["compute"] for one in found.ranks}
    assert (late[1].steps_last, late[1].total_ns) == (12, 12 * 30 * US)
    assert late[0].steps_last == 0
    assert "compute" in found.ranks[1].verdict


def test_what_the_clocks_of_two_gpus_cannot_tell_counts_for_nobody(tmp_path: Path) -> None:
    merge(job(tmp_path / "parts", error_ns=20 * US, steps=12), tmp_path / "merged.json")
    assert [one.causes["compute"].steps_last for one in stragglers(load(tmp_path / "merged.json")).ranks] == [0, 0]


def test_causality_allows_for_the_clocks_of_gpus(tmp_path: Path) -> None:
    paths = job(tmp_path / "parts")
    text = paths[0].read_bytes()
    # GPU 0's NCCL seems to end at 59 us, before GPU 1's begins at 61: two clocks of 2 us each may say so.
    early = text.replace(b'"ts":31,"dur":49', b'"ts":31,"dur":28')
    assert early != text
    paths[0].write_bytes(early)
    merge(paths, tmp_path / "merged.json")
    assert causality(load(tmp_path / "merged.json")).violations == 0
    paths[0].write_bytes(text.replace(b'"ts":31,"dur":49', b'"ts":31,"dur":20'))
    merge(paths, tmp_path / "worse.json")
    found = causality(load(tmp_path / "worse.json"))
    assert (found.violations, found.worst_ns) == (1, 6 * US)


def packed(folder: Path, engine: Engine = "plain") -> Trace:
    """Load the job with batches packed for 3 us before NCCL, which ends at 76, and unpacked for 4 us."""
    paths = job(folder / "parts")
    for path, there in zip(paths, (30, 60), strict=True):
        lines = [orjson.loads(line.rstrip(b",")) for line in path.read_bytes().splitlines()[1:-1]]
        (exchange,) = [line for line in lines if line.get("tid") == Stage.COMMUNICATE and line["ph"] == "X"]
        about = {
            key: value for key, value in exchange["args"].items() if key not in ("algorithm", "step", "knobs_version")
        }
        exchange["ts"], exchange["dur"] = there + 4, 72 - there
        more = [event(Stage.COPY_IN, there + 1, there + 4, **about), event(Stage.COPY_OUT, 76, 80, **about)]
        write(path.parent, exchange["pid"], [line for line in lines if line["ph"] == "X"] + more)
    with writing_by(engine):
        merge(paths, folder / f"{engine}.json")
    return load(folder / f"{engine}.json")


@pytest.mark.parametrize("engine", ENGINES)
def test_packing_on_a_gpu_comes_through_every_merge(tmp_path: Path, engine: Engine) -> None:
    trace = packed(tmp_path, engine)
    copies = trace.spans.of_stage(Stage.COPY_IN, Stage.COPY_OUT)
    assert len(copies) == 4
    assert set(copies.fact("device").tolist()) == {0} and set(copies.batch.tolist()) == {1}
    assert rows(trace.spans) == rows(packed(tmp_path).spans)


def test_packing_and_unpacking_are_copying_on_the_critical_path(tmp_path: Path) -> None:
    found = [(one.cause, one.rank, one.begin_ns, one.end_ns) for one in critical_path(packed(tmp_path)).stretches]
    assert found == [
        ("compute", 1, 0, 30 * US),
        ("late", 1, 30 * US, 60 * US),
        ("queue", 1, 60 * US, 61 * US),
        ("copy_in", 1, 61 * US, 64 * US),
        ("transfer", found[4][1], 64 * US, 76 * US),
        ("copy_out", found[5][1], 76 * US, 80 * US),
        ("compute", found[6][1], 80 * US, 100 * US),
    ]


def test_a_stream_that_waits_while_a_batch_is_unpacked_waits_for_a_copy(tmp_path: Path) -> None:
    first = summarize(packed(tmp_path)).ranks[0].exposure
    assert first is not None
    # The stream waits from 70 to 80 us; NCCL runs from 34 to 76.
    assert (first.wait_ns, first.exposed_ns, first.overlapped_ns) == (10 * US, 6 * US, 36 * US)
    assert (first.wait_copy_ns, first.wait_other_ns) == (4 * US, 0)


def test_a_batch_is_done_when_it_is_unpacked_and_its_gpu_was_late_all_the_same(tmp_path: Path) -> None:
    table = batch_table(packed(tmp_path))
    assert table.packed.tolist() == [[31 * US, 61 * US]]
    assert (table.begin.tolist(), table.end.tolist()) == ([[34 * US, 64 * US]], [[76 * US] * 2])
    assert table.done.tolist() == [[80 * US] * 2]
    assert causality(packed(tmp_path)).violations == 0
