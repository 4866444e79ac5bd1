"""The front end inside of code that torch compiles: the results and gradients are those of plain code."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.jobs.cases import compiled as compiled_cases
from tests.jobs.launching import Job

GetJob = Callable[..., Job]


@pytest.mark.parametrize(
    "backend", [pytest.param("eager", marks=pytest.mark.long), pytest.param("aot_eager", marks=pytest.mark.slow)]
)
def test_calls_fall_out_of_the_graph(backend: str, job: GetJob) -> None:
    assert job(2).run(compiled_cases.functions, backend=backend) == [[], []]
    assert job(2).run(compiled_cases.training, backend=backend) == [[], []]
