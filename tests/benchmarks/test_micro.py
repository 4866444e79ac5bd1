from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console

from ringtune.benchmarks import marks
from ringtune.benchmarks.bursts import BURST_NS, calls_per_burst
from ringtune.benchmarks.contenders import BUCKET_BYTES, CONTENDERS, FIRST_BUCKET_BYTES, plan_buckets
from ringtune.benchmarks.jobs import parse_ranks
from ringtune.benchmarks.micro import Case, MicroRequest, below, micro_record, micro_table
from ringtune.benchmarks.peers import PEERS, Selection
from ringtune.benchmarks.progress import open_progress
from ringtune.errors import UsageError

REQUEST = MicroRequest(
    "allreduce", 2, None, [Case("1 KiB", (1024,))], "float32", 1.0, 1, Selection(("ringtune", "gloo"), {})
)


def test_ratio_is_the_best_peers_time_over_ours() -> None:
    times = {"ringtune": [2.0, 2.0], "gloo": [8.0, 8.0], "other": [3.0, 3.0]}
    [case] = micro_record(REQUEST, [times])["cases"]
    assert case["best_peer"] == "other"
    assert case["ratio"] == {"median": 1.5, "low": 1.5, "high": 1.5}
    assert case["times"]["gloo"] == {"median": 8.0, "low": 8.0, "high": 8.0, "samples": [8.0, 8.0]}


def test_require() -> None:
    record = micro_record(REQUEST, [{"ringtune": [2.0], "gloo": [3.0]}])
    assert below(record, 1.5) == []
    assert below(record, 1.6) == ["1 KiB: 1.50x of gloo, required 1.6x"]


def test_table_without_peers() -> None:
    record = micro_record(REQUEST, [{"ringtune": [2048.0]}])
    console = Console(file=io.StringIO(), width=120)
    console.print(micro_table(record))
    assert isinstance(console.file, io.StringIO)
    assert "2.05 [2.05, 2.05] us │  0.5" in console.file.getvalue()


@pytest.mark.parametrize(
    ("estimate_ns", "max_sums", "calls"),
    [(1000.0, 23, 22), (BURST_NS / 4, 23, 4), (BURST_NS * 9.0, 23, 1), (1000.0, 1, 1), (0.0, 64, 63)],
)
def test_calls_per_burst(estimate_ns: float, max_sums: int, calls: int) -> None:
    assert calls_per_burst(estimate_ns, max_sums) == calls


def test_buckets_are_cut_where_they_are_full() -> None:
    tensors = [torch.empty(size // 4) for size in (FIRST_BUCKET_BYTES, 4, BUCKET_BYTES, 8, 8)]
    assert [[tensor.nbytes for tensor in bucket] for bucket in plan_buckets(tensors)] == [
        [FIRST_BUCKET_BYTES],
        [4, BUCKET_BYTES],
        [8, 8],
    ]


def test_every_registered_contender_exists() -> None:
    wanted = {
        (benchmark, name)
        for spec in PEERS.values()
        for benchmark, names in spec.contenders.items()
        if benchmark in CONTENDERS
        for name in names
    }
    assert wanted == {
        (benchmark, name) for benchmark, names in CONTENDERS.items() for name in names if name != "ringtune"
    }


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
