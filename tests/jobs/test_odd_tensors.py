"""Tensors whose memory is not what they mean, tensors that change under a name, and arguments that make no sense."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.jobs.cases import odd as odd_cases
from tests.jobs.launching import Job

GetJob = Callable[..., Job]


def test_views_are_resolved(job: GetJob) -> None:
    assert job(2).run(odd_cases.resolved) == [[], []]


def test_what_cannot_be_read_or_written_is_refused_in_words(job: GetJob) -> None:
    assert job(2).run(odd_cases.refused) == [[], []]


def test_misuse_is_answered_in_words_and_the_job_goes_on(job: GetJob) -> None:
    assert job(2).run(odd_cases.misused) == [[], []]


@given(st.lists(st.tuples(st.sampled_from(odd_cases.CHANGES), st.integers(0, 40)), min_size=1, max_size=12))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_remembered_of_a_tensor_does_not_outlive_it(job: GetJob, changes: list[tuple[str, int]]) -> None:
    assert job(2).run(odd_cases.changed, changes=changes) == [[], []]
