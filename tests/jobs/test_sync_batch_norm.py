"""Batch normalisation over ranks equals torch's on all batches together."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.jobs.cases import norm as norm_cases
from tests.jobs.launching import Job

GetJob = Callable[..., Job]
SIZES = pytest.mark.parametrize("size", [1, 2, 3], scope="module")


@SIZES
@pytest.mark.parametrize("shape", [[4], [4, 5], [4, 3, 3], [2, 2, 2, 2]], ids=str)
@pytest.mark.parametrize("counts", [[4, 4, 4], [5, 1, 2], [6, 0, 3]], ids=str)
@pytest.mark.parametrize(("momentum", "affine"), [(0.1, True), (None, True), (0.3, False)])
def test_equals_one_process(
    momentum: float | None, affine: bool, counts: list[int], shape: list[int], size: int, job: GetJob
) -> None:
    found = job(size).run(
        norm_cases.against_one_process, shape=shape, counts=counts, dtype="float64", momentum=momentum, affine=affine
    )
    assert max(found) < 1e-9


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-4), ("bfloat16", 0.3)])
def test_other_dtypes(dtype: str, bound: float, job: GetJob) -> None:
    found = job(2).run(
        norm_cases.against_one_process, shape=[4, 3, 3], counts=[4, 3], dtype=dtype, momentum=0.1, affine=True
    )
    assert max(found) < bound


def test_conversion_keeps_parameters(job: GetJob) -> None:
    assert job(2).run(norm_cases.converted_model_keeps_its_parameters) == [True, True]


def test_one_value_per_channel_is_refused_on_all_ranks(job: GetJob) -> None:
    found = job(2).run(norm_cases.one_value_in_all)
    assert all("Expected more than 1 value per channel" in str(one) for one in found)
