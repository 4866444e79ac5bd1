from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
import torch
from rich.console import Console

from ringtune.benchmarks.comm.contenders import BUCKET_BYTES, CONTENDERS, FIRST_BUCKET_BYTES, plan_buckets
from ringtune.benchmarks.comm.micro import (
    Case,
    MicroRequest,
    micro_markdown,
    micro_record,
    micro_table,
    run_micro,
)
from ringtune.benchmarks.harness import marks
from ringtune.benchmarks.harness.environments import Contenders, Setting
from ringtune.benchmarks.harness.jobs import parse_ranks
from ringtune.benchmarks.harness.peers import PEERS, PeerSpec, Selection
from ringtune.benchmarks.harness.progress import open_progress
from ringtune.benchmarks.harness.race.patterns import Task
from ringtune.benchmarks.harness.race.rank import Unsupported
from ringtune.benchmarks.harness.racejob import JobPlan
from ringtune.benchmarks.harness.races import CaseResult, Outcome
from ringtune.errors import UsageError
from tests.benchmarks.test_racejob import plan_of

REQUEST = MicroRequest(
    "allreduce", 2, None, [Case("1 KiB", (1024,))], "float32", 1.0, 1, Selection(("ringtune", "gloo"), {})
)


def outcome(times_ns: dict[str, list[float]], **fields: Any) -> Outcome:
    return Outcome([CaseResult(times_ns, {"mpich": "no sum"})], **fields)


def test_ratio_is_the_best_peers_time_over_ours() -> None:
    times = {"ringtune": [2.0, 2.0], "gloo": [8.0, 8.0], "other": [3.0, 3.0], "copy-limit": [1.0, 1.0]}
    [case] = micro_record(REQUEST, outcome(times))["cases"]
    assert case["best_peer"] == "other"
    assert case["ratio"] == {"median": 1.5, "low": 1.5, "high": 1.5}
    assert case["limit_ratio"] == {"median": 0.5, "low": 0.5, "high": 0.5}
    assert case["times"]["gloo"] == {"median": 8.0, "low": 8.0, "high": 8.0, "samples": [8.0, 8.0]}


def printed(record: dict[str, Any]) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(micro_table(record))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_table_without_peers() -> None:
    text = printed(micro_record(REQUEST, outcome({"ringtune": [2048.0]})))
    assert "2.05 µs" in text
    assert "[2.05, 2.05]" in text
    assert "best peer" not in text


def test_table_says_who_is_missing_in_a_case() -> None:
    record = micro_record(REQUEST, outcome({"ringtune": [2.0], "gloo": [3.0]}, failed={"impi": "it died"}))
    record["cases"].append({**record["cases"][0], "times": {"ringtune": record["cases"][0]["times"]["ringtune"]}})
    assert "failed" in printed(record)
    record["cases"][1]["unsupported"] = {"gloo": "no sum of float16"}
    assert "unsupported" in printed(record)


def test_markdown() -> None:
    record = micro_record(REQUEST, outcome({"ringtune": [2000.0], "gloo": [3000.0], "copy-limit": [1000.0]}))
    assert micro_markdown(record).splitlines() == [
        "|  | ringtune | gloo | copy-limit | to the best peer | to copy-limit |",
        "| --- | --- | --- | --- | --- | --- |",
        "| 1 KiB | 2.00 µs | 3.00 µs | 1.00 µs | 1.50 [1.50, 1.50] | 0.50 [0.50, 0.50] |",
    ]


def fake_peer(behaviour: str) -> PeerSpec:
    def start(setting: Setting, contenders: Contenders) -> JobPlan:
        return replace(plan_of(behaviour), name="fake", contenders=contenders)

    return PeerSpec("fake", {"allreduce": {"fake": "way"}}, lambda: None, start)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("behaviour", "failure"),
    [("dies", "fake: rank 0 died\n  | its last words"), ("leaves at once", "fake: it ended before"), ("good", "")],
)
def test_a_failing_peer_is_reported_and_the_others_go_on(behaviour: str, failure: str) -> None:
    # One rank: the fake peer's call, which does nothing, is then an exact sum.
    peers = Selection(("ringtune", "fake", "gloo"), {"impi": "not here"}, (fake_peer(behaviour), PEERS["gloo"]))
    request = MicroRequest("allreduce", 1, None, [Case("64 B", (64,)), Case("8 B", (8,))], "int32", 0.02, 1, peers)
    console = Console(file=io.StringIO(), width=200)
    record = run_micro(request, console)
    assert isinstance(console.file, io.StringIO)
    assert "absent: impi (not here)" in console.file.getvalue()
    others = ["copy-limit", "gloo", "ringtune"]
    assert record["failed"].get("fake", "").startswith(failure)
    assert f"failed: {failure}" in console.file.getvalue() or not failure
    for case in record["cases"]:
        assert sorted(case["times"]) == (others if failure else sorted([*others, "fake"]))
        assert case["limit_ratio"]["median"] > 0
    assert record["about"]["ringtune"].startswith("ringtune ")


def test_buckets_are_cut_where_they_are_full() -> None:
    tensors = [torch.empty(size // 4) for size in (FIRST_BUCKET_BYTES, 4, BUCKET_BYTES, 8, 8)]
    assert [[tensor.nbytes for tensor in bucket] for bucket in plan_buckets(tensors)] == [
        [FIRST_BUCKET_BYTES],
        [4, BUCKET_BYTES],
        [8, 8],
    ]


def test_every_way_of_torch_is_registered() -> None:
    own = ("gloo", "nccl", "ringtune-float32", "ringtune-fp16", "ringtune-bf16", "ringtune-fp16-passes")
    ways = {way for name in own for ways in PEERS[name].contenders.values() for way in ways.values()}
    assert set(CONTENDERS) == ways | {"ringtune", "ringtune-async", "ringtune-group", "ringtune-collectives"}


@pytest.mark.parametrize(
    ("dtype", "size_bytes", "why"),
    [("float32", 64, "anyway"), ("float16", 2, "no whole float32"), ("bfloat16", 66, "no whole float32")],
)
def test_what_cannot_race_as_float32(dtype: str, size_bytes: int, why: str) -> None:
    with pytest.raises(Unsupported, match=why):
        CONTENDERS["ringtune-float32"](Task([64, size_bytes], dtype, 0, 1))


@pytest.mark.long
def test_as_many_bytes_of_float32_beside_another_dtype() -> None:
    peers = Selection(("ringtune", "ringtune-float32"), {}, (PEERS["ringtune-float32"],))
    cases = [Case("2 B", (2,)), Case("1 KiB", (1024,))]
    record = run_micro(
        MicroRequest("allreduce", 2, None, cases, "bfloat16", 0.02, 1, peers), Console(file=io.StringIO())
    )
    odd, whole = record["cases"]
    assert "ringtune-float32" not in odd["times"]
    assert min(whole["times"]["ringtune-float32"]["samples"]) > 0
    assert whole["best_peer"] == "ringtune-float32"


def test_marked_lines(capsys: pytest.CaptureFixture[str]) -> None:
    marks.send("case", case=0, times_ns={"a": [1.5]})
    line = capsys.readouterr().out
    assert marks.receive(line) == {"event": "case", "case": 0, "times_ns": {"a": [1.5]}}
    assert marks.receive("[1]<stdout>: " + line.strip()) is not None
    assert marks.receive("epoch 1: loss 0.5") is None
    assert marks.receive(marks.MARK + "{broken") is None


def test_plain_progress() -> None:
    console = Console(file=io.StringIO())
    with open_progress(console, "x", 2) as reporter:
        reporter.advance("1 KiB [fast]")
        reporter.say("absent: y")
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "[1/2] 1 KiB [fast]\nabsent: y\n"


def test_live_bar() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with open_progress(console, "resnet50", 2) as reporter:
        reporter.advance("warmed up")
    assert isinstance(console.file, io.StringIO)
    assert "1/2" in console.file.getvalue()


def test_rank_counts() -> None:
    assert parse_ranks("2, 1,2") == [1, 2]


@pytest.mark.parametrize("text", ["", "0", "1,x", "-1"])
def test_not_rank_counts(text: str) -> None:
    with pytest.raises(UsageError, match="expected rank counts"):
        parse_ranks(text)
