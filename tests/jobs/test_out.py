"""``out=``: results of allgather, alltoall and reducescatter that go into tensors of the caller's."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.jobs.cases import out as out_cases
from tests.jobs.launching import Job

GetJob = Callable[..., Job]
EACH = pytest.mark.parametrize("what", list(out_cases.CALLS))
SIZES = pytest.mark.parametrize("size", [1, 2, 3], scope="module")


@SIZES
@EACH
def test_results_lie_where_they_are_to(what: str, size: int, job: GetJob) -> None:
    job(size).run(out_cases.repeated, what=what)


@EACH
@pytest.mark.parametrize("kind", out_cases.AWKWARD)
def test_tensors_that_lie_oddly_are_filled(what: str, kind: str, job: GetJob) -> None:
    job(2).run(out_cases.awkward, what=what, kind=kind)


@SIZES
@EACH
def test_a_result_that_overlaps_what_was_sent_is_right(what: str, size: int, job: GetJob) -> None:
    job(size).run(out_cases.overlapping, what=what)


@EACH
def test_what_is_refused(what: str, job: GetJob) -> None:
    for messages in job(2).run(out_cases.refused, what=what):
        assert len(messages) == 5
        assert "out is of shape" in messages[0] and "the result of" in messages[0]
        assert "torch.float64" in messages[1] and "torch.float32" in messages[1]
        assert all("out= does not support gradients" in message for message in messages[2:4])
        assert "positional argument" in messages[4]


def test_only_results_that_fit_are_written_where_rows_change(job: GetJob) -> None:
    for messages in job(2).run(out_cases.changing_rows):
        assert messages.count("nothing") == 3
        assert sum("out is of shape" in message for message in messages) == 5


@SIZES
def test_rows_that_are_shared_unequally(size: int, job: GetJob) -> None:
    job(size).run(out_cases.with_splits)
