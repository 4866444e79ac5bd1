"""Exact collectives over TCP between hosts made of network namespaces."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.namespaces import machines

ROOT = Path(__file__).resolve().parents[2]
WORLDS = (1, 2, 3, 4, 5)
RANK = [sys.executable, "-m", "tests.jobs.namespace_rank"]


@pytest.fixture(scope="module")
def answers() -> Iterator[list[dict[str, Any]]]:
    """What every rank of every world found; each rank of a world is alone in its namespace."""
    with machines(max(WORLDS)) as spaces:
        store = next(iter(spaces))
        worlds = ",".join(map(str, WORLDS))
        ranks = [
            subprocess.Popen(
                # The namespaces are fresh: every port is free.
                ["ip", "netns", "exec", space, *RANK, str(rank), store, "29400", worlds],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank, space in enumerate(spaces.values())
        ]
        try:
            outputs = [rank.communicate(timeout=170) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        assert [rank.returncode for rank in ranks] == [0] * len(ranks), "\n".join(error for _, error in outputs)
        yield [json.loads(line) for output, _ in outputs for line in output.splitlines()]


@pytest.mark.parametrize("size", WORLDS)
def test_exact_and_equal_on_all_ranks(size: int, answers: list[dict[str, Any]]) -> None:
    found = [answer for answer in answers if answer["size"] == size]
    assert sorted(answer["rank"] for answer in found) == list(range(size))
    assert all(answer["digests"] == found[0]["digests"] for answer in found)
    assert all(answer["transports"] == (["tcp"] if size > 1 else []) for answer in found)


@pytest.mark.parametrize("size", WORLDS)
def test_repeated_steps_need_no_control_message(size: int, answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        if answer["size"] == size:
            assert [0, 0] in answer["windows"], answer["windows"]
