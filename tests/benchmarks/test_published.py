"""What predictions assume comes from published results, and their intervals hold those that were not fitted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ringtune.benchmarks.predict import published
from ringtune.tuner.model import assumed
from ringtune.tuner.model.questions import Answer, Change, ask
from ringtune.tuner.model.workload import Workload, evenly


@pytest.fixture(scope="module")
def works() -> dict[str, Workload]:
    return published.workloads(None)


def answer(work: Workload, gpus: int) -> Answer:
    """As `ringtune predict` answers for a profile, on the published cluster."""
    cluster = published.cluster_of(1, assumed.LINE_SHARE, assumed.CONTENTION)
    model = replace(assumed.of_profile(work), cluster=cluster, knobs=published.KNOBS)
    return ask(model, Change("published", ranks=gpus))


@pytest.mark.slow
def test_the_terms_are_those_of_the_fit_to_16_gpus(works: dict[str, Workload]) -> None:
    share, contention, jitter = published.fit(works)
    assert share == pytest.approx(assumed.LINE_SHARE, abs=0.005)
    assert contention == pytest.approx(assumed.CONTENTION, abs=0.005)
    assert jitter == pytest.approx(assumed.JITTER, abs=0.0005)


def test_nine_of_ten_intervals_hold_what_was_not_fitted(works: dict[str, Workload]) -> None:
    held = []
    for gpus, results in published.PUBLISHED.items():
        for name, efficiency in results.items():
            step = answer(works[name], gpus).step_ns
            held.append(step.low <= works[name].compute_ns / efficiency <= step.high)
            assert step.high - step.value < 0.2 * step.value, "an interval that says nothing holds everything"
    assert sum(held) >= 0.9 * len(held)


def test_the_assumed_cluster_is_the_published_one_but_for_its_links() -> None:
    model = assumed.of_profile(Workload("one", evenly([1 << 20], 1e6, "one").gradients, 1e6))
    assert (model.cluster.contention, model.work.jitter) == (assumed.CONTENTION, assumed.JITTER)
    assert ask(model, Change("alone", ranks=1)).step_ns.low == model.work.compute_ns
