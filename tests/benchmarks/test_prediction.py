"""`ringtune bench predict`: what it predicts, and one real job over shaped links."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ringtune.benchmarks import network, prediction, published
from ringtune.benchmarks.network import rate_number
from ringtune.errors import UsageError
from ringtune.knobs import DEFAULTS
from ringtune.timeline import load, open_run
from ringtune.tuner.model.calibrate import Model, calibrate
from ringtune.tuner.model.cluster import Cluster, Link
from ringtune.tuner.model.collectives import RING, allreduce_ns
from ringtune.tuner.model.workload import evenly
from tests.conftest import missing

MS = 1e6
WORK = evenly([1 << 18] * 12, 60 * MS, "small")
OTHER = evenly([1 << 17] * 30, 60 * MS, "other")


def model() -> Model:
    """As if calibrated on two hosts at 1 Gbit/s."""
    cluster = Cluster(ranks=2, slots=1, network=Link(0.0, 125e6), algorithm=RING)
    return Model(WORK, cluster, DEFAULTS)


def test_only_the_first_case_is_the_calibrated_one() -> None:
    first, *others = prediction.cases(WORK, OTHER, "1gbit")
    seen = (first.hosts, first.slots, first.rate, first.work.name, first.variables)
    assert seen == (2, 1, "1gbit", "small", {})
    assert all((case.hosts, case.slots, case.rate, case.work.name, case.variables) != seen for case in others)


@pytest.mark.parametrize(("rate", "factor"), [("1gbit", 1.0), ("500mbit", 2.0), ("2gbit", 0.5)])
def test_another_rate_scales_the_calibrated_bandwidth(rate: str, factor: float) -> None:
    case = replace(prediction.cases(WORK, OTHER, "1gbit")[0], rate=rate)
    found = prediction.predicted(model(), case, "1gbit")
    single = allreduce_ns(WORK.bytes, model().cluster)
    assert found.step.communicate_ns == pytest.approx(single * factor)


def test_another_workload_is_predicted_with_the_same_links() -> None:
    case = replace(prediction.cases(WORK, OTHER, "1gbit")[0], work=OTHER)
    assert sum(batch.bytes for batch in prediction.predicted(model(), case, "1gbit").step.batches) == OTHER.bytes


@pytest.mark.parametrize("text", ["none", "fast"])
def test_a_rate_must_be_one(text: str) -> None:
    with pytest.raises(UsageError):
        rate_number(text)


def test_the_fit_gives_back_what_made_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    works = {
        name: evenly([size] * 20, 400 * MS, name) for name, size in (("a", 1 << 20), ("b", 1 << 23), ("c", 1 << 25))
    }
    true = np.array([0.8, 0.2, 0.02])
    monkeypatch.setattr(published, "ALONE", dict.fromkeys(works, 100.0))
    made = {name: 1600.0 * published.predict_efficiency(works[name], 16, true) for name in works}
    monkeypatch.setattr(published, "SIXTEEN", made)
    found = published.fit(works)
    for name, work in works.items():
        assert published.predict_efficiency(work, 16, found) == pytest.approx(made[name] / 1600.0, abs=0.01)


def test_a_missing_profile_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"vgg16\.log"):
        published.read_profile(tmp_path, "vgg16")


def test_a_job_over_shaped_links_calibrates_the_model(tmp_path: Path) -> None:
    lacking = network.missing()
    if lacking is not None:
        missing(lacking)
    case = prediction.Case("two hosts", 2, 1, "400mbit", WORK)
    run = prediction.play(case, 20, tmp_path / "run", record=True)
    found = calibrate(load(run), "small")
    assert (found.cluster.ranks, found.cluster.hosts) == (2, 2)
    assert found.work.bytes == WORK.bytes
    assert found.work.compute_ns == pytest.approx(60 * MS, rel=0.25)
    # 400 Mbit/s are 50 MB/s; a bucket's burst and a busy machine move it a little.
    assert 25e6 < found.cluster.network.bytes_per_s < 80e6
    assert len(open_run(run).steps) == 2
