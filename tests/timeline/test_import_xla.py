"""Traces in the form that JAX's profiler writes, made here by its documented format: no JAX is installed."""

from __future__ import annotations

import gzip
import random
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from ringtune.errors import RingtuneError
from ringtune.timeline.analysis.batches import rank_steps
from ringtune.timeline.analysis.stragglers import stragglers
from ringtune.timeline.cli import timeline
from ringtune.timeline.importing.imported import import_run
from ringtune.timeline.inputs import load
from ringtune.timeline.vocabulary import Stage

MS = 1_000_000
STEPS = 12
SESSION = Path("plugins") / "profile" / "2026_01_01_12_00_00"


def host_trace(
    host: int,
    devices: int = 2,
    *,
    late: int = -1,
    shift_us: float = 0,
    steps_track: bool = True,
    asynchronous: bool = False,
) -> dict[str, Any]:
    """One host's trace: a step computes 2 ms (rank `late` 1.5 ms longer), then reduces until all are done."""
    draw = random.Random(7)
    events: list[dict[str, Any]] = []

    def name(pid: int, tid: int | None, text: str) -> None:
        what = {"name": "process_name"} if tid is None else {"name": "thread_name", "tid": tid}
        events.append({"ph": "M", "pid": pid, **what, "args": {"name": text}})

    def add(pid: int, tid: int, name: str, begin: float, end: float, **args: Any) -> None:
        at = {"ts": begin + shift_us, "dur": end - begin}
        events.append({"ph": "X", "pid": pid, "tid": tid, "name": name, **at, "args": args})

    name(701, None, "/host:CPU")
    for device in range(devices):
        name(device + 1, None, f"/device:GPU:{device}")
        for tid, text in ((1, "Steps"), (2, "XLA Modules"), (3, "XLA Ops")):
            if text != "Steps" or steps_track:
                name(device + 1, tid, text)
    at = 100
    for step in range(STEPS):
        computes = [2_000 + draw.randint(0, 50) for _ in range(2 * devices)]
        if late >= 0:
            computes[late] += 1_500
        done = at + max(computes) + 300
        for device in range(devices):
            pid, ready = device + 1, at + computes[host * devices + device]
            end = done + draw.randint(0, 5)
            if steps_track:
                add(pid, 1, str(step), at, done + 210)
            add(pid, 2, f"jit_train_step({17 + host})", at, done + 210, run_id=str(step))
            add(pid, 3, "while.3", at, done + 200)
            add(pid, 3, "fusion.12", at, ready, hlo_op="fusion.12")
            about = {"hlo_op": "all-reduce.1", "long_name": "%all-reduce.1 = f32[256,4]{1,0} all-reduce(f32[256,4] %x)"}
            if asynchronous:
                add(pid, 3, "all-reduce-start.1", ready, ready + 5, **about)
                add(pid, 3, "fusion.13", ready + 5, ready + 105)
                add(pid, 3, "all-reduce-done.1", ready + 105, end)
            else:
                add(pid, 3, "all-reduce.1", ready, end, **about)
            add(pid, 3, "fusion.14", end, done + 200)
        at = done + 250
    return {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}, "traceEvents": [*events, {}]}


def write(folder: Path, **changes: Any) -> Path:
    """Two hosts, as `jax.profiler.trace(folder)` leaves their files."""
    session = folder / SESSION
    session.mkdir(parents=True, exist_ok=True)
    shifts = changes.pop("shifts_us", (0, 0))
    for host in (0, 1):
        content = orjson.dumps(host_trace(host, shift_us=shifts[host], **changes))
        (session / f"node{host + 9}.trace.json.gz").write_bytes(gzip.compress(content))
    (session / "perfetto_trace.json.gz").write_bytes(gzip.compress(content))
    return folder


@pytest.mark.parametrize("steps_track", [True, False])
@pytest.mark.parametrize("asynchronous", [True, False])
def test_devices_are_ranks(steps_track: bool, asynchronous: bool, tmp_path: Path) -> None:
    folder = write(tmp_path / "in", late=1, steps_track=steps_track, asynchronous=asynchronous)
    run = tmp_path / "run"
    said = CliRunner().invoke(timeline, ["import", str(folder), "-o", str(run)], catch_exceptions=False)
    assert said.exit_code == 0
    assert f"{STEPS} of {STEPS} collectives matched over their ranks, by order within each step" in said.output
    trace = load(run)
    assert [(part.rank, part.host) for part in trace.parts] == [
        (0, "node9"),
        (1, "node9"),
        (2, "node10"),
        (3, "node10"),
    ]
    moves = trace.spans.of_stage(Stage.COMMUNICATE)
    assert set(moves.name_texts()) == {"xla:all_reduce"} and set(moves.tensor_texts()) == {"all-reduce.1"}
    assert set(moves.bytes.tolist()) == {4096}
    for rank in range(4):
        steps = rank_steps(trace, rank)
        assert steps is not None and steps.number.tolist() == list(range(STEPS))
        assert moves.of_rank(rank).step.tolist() == list(range(STEPS))
        waited = int((steps.waits[:, 1] - steps.waits[:, 0]).sum())
        moved = int(moves.of_rank(rank).duration_ns.sum())
        assert waited == moved - (STEPS * 100_000 if asynchronous else 0)  # what other work of the device overlaps
    found = stragglers(trace)
    assert {rank.rank: rank.verdict for rank in found.ranks if rank.verdict} == {1: ("compute",)}
    for command in ("summary", "efficiency", "critical-path"):
        assert CliRunner().invoke(timeline, [command, str(run)], catch_exceptions=False).exit_code == 0


@settings(deadline=None, max_examples=15)
@given(shift_ms=st.integers(-10_000, 10_000), asynchronous=st.booleans())
def test_hosts_that_count_from_other_moments_are_aligned(
    shift_ms: int, asynchronous: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("xla")
    write(folder / "in", shifts_us=(0, shift_ms * 1000), asynchronous=asynchronous)
    made = import_run([folder / "in"], folder / "run")
    for rank in (2, 3):
        skew = made.skews[rank]
        assert skew.error_ns is not None and skew.error_ns < MS
        assert abs(skew.offset_ns + shift_ms * MS) <= skew.error_ns + 2
    assert made.corrected == (frozenset({2, 3}) if abs(shift_ms) >= 1 else frozenset())


def test_two_sessions_are_not_mixed(tmp_path: Path) -> None:
    write(tmp_path / "in")
    (tmp_path / "in" / SESSION).rename(tmp_path / "in" / "plugins" / "profile" / "first")
    write(tmp_path / "in")
    with pytest.raises(RingtuneError, match=r"node10\.trace\.json\.gz are two recordings of one host; import each"):
        import_run([tmp_path / "in"], tmp_path / "run")


def test_a_file_of_one_device_may_name_its_rank(tmp_path: Path) -> None:
    for rank in (5, 3):
        document = host_trace(0, devices=1)
        (tmp_path / f"rank{rank}.trace.json").write_bytes(orjson.dumps(document))
    made = import_run([tmp_path], tmp_path / "run")
    assert made.trace.ranks == (3, 5) and made.report.missing == (0, 1, 2, 4)


@given(
    odd=st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "ph": st.sampled_from(["X", "M", 5]), "pid": st.sampled_from([1, None, [1]]),
                "tid": st.sampled_from([3, {}]),
                "name": st.sampled_from(["process_name", "thread_name", "all-reduce.1", None]),
                "ts": st.sampled_from([1, "2.5", None, 1e300]), "dur": st.sampled_from([1, "x", -1]),
                "args": st.sampled_from([None, {"name": 4}, {"name": "/device:GPU:0"}, {"long_name": 7}, [1]]),
            },
        ),
        max_size=6,
    )
)  # fmt: skip
@settings(deadline=None, max_examples=50)
def test_odd_events_are_left_out(odd: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("odd")
    document = host_trace(0)
    document["traceEvents"] += odd
    (folder / "node.trace.json").write_bytes(orjson.dumps(document))
    assert import_run([folder], folder / "run").trace.ranks == (0, 1)


def test_a_torn_trace_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    write(tmp_path / "in")
    file = next((tmp_path / "in").rglob("node10*"))
    content = file.read_bytes()
    file.write_bytes(content[: len(content) * 2 // 3])
    made = import_run([tmp_path / "in"], tmp_path / "run")
    assert "the parts of ranks 2, 3 end early (killed, or still recording)" in made.report.sentences()
    assert 0 < made.matches.matched < made.matches.collectives == STEPS
