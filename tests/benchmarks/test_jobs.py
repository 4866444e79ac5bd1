"""Real jobs through the launcher: the examples and the benchmarks, as small as they get."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import ringtune.benchmarks
from ringtune import cli
from ringtune.benchmarks.harness.peers import PEERS

EXAMPLES = Path(ringtune.benchmarks.__file__).parent / "examples"
DIGITS = [sys.executable, str(EXAMPLES / "digits.py"), "--epochs", "6"]


def execute(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=280, check=False)


def ringtune_command(*words: str) -> list[str]:
    return [sys.executable, "-m", "ringtune.cli", *words]


def succeed(command: Sequence[str], folder: Path) -> str:
    done = execute(command, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def refused(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return what the command line says to wrong use, in one line; it runs in this process, which has torch already."""
    assert cli.main(words) == 2
    return " ".join(capsys.readouterr().err.split())


def load(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Result of digits.py started without the launcher."""
    folder = tmp_path_factory.mktemp("alone")
    succeed([*DIGITS, "--json", "result.json"], folder)
    return load(folder / "result.json")


@pytest.mark.slow
def test_digits_alone_is_a_job_of_one(alone: Any) -> None:
    assert alone["ranks"] == 1
    assert alone["accuracy"] > 0.95


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.long), pytest.param(2, marks=pytest.mark.slow)])
def test_digits_gives_the_same_loss_on_any_number_of_ranks(alone: Any, ranks: int, tmp_path: Path) -> None:
    run = ringtune_command("run", "-np", str(ranks), "--no-run-dir")
    succeed([*run, *DIGITS, "--json", "result.json"], tmp_path)
    result = load(tmp_path / "result.json")
    assert result["ranks"] == ranks
    assert result["loss"] == pytest.approx(alone["loss"], abs=1e-6)
    assert result["accuracy"] == alone["accuracy"]


@pytest.mark.long
def test_digits_refuses_a_batch_that_cannot_be_shared(tmp_path: Path) -> None:
    run = ringtune_command("run", "-np", "2", "--no-run-dir")
    done = execute([*run, *DIGITS, "--global-batch", "63"], tmp_path)
    assert done.returncode == 1
    assert "--global-batch 63 must be a multiple of the number of ranks, 2" in done.stdout + done.stderr


@pytest.mark.long
def test_synthetic_example(tmp_path: Path) -> None:
    script = [sys.executable, str(EXAMPLES / "synthetic.py"), "--batch-size", "2", "--image-size", "16"]
    few = ["--blocks", "1", "--num-warmup-batches", "1", "--num-batches-per-iter", "1", "--num-iters", "2"]
    out = succeed([*ringtune_command("run", "-np", "2", "--no-run-dir"), *script, *few, "--fp16-allreduce"], tmp_path)
    assert "Total img/sec on 2 rank(s)" in out


@pytest.mark.slow
def test_bench_resnet_leaves_a_scaling_record(tmp_path: Path) -> None:
    shape = ["--model", "resnet18", "--batch-size", "2", "--image-size", "32"]
    few = ["--num-warmup-batches", "1", "--num-batches-per-iter", "1", "--num-iters", "2"]
    files = ["--json", "out.json", "--run-dir", "run"]
    out = succeed(ringtune_command("bench", "resnet", *shape, *few, *files, "--peers", "ddp-gloo"), tmp_path)
    assert "efficiency" in out
    record = load(tmp_path / "out.json")
    assert load(tmp_path / "run" / "scaling" / "resnet-resnet18.json") == record
    assert load(tmp_path / "run" / "run.json")["status"] == "finished"
    for rows in (record["records"], record["peers"]["ddp-gloo"]["records"]):
        assert [row["ranks"] for row in rows] == [1, 2]
        assert [len(row["rate"]["samples"]) for row in rows] == [2, 2]
        assert [len(row["per_rank"]) for row in rows] == [1, 2]
        assert rows[0]["efficiency"] == {"median": 1.0, "low": 1.0, "high": 1.0}
        assert all(row["rate"]["low"] <= row["rate"]["median"] <= row["rate"]["high"] for row in rows)


@pytest.mark.long
def test_bench_train_beside_processes_that_do_not_communicate_and_ddp(tmp_path: Path) -> None:
    shape = ["--model", "gpt", "--batch-size", "1", "--sequence-length", "4"]
    few = ["--rounds", "2", "--markdown", "--json", "out.json"]
    out = succeed(ringtune_command("bench", "train", *shape, *few), tmp_path)
    record = load(tmp_path / "out.json")
    assert (list(record["absent"]), record["failed"]) == (["horovod"], {})
    [case] = record["cases"]
    assert (case["label"], case["unit"]) == ("gpt, batch 1, 4 tokens", "tokens/s")
    everybody = {"alone", "ddp-gloo", "one", "ringtune", "ringtune-ddp"}
    assert set(record["about"]) == set(case["times"]) == set(case["rates"]) == everybody
    assert {len(times["samples"]) for times in case["times"].values()} == {2}
    assert set(case["to_alone"]) == everybody - {"alone"}
    assert set(case["efficiency"]) == everybody - {"one"}
    assert case["best_peer"] == "ddp-gloo"
    assert "| gpt, batch 1, 4 tokens | ringtune |" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "gpt", "--sequence-length", "4096"], "at most 1024 tokens, not 4096"),
        (["--model", "resnet51"], "near: resnet50"),
        (["--peers", "gloo"], "known: horovod, alone, ddp-gloo"),
        (["--peers", "", "--require", "1.0"], "no peer takes part"),
    ],
)
def test_bench_train_used_wrongly(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refused(["bench", "train", *words], capsys)


@pytest.fixture(scope="module")
def beside_gloo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, subprocess.CompletedProcess[str]]:
    """The record of a benchmark that asks for more than can be, and how its command ended."""
    folder = tmp_path_factory.mktemp("gloo")
    few = ["--sizes", "4B,1KiB", "--seconds", "0.05", "--json", "out.json", "--require", "1000000000"]
    done = execute(ringtune_command("bench", "allreduce", "-np", "2", *few), folder)
    return load(folder / "out.json"), done


@pytest.mark.slow
def test_bench_allreduce_beside_gloo(beside_gloo: tuple[Any, subprocess.CompletedProcess[str]]) -> None:
    record, _ = beside_gloo
    assert [case["bytes"] for case in record["cases"]] == [4, 1024]
    for case in record["cases"]:
        assert case["best_peer"] == "gloo"
        assert len(case["times"]["ringtune"]["samples"]) == len(case["times"]["gloo"]["samples"]) >= 7
        assert case["ratio"]["median"] > 0


@pytest.mark.long
def test_bench_gradients_beside_both_gloo_variants(tmp_path: Path) -> None:
    few = ["--profile", "9x4KiB", "--seconds", "0.05", "--json", "out.json"]
    succeed(ringtune_command("bench", "gradients", "-np", "2", *few), tmp_path)
    [case] = load(tmp_path / "out.json")["cases"]
    assert (case["tensors"], case["bytes"]) == (9, 9 * 4096)
    assert sorted(case["times"]) == ["copy-limit", "gloo", "gloo-bucket-views", "gloo-buckets", "ringtune"]


@pytest.mark.parametrize("ranks", [2, 3])
def test_bench_allreduce_beside_peers_of_their_own_environments(ranks: int, tmp_path: Path) -> None:
    takes_part = {name: spec for name, spec in PEERS.items() if "allreduce" in spec.contenders and not spec.named_only}
    names = [name for name, spec in takes_part.items() if name != "gloo" and "cpu" in spec.devices]
    absent = {name: reason for name in names if (reason := PEERS[name].absent())}
    if len(absent) == len(names):
        pytest.skip(absent[names[0]])
    few = ["--sizes", "1KiB,256KiB", "--seconds", "0.05", "--json", "out.json", "--peers", ",".join(names)]
    succeed(ringtune_command("bench", "allreduce", "-np", str(ranks), *few), tmp_path)
    record = load(tmp_path / "out.json")
    assert (record["absent"], record["failed"]) == (absent, {})
    present = [name for name in names if name not in absent]
    assert sorted(record["about"]) == sorted(["copy-limit", "ringtune", *present])
    for case in record["cases"]:
        assert sorted(case["times"]) == sorted(record["about"])
        assert case["best_peer"] in present


def test_a_ratio_below_what_is_required_fails(beside_gloo: tuple[Any, subprocess.CompletedProcess[str]]) -> None:
    _, done = beside_gloo
    assert done.returncode == 1
    assert "slower than required" in done.stderr


def test_an_unknown_peer_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert "known: gloo" in refused(["bench", "allreduce", "--peers", "nonesuch"], capsys)


def test_an_unknown_model_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(["bench", "resnet", "--model", "resnet51"], capsys)
    assert "resnet50" in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_a_failing_worker_shows_what_it_printed(tmp_path: Path) -> None:
    # AlexNet cannot pool images this small.
    small = ["--model", "alexnet", "--image-size", "8", "-np", "1"]
    done = execute(ringtune_command("bench", "resnet", *small), tmp_path)
    assert done.returncode == 1
    assert "failed with exit code 1" in done.stderr
    assert "RuntimeError" in done.stderr
