"""Exact collectives over TCP between hosts made of network namespaces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.jobs.cases import namespace as namespace_cases
from tests.jobs.launching import Job
from tests.namespaces import machines

WORLDS = (1, 2, 3, 4, 5)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict[str, Any]]]:
    """What every rank of every world found; each rank of a world is alone in its namespace."""
    found = []
    with machines(max(WORLDS)) as spaces, Job(max(WORLDS), tmp_path_factory.mktemp("namespaces")) as job:
        store, names = next(iter(spaces)), list(spaces.values())
        for size in WORLDS:
            members = job.ranks[:size]
            for number, rank in enumerate(members):
                environ = {
                    "RINGTUNE_RANK": str(number),
                    "RINGTUNE_SIZE": str(size),
                    "RINGTUNE_STORE": f"{store}:{29400 + size}",  # the namespaces are fresh: every port is free
                    "RINGTUNE_HOSTNAME": f"namespace-{number}",
                }
                rank.send(namespace_cases.reduce_in, {"space": names[number], "environ": environ})
            found += job.results(members)
        yield found


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
            assert (0, 0) in answer["windows"], answer["windows"]
