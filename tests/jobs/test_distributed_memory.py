"""Tensors of process groups whose memory is not what they mean: moved and reduced by their values, or refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.jobs.cases import group as group_cases
from tests.jobs.cases import memory as memory_cases
from tests.jobs.launching import Job


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("memory")
    with Job(2, folder, {"TEST_RANK": "{rank}", "TEST_SIZE": "2"}) as job:
        job.run(group_cases.open_group, backend="ringtune", store=str(folder / "store"))
        yield job


@pytest.mark.parametrize("kind", ["plain", "neg", "imaginary", "strided", "float8", "uint16"])
def test_what_moves_is_what_a_tensor_means(kind: str, pair: Job) -> None:
    found = pair.run(memory_cases.moved, kind=kind)
    meant = [one["mine"] for one in found]
    for rank, one in enumerate(found):
        assert one["all_gather"] == meant
        assert one["broadcast"] == meant[1]
        assert one["all_to_all"] == meant[0][2 * rank :][:2] + meant[1][2 * rank :][:2]
        assert one["recv"] == meant[1 - rank]
        if "all_reduce" in one:
            assert one["all_reduce"] == [a + b for a, b in zip(*meant, strict=True)]


def test_what_cannot_be_written_or_read_is_refused_in_words(pair: Job) -> None:
    for said in pair.run(memory_cases.refused):
        assert all(words in text and text.startswith("InvalidArgument") for words, text in said.items()), said


def test_bitwise_reductions(pair: Job) -> None:
    assert pair.run(memory_cases.bitwise) == [[[6 & 3, 12 & 6], [6 | 3, 12 | 6], [6 ^ 3, 12 ^ 6]]] * 2
