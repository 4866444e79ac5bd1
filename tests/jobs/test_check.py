"""RINGTUNE_CHECK finds the tensor that differs; traced models leave their ranges."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.jobs.cases import check as check_cases
from tests.jobs.launching import Job, variables

Fresh = Callable[..., Job]


@pytest.mark.parametrize("size", [2, 3])
def test_the_first_tensor_that_differs_is_named_on_all_ranks(size: int, fresh: Fresh) -> None:
    job = fresh(size, environ=variables(size) | {"RINGTUNE_CHECK": "1"})
    for said in job.run(check_cases.spoilt, step_spoilt=1):
        assert said[0] == said[2] == ""
        others = ", ".join(str(rank) for rank in range(size) if rank != 1)
        assert "'2.weight' differs between ranks" in said[1]
        assert f"ranks {others} agree; ranks 1 agree" in said[1]
        assert "1 of 6 gradients differ" in said[1]


def test_without_the_variable_nothing_is_compared(fresh: Fresh) -> None:
    assert fresh(2).run(check_cases.spoilt, step_spoilt=1) == [["", "", ""]] * 2


def test_a_traced_model_leaves_its_ranges(fresh: Fresh, tmp_path: Path) -> None:
    found = fresh(2).run(check_cases.traced, folder=str(tmp_path))
    # Three steps of two ranks, and a forward of each without gradients.
    assert found[0] == {"forward": 8, "backward": 6, "optimizer": 6}
