"""The short examples of `benchmarks/examples`, as their README starts them, with fewer steps."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import ringtune.benchmarks
from ringtune import layout
from tests.benchmarks.test_jobs import execute, ringtune_command, succeed

EXAMPLES = Path(ringtune.benchmarks.__file__).parent / "examples"
TWO_RANKS = ("run", "-np", "2", "--no-run-dir", "--no-prefix")


def script(name: str, *words: str) -> list[str]:
    return [ringtune_command()[0], str(EXAMPLES / name), *words]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp.py", "fsdp2.py"])
def test_training_through_torch_distributed_learns(name: str, tmp_path: Path) -> None:
    printed = succeed([*ringtune_command(*TWO_RANKS), *script(name, "--steps", "20")], tmp_path)
    found = re.search(r"ranks 2, .*loss ([\d.]+) -> ([\d.]+)", printed)
    assert found is not None, printed
    assert float(found[2]) < 0.5 * float(found[1])


@pytest.mark.long
def test_fsdp2_shards_the_parameters(tmp_path: Path) -> None:
    printed = succeed([*ringtune_command(*TWO_RANKS), *script("fsdp2.py", "--steps", "1")], tmp_path)
    found = re.search(r"(\d+) of (\d+) parameters on rank 0", printed)
    assert found is not None, printed
    assert int(found[1]) < 0.55 * int(found[2])


def test_numpy_gives_the_same_on_one_rank_and_on_two(tmp_path: Path) -> None:
    one = succeed(script("numpy_sgd.py"), tmp_path)
    two = succeed([*ringtune_command(*TWO_RANKS), *script("numpy_sgd.py")], tmp_path)
    assert one.replace("ranks 1", "ranks 2").splitlines()[-1] in two.splitlines()
    assert float(two.split()[-1]) > 0.95


@pytest.mark.long
def test_tune_measures_other_settings_while_the_job_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tune = ringtune_command("tune", "-np", "2", "--run-dir", "run", "--max-trials", "2", "--steps-per-trial", "3")
    printed = succeed([*tune, *script("tune.py", "--steps", "1500")], tmp_path)
    residual = re.search(r"ranks 2, residual (\S+),", printed)
    assert residual is not None, printed
    assert float(residual[1]) < 1e-6
    journal = layout.tuning_journal(tmp_path / "run").read_text()
    assert '"source":"default"' in journal


@pytest.mark.long
def test_predict_answers_for_more_ranks(tmp_path: Path) -> None:
    """Or a reason: where ranks wait for a busy core, the model does not give back the job."""
    done = execute(script("predict.py", "--run-dir", "run", "--ranks", "4,16", "--steps", "20"), tmp_path)
    if done.returncode:
        assert "record more steps, of a job without late ranks" in done.stderr
        return
    assert "4 ranks, 2 hosts" in done.stdout
    assert "16 ranks, 8 hosts" in done.stdout


@pytest.mark.long
def test_elastic_goes_on_after_a_lost_rank(tmp_path: Path) -> None:
    run = ringtune_command("run", "-np", "2", "--min-np", "1", "--no-run-dir", "--no-prefix")
    printed = succeed([*run, *script("elastic.py", "--steps", "40", "--fail-at", "15")], tmp_path)
    assert (tmp_path / "failed").exists(), "no rank has failed"
    assert "40 steps, loss" in printed


def test_the_readme_names_every_script() -> None:
    named = set(re.findall(r"\]\((\w+\.py)\)", (EXAMPLES / "README.md").read_text(encoding="utf-8")))
    assert named == {name for name in os.listdir(EXAMPLES) if name.endswith(".py")} - {"__init__.py"}
