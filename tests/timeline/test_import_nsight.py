"""Exports of Nsight Systems, made here by the documented schema: no nsys is installed."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from ringtune.errors import RingtuneError
from ringtune.timeline.analysis.stragglers import stragglers
from ringtune.timeline.cli import timeline
from ringtune.timeline.importing.imported import import_run
from ringtune.timeline.inputs import load
from ringtune.timeline.runs.run import Run
from ringtune.timeline.vocabulary import Stage

US = 1_000
STEPS = 10
EPOCH_NS = 1_700_000_000_000_000_000
SCHEMA = """
create table StringIds (id integer primary key, value text);
create table CUPTI_ACTIVITY_KIND_KERNEL (start integer, end integer, deviceId integer, streamId integer,
    correlationId integer, globalPid integer, demangledName integer, shortName integer);
create table CUPTI_ACTIVITY_KIND_RUNTIME (start integer, end integer, globalTid integer, correlationId integer);
create table NVTX_EVENTS (start integer, end integer, eventType integer, text text, globalTid integer, textId integer);
create table TARGET_INFO_SESSION_START_TIME (utcEpochNs integer, utcTime text, localTime text);
create table TARGET_INFO_SYSTEM_ENV (globalVid integer, devStateName text, name text, nameEnum integer, value text);
"""
NAMES = ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "sgemm", "ncclAllReduce", "forward")


def report(
    file: Path, ranks: dict[int, int], *, host: str = "node0", late: int = -1, shift_us: int = 0, kernels: bool = True
) -> None:
    """A report of processes on devices (``ranks``: device by rank); kernels run 1 ms after their launch, rank `late`'s
    compute 1.5 ms longer.
    """
    draw = random.Random(3)
    with closing(sqlite3.connect(file)) as database:
        database.executescript(SCHEMA)
        database.executemany("insert into StringIds values (?, ?)", enumerate(NAMES))
        database.execute("insert into TARGET_INFO_SESSION_START_TIME values (?, '', '')", (EPOCH_NS,))
        database.execute("insert into TARGET_INFO_SYSTEM_ENV values (0, '', 'Hostname', 0, ?)", (host,))

        def add(table: str, begin: int, end: int, *more: object) -> None:
            marks = ", ".join("?" * (len(more) + 2))
            row = ((begin + shift_us) * US, (end + shift_us) * US, *more)
            database.execute(f"insert into {table} values ({marks})", row)

        at, call = 100, 1
        for step in range(STEPS):
            ready = [at + 2_000 + draw.randint(0, 50) + (1_500 if rank == late else 0) for rank in range(4)]
            done = max(ready) + 200
            for rank, device in ranks.items():
                process = (1_000 + rank) << 24
                end = done + draw.randint(0, 5)
                add("NVTX_EVENTS", at - 1_000, done - 900, 59, f"step {step}", process + 7, None)
                add("NVTX_EVENTS", at - 900, at - 800, 59, None, process + 7, 3)
                add("NVTX_EVENTS", at - 700, at - 690, 59, None, process + 7, 2)
                add("NVTX_EVENTS", at - 600, at - 600, 34, "a mark", process + 7, None)
                works = [(at, ready[rank], 1), (ready[rank], end, 0), (end, done + 150, 1)] if kernels else []
                for begin, until, name in works:
                    add("CUPTI_ACTIVITY_KIND_RUNTIME", begin - 1_000, begin - 990, process + 7, call)
                    add("CUPTI_ACTIVITY_KIND_KERNEL", begin, until, device, 7, call, process, name, name)
                    call += 1
            at = done + 200
        database.commit()


@pytest.mark.parametrize("form", ["one report", "a report a rank"])
def test_processes_on_devices_are_ranks(form: str, tmp_path: Path) -> None:
    folder, run = tmp_path / "in", tmp_path / "run"
    folder.mkdir()
    if form == "one report":
        report(folder / "report1.sqlite", {rank: rank for rank in range(4)}, late=2)
    else:
        for rank in range(4):
            report(folder / f"report-rank{rank}.sqlite", {rank: 0}, late=2)
    said = CliRunner().invoke(timeline, ["import", str(folder), "-o", str(run)], catch_exceptions=False)
    assert said.exit_code == 0
    assert "Nsight Systems (SQLite export), ranks 0-3 of 4" in said.output
    assert f"{STEPS} of {STEPS} collectives matched" in said.output
    trace = load(run)
    moves = trace.spans.of_stage(Stage.COMMUNICATE)
    assert set(moves.name_texts()) == {NAMES[0]} and len(moves) == 4 * STEPS
    assert moves.of_rank(1).step.tolist() == list(range(STEPS))
    assert len(trace.spans.of_stage(Stage.KERNEL)) == 8 * STEPS
    assert set(trace.spans.of_stage(Stage.RANGE).name_texts()) == {"forward"}
    assert "a mark" not in trace.spans.names
    assert {rank.rank: rank.verdict for rank in stragglers(trace).ranks if rank.verdict} == {2: ("compute",)}
    created = Run(run).created_unix_ns
    assert created is not None and 0 <= created - EPOCH_NS - 100 * US + 1_000 * US < US
    for command in ("summary", "efficiency", "critical-path"):
        assert CliRunner().invoke(timeline, [command, str(run)], catch_exceptions=False).exit_code == 0


def test_hosts_are_aligned(tmp_path: Path) -> None:
    report(tmp_path / "a.sqlite", {0: 0, 1: 1}, host="a")
    report(tmp_path / "b.sqlite", {2: 0, 3: 1}, host="b", shift_us=70_000)
    made = import_run([tmp_path], tmp_path / "run")
    assert made.corrected == {2, 3}
    for rank in (2, 3):
        skew = made.skews[rank]
        assert skew.error_ns is not None and abs(skew.offset_ns + 70_000 * US) <= skew.error_ns < 1_000 * US


def test_without_kernels_the_ranges_of_nccl_communicate(tmp_path: Path) -> None:
    for rank in (0, 1):
        report(tmp_path / f"rank{rank}.sqlite", {rank: 0}, kernels=False)
    made = import_run([tmp_path], tmp_path / "run")
    assert set(made.trace.spans.of_stage(Stage.COMMUNICATE).name_texts()) == {"ncclAllReduce"}
    assert made.matches.matched == STEPS


def test_other_databases_and_torn_ones_are_named(tmp_path: Path) -> None:
    report(tmp_path / "rank0.sqlite", {0: 0})
    whole = (tmp_path / "rank0.sqlite").read_bytes()
    (tmp_path / "rank1.sqlite").write_bytes(whole[: len(whole) // 2])
    with closing(sqlite3.connect(tmp_path / "other.sqlite")) as database:
        database.execute("create table a (b integer)")
    made = import_run([tmp_path], tmp_path / "run")
    problems = " ".join(made.report.problems)
    assert "other.sqlite: neither kernels nor NVTX ranges in it; record with --trace=cuda,nvtx" in problems
    assert "rank1.sqlite: no export of Nsight Systems, or a damaged one" in problems
    with pytest.raises(RingtuneError, match="neither kernels"):
        import_run([tmp_path / "other.sqlite"], tmp_path / "again")
