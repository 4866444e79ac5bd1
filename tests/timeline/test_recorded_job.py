"""What the native recorder writes in a real job: the vocabulary's words, merged at exit, over one host and two."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import orjson
import pytest

from ringtune import layout
from ringtune.timeline.analysis.arrivals import arrivals
from ringtune.timeline.analysis.summary import summarize
from ringtune.timeline.reading.interpretation import read_events
from ringtune.timeline.reading.reader import read
from ringtune.timeline.spans import SpanTable
from ringtune.timeline.vocabulary import (
    DEVICE_STAGES,
    FACTS,
    GROUP_ARGUMENTS,
    INSTANT_WORDS,
    QUEUE_NAME,
    SPAN_WORDS,
    TENSORS_EVENT,
    Stage,
)
from tests.ports import free_port
from tests.timeline import recorded_job
from tests.timeline.helpers import events_of, rows, write_json
from tests.timeline.test_merge import check_structure

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 250


def run_job(
    folder: Path, hosts: tuple[str, ...], *options: str, changes: Mapping[str, str] = MappingProxyType({})
) -> list[tuple[int, str]]:
    """Run one rank a host name with the timeline on; return exit codes and stderr by rank."""
    port = free_port()
    ranks = []
    for rank, host in enumerate(hosts):
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("RINGTUNE_", "HOROVOD_"))}
        environ |= {
            "RINGTUNE_RANK": str(rank),
            "RINGTUNE_SIZE": str(len(hosts)),
            "RINGTUNE_LOCAL_RANK": str(hosts[:rank].count(host)),
            "RINGTUNE_LOCAL_SIZE": str(hosts.count(host)),
            "RINGTUNE_HOSTNAME": host,
            "RINGTUNE_STORE": f"127.0.0.1:{port}",
            "RINGTUNE_JOB": f"recorded-{port}",
            "RINGTUNE_RUN_DIR": str(folder / "run"),
            "RINGTUNE_TIMELINE": str(folder / "trace.json"),
            "RINGTUNE_TIMELINE_MARK_CYCLES": "1",
            **changes,
        }
        command = [sys.executable, "-m", "tests.timeline.recorded_job", *options]
        ranks.append(
            subprocess.Popen(
                command, cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
            )
        )
    try:
        errors = [rank.communicate(timeout=TIMEOUT_S)[1] for rank in ranks]
        return [(rank.returncode, error) for rank, error in zip(ranks, errors, strict=True)]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


@pytest.fixture(scope="module", params=[("a", "a"), ("a", "b"), ("only",)], ids=["one host", "two hosts", "one rank"])
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[str, ...]]:
    """The folder of a job that ran well, and its hosts."""
    folder = tmp_path_factory.mktemp("recorded")
    results = run_job(folder, request.param)
    assert [code for code, _ in results] == [0] * len(request.param), results
    assert f"timeline of {len(request.param)} rank" in results[0][1]
    return folder, request.param


def test_only_words_of_the_vocabulary_are_recorded(recorded: tuple[Path, tuple[str, ...]]) -> None:
    folder, hosts = recorded
    spans = {word.stage.label: word for word in SPAN_WORDS}
    rare = {word.name: word for word in INSTANT_WORDS}
    for rank in range(len(hosts)):
        seen = set()
        trace = read(layout.timeline_part(folder / "run", rank))
        assert trace.skipped == 0 and set(trace.spans.rank.tolist()) == {rank}
        facts = [set(orjson.loads(f"{{{text}}}")) for text in trace.spans.fact_texts]
        for stage, name, tensor, batch, fact in zip(
            trace.spans.stage.tolist(), trace.spans.name_texts(), trace.spans.tensor_texts(),
            trace.spans.batch.tolist(), trace.spans.facts.tolist(), strict=True,
        ):  # fmt: skip
            word = spans[Stage(stage).label]
            assert facts[fact] <= {*word.arguments} & {*FACTS}, (name, facts[fact])
            assert not tensor or "tensor" in word.arguments
            assert not batch or {"batch", "operations"} & {*word.arguments}
            seen.add(word.stage.label)
        for instant in trace.instants:
            assert set(instant.args) <= set(rare[instant.name].arguments)
            seen.add(instant.category)
        # A wait that finds its operation done leaves nothing; in shared memory the copies are part of the reduction.
        # The queue of a batch of several tensors stands in its one event.
        optional = {"wait", "await", "piece", "queue"} | ({"copy_in", "copy_out"} if len(set(hosts)) == 1 else set())
        expected = {word.stage.label for word in SPAN_WORDS if word.stage not in DEVICE_STAGES} | {"knobs"}
        assert expected - optional <= seen


def test_every_tensor_leaves_each_phase_once_a_step(recorded: tuple[Path, tuple[str, ...]]) -> None:
    folder, hosts = recorded
    trace = read(folder / "trace.json")
    assert (trace.source, trace.skipped, trace.size) == ("merged", 0, len(hosts))
    for rank in range(len(hosts)):
        spans = trace.spans.of_rank(rank)
        for stage in (Stage.NEGOTIATE, Stage.QUEUE):
            chosen = spans.of_stage(stage)
            assert sorted(chosen.tensor_texts()) == sorted(recorded_job.NAMES * recorded_job.STEPS)
            assert set(chosen.bytes.tolist()) == {4 * recorded_job.COUNT}
        assert spans.of_stage(Stage.STEP).step.tolist() == list(range(recorded_job.STEPS))
        assert [part.dropped for part in trace.parts] == [0] * len(hosts)
    check_structure(folder / "trace.json")


def test_phases_of_a_tensor_follow_one_another(recorded: tuple[Path, tuple[str, ...]]) -> None:
    folder, hosts = recorded
    trace = read(folder / "trace.json")
    for rank in range(len(hosts)):
        spans = trace.spans.of_rank(rank)
        submitted = spans.of_stage(Stage.NEGOTIATE)
        queued = spans.of_stage(Stage.QUEUE)
        keys = [list(zip(table.batch.tolist(), table.tensor_texts(), strict=True)) for table in (submitted, queued)]
        agreed = dict(zip(keys[0], submitted.end_ns.tolist(), strict=True))
        started = dict(zip(keys[1], queued.end_ns.tolist(), strict=True))
        assert agreed == dict(zip(keys[1], queued.begin_ns.tolist(), strict=True))
        run = spans.of_stage(Stage.COMMUNICATE)
        begins = dict(zip(run.batch.tolist(), run.begin_ns.tolist(), strict=True))
        assert all(begins[batch] >= start for (batch, _), start in started.items())


def test_copies_of_a_batch_are_each_tensors_once_and_one_after_another(
    recorded: tuple[Path, tuple[str, ...]],
) -> None:
    folder, hosts = recorded
    trace = read(folder / "trace.json")
    for rank in range(len(hosts)) if len(set(hosts)) == 2 else ():
        spans = trace.spans.of_rank(rank)
        run = spans.of_stage(Stage.COMMUNICATE)
        done = dict(zip(run.batch.tolist(), run.end_ns.tolist(), strict=True))
        begun = dict(zip(run.batch.tolist(), run.begin_ns.tolist(), strict=True))
        several = {batch for batch, name in zip(run.batch.tolist(), run.tensor_texts(), strict=True) if " +" in name}
        expected = Counter(key for key in _keys(spans.of_stage(Stage.QUEUE)) if key[0] in several)
        for stage in (Stage.COPY_IN, Stage.COPY_OUT):
            copies = spans.of_stage(stage)
            assert Counter(key for key in _keys(copies) if key[0] in several) == expected
            assert np.all(copies.begin_ns[1:] >= copies.end_ns[:-1])
            assert set(copies.bytes.tolist()) == {4 * recorded_job.COUNT}
            for batch, begin, end in zip(
                copies.batch.tolist(), copies.begin_ns.tolist(), copies.end_ns.tolist(), strict=True
            ):
                assert end <= begun[batch] if stage is Stage.COPY_IN else begin >= done[batch]


def _keys(spans: SpanTable) -> list[tuple[int, str]]:
    return list(zip(spans.batch.tolist(), spans.tensor_texts(), strict=True))


def test_what_is_shown_while_the_job_runs_is_what_the_part_says(
    recorded: tuple[Path, tuple[str, ...]], tmp_path: Path
) -> None:
    folder, _ = recorded
    shown = folder / "run" / recorded_job.SHOWN
    events = one_by_one(events_of(shown))
    assert not any(set(GROUP_ARGUMENTS) & set(event["args"]) for event in events)
    part = read(layout.timeline_part(folder / "run", 0))
    packed, single = read_events(shown), read(write_json(tmp_path / "single.json", events))
    assert packed.parts[0].recorded is None or packed.parts[0].recorded == len(part.spans)
    for other in (packed, single):
        assert sorted(rows(other.spans)) == sorted(rows(part.spans))
        assert [(one.name, one.args) for one in other.instants] == [(one.name, one.args) for one in part.instants]
    facts = [sorted(trace.spans.fact_texts[code] for code in trace.spans.facts.tolist()) for trace in (part, single)]
    assert facts[0] == facts[1]


def one_by_one(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events of a part with one event a tensor, as the README describes the packed ones."""
    single, lists = [], {}
    for event in events:
        args = dict(event["args"])
        if event["name"] == TENSORS_EVENT:
            lists[args["id"]] = list(zip(args["names"], args["bytes"], strict=True))
        elif "tensors" in args:
            given, begin = lists[args.pop("tensors")], round(event["ts"] * 1000)
            agreed = begin + round(event["dur"] * 1000)
            submitted, copied, queued = args.pop("submitted", None), args.pop("copied", None), args.pop("queued_ns", 0)
            for (tensor, size), number in zip(given, submitted or copied, strict=True):
                about = {**event, "args": {"tensor": tensor, "bytes": size, **args}}
                if copied:
                    single.append({**about, "ts": begin / 1000, "dur": number / 1000})
                    begin += number
                    continue
                begin += number
                single.append({**about, "ts": begin / 1000, "dur": (agreed - begin) / 1000})
                queue = {"name": QUEUE_NAME, "cat": Stage.QUEUE.label, "ts": agreed / 1000, "dur": queued / 1000}
                single.append({**about, **queue})
        else:
            single.append(event)
    return single


def test_batches_and_clocks_join_the_ranks(recorded: tuple[Path, tuple[str, ...]]) -> None:
    folder, hosts = recorded
    trace = read(folder / "trace.json")
    run = trace.spans.of_stage(Stage.COMMUNICATE)
    batches = [sorted(run.of_rank(rank).batch.tolist()) for rank in range(len(hosts))]
    assert all(batch == batches[0] for batch in batches)
    summary = summarize(trace)
    assert summary.clock_error_ns is not None
    if len(set(hosts)) == 2:
        # Both names are this machine: the true offset is zero, and the measured one must be within its bound.
        assert summary.clock_error_ns > 0
        assert abs(trace.parts[1].offset_ns) <= summary.clock_error_ns
    if len(hosts) == 2:
        assert arrivals(trace).tensors == len(recorded_job.NAMES) * recorded_job.STEPS
        flows = [event for event in events_of(folder / "trace.json") if event["ph"] in "sf"]
        assert len(flows) == 2 * len(batches[0])


@pytest.mark.slow
def test_parts_of_a_killed_job_are_valid_and_merged(tmp_path: Path) -> None:
    results = run_job(tmp_path, ("a", "a"), "--dies")
    assert results[1][0] == -signal.SIGKILL
    assert results[0][0] != 0
    for rank in (0, 1):
        assert len(read(layout.timeline_part(tmp_path / "run", rank)).spans)
    trace = read(tmp_path / "trace.json")
    assert [part.truncated for part in trace.parts] == [False, True]
    assert "the part of rank 1 ends early" in results[0][1]
