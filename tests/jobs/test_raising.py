"""A rank whose script raises: every other rank is told whose error it was and which, whoever fails after that."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.jobs.cases.raising import SCRIPT
from tests.jobs.launching import TIMEOUT_S, variables

PHASES = ("negotiation", "ring", "repeated steps")
TRANSPORTS = ("shm", "tcp")
EVERY = [(size, victim) for size in (2, 3, 4) for victim in range(size)]


@pytest.mark.slow
@pytest.mark.parametrize(("phase", "transport"), list(itertools.product(PHASES, TRANSPORTS)))
def test_the_others_are_told_the_error_and_whose_it_was(phase: str, transport: str, tmp_path: Path) -> None:
    size, victim = random.Random(phase + transport).choice([one for one in EVERY if one[0] > 2])
    check(phase, transport, size, victim, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(("phase", "transport"), list(itertools.product(PHASES, TRANSPORTS)))
def test_so_they_are_whichever_rank_raises(phase: str, transport: str, tmp_path: Path) -> None:
    for size, victim in EVERY:
        folder = tmp_path / f"{size}-{victim}"
        folder.mkdir()
        check(phase, transport, size, victim, folder)


def check(phase: str, transport: str, size: int, victim: int, folder: Path) -> None:
    late = next(rank for rank in reversed(range(size)) if rank != victim) if size > 2 else -1
    said = run(phase, transport, size, victim, late, folder)
    cause = rf"rank {victim} on host \S+ ended its script with ValueError: bad batch, while "
    for rank in set(range(size)) - {victim}:
        kind, message = json.loads((folder / str(rank)).read_text())
        assert kind == "ShutDown", (rank, message)
        assert re.match(cause + r"'allreduce\.grad\.\d' \(allreduce\) waited for", message), (rank, message)
    assert "ValueError: bad batch" in said[victim]


def run(phase: str, transport: str, size: int, victim: int, late: int, folder: Path) -> list[str]:
    """Run the script on all ranks; return what each wrote to stderr."""
    script = folder / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    ranks, templates = [], variables(size, transport=transport)
    for rank in range(size):
        mine = {name: value.replace("{rank}", str(rank)) for name, value in templates.items()}
        ranks.append(
            subprocess.Popen(
                [sys.executable, script, phase, str(victim), str(late), folder],
                env={**os.environ, "OMP_NUM_THREADS": "1", **mine},
                cwd=folder,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        return [rank.communicate(timeout=TIMEOUT_S)[1] for rank in ranks]
    finally:
        for one in ranks:
            one.kill()
