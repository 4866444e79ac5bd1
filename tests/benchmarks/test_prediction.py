"""`ringtune bench predict`: what it predicts, and one real job over shaped links."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from ringtune.benchmarks.netlab import network
from ringtune.benchmarks.netlab.network import rate_number
from ringtune.benchmarks.netlab.testbed import Bed, Shape
from ringtune.benchmarks.predict import command as prediction
from ringtune.benchmarks.predict import published
from ringtune.benchmarks.predict.effort import keep_effort
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
    cluster = Cluster(ranks=2, slots=1, network=Link(0.0, 125e6), copy_ns=0.0, algorithm=RING)
    return Model(WORK, cluster, DEFAULTS)


def test_only_the_first_case_is_the_calibrated_one_and_no_label_comes_twice() -> None:
    first, *others = prediction.cases([WORK, OTHER], "1gbit")
    assert first == prediction.Case(first.label, prediction.PAIR, "1gbit", WORK, {})
    assert all(replace(case, label=first.label) != first for case in others)
    assert prediction.SMALL not in [case.knobs for case in others]
    labels = [case.label for case in (first, *others)]
    assert len(set(labels)) == len(labels)
    assert {case.shape.hosts for case in others} == {2, 4, 8}


@pytest.mark.parametrize(("rate", "factor"), [("1gbit", 1.0), ("500mbit", 2.0), ("2gbit", 0.5)])
def test_another_rate_scales_the_calibrated_bandwidth(rate: str, factor: float) -> None:
    case = replace(prediction.cases([WORK], "1gbit")[0], rate=rate)
    found = prediction.predicted(model(), case, "1gbit")
    single = allreduce_ns(WORK.bytes, model().cluster)
    assert found.step.communicate_ns == pytest.approx(single * factor)


def test_another_workload_is_predicted_with_the_same_links() -> None:
    case = replace(prediction.cases([WORK], "1gbit")[0], work=OTHER)
    assert sum(batch.bytes for batch in prediction.predicted(model(), case, "1gbit").step.batches) == OTHER.bytes


def test_a_measurement_is_taken_up_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every case once a round, whatever pieces it is made in."""
    ran: list[str] = []
    monkeypatch.setattr(prediction, "Bed", lambda hosts: nullcontext())
    monkeypatch.setattr(prediction, "record", lambda bed, case, steps, run: run.mkdir())
    monkeypatch.setattr(prediction, "measure", lambda bed, case, steps: ran.append(case.label) or 5.0)
    monkeypatch.setattr(prediction, "measure_effort", lambda bed, shape: ((1e6, 0.25),))
    plan = prediction.Plan(["1gbit"], 2, 20, 3600.0)
    wanted = {"1gbit": prediction.cases([WORK], "1gbit")}
    labels = [case.label for case in wanted["1gbit"]]
    console = Console(quiet=True)
    stopped = prediction._measure(wanted, replace(plan, seconds=0.0), prediction.Kept(tmp_path, plan), console)
    assert (stopped, ran) == (False, [])
    first = prediction.Kept(tmp_path, plan)
    first.add("1gbit", labels[0], 4.0)
    assert prediction._measure(wanted, plan, prediction.Kept(tmp_path, plan), console)
    assert ran == [*labels[1:], *reversed(labels)]
    assert prediction.Kept(tmp_path, plan).samples()["1gbit", labels[0]] == [4.0, 5.0]
    with pytest.raises(UsageError, match="other options"):
        prediction.Kept(tmp_path, replace(plan, steps=40))


def test_many_hosts_on_few_cores_are_bound_by_what_these_need_for_a_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its draws too; where two hosts have a core each nothing changes."""
    seen = replace(model(), draws=((WORK, model().cluster),))
    monkeypatch.setattr(prediction, "load", lambda run: None)
    monkeypatch.setattr(prediction, "calibrate", lambda trace, name: seen)
    monkeypatch.setattr(prediction.os, "sched_getaffinity", lambda pid: {0, 1})
    kept = prediction.Kept(tmp_path, prediction.Plan(["1gbit"], 1, 12, 1.0))
    keep_effort(kept.effort, ((1e3, 8.0),))  # as long as a byte takes on the link
    found = prediction.calibrated(kept, "1gbit", "small")
    two, four, eight = prediction.cases([WORK], "1gbit")[0:3]
    assert (
        prediction.predicted(found, two, "1gbit").step_ns.value
        == prediction.predicted(seen, two, "1gbit").step_ns.value
    )
    for case, cores_need in ((four, 2.0), (eight, 4.0)):
        answer = prediction.predicted(found, case, "1gbit")
        alone = prediction.predicted(seen, case, "1gbit").step.communicate_ns
        assert answer.step.communicate_ns == pytest.approx(alone * cores_need)
        assert answer.step_ns.low == answer.step_ns.high == answer.step_ns.value


class Watched:
    """A job on a machine whose other processes use these shares of a core while it plays; a play is a second."""

    def __init__(self, *shares: float) -> None:
        self.plays, self.now, self._used, self._shares = 0, 0.0, 0.0, shares

    def others_s(self) -> float:
        return self._used

    def play(self, work: object, knobs: object, steps: int) -> list[list[int]]:
        self._used += self._shares[self.plays]
        self.plays, self.now = self.plays + 1, self.now + 1.0
        return [[10**9] * prediction.SKIPPED_STEPS + [self.plays * 10] * steps] * 2

    def shape_links(self, rate: str) -> None:
        pass

    def job(self, shape: Shape) -> Watched:
        return self


@pytest.mark.parametrize(
    ("shares", "plays", "counts"),
    [((0.01,), 1, 10), ((0.5, 0.04), 2, 20), ((0.5, 0.2, 0.3), 3, 20)],
)
def test_what_others_disturbed_is_measured_again(
    monkeypatch: pytest.MonkeyPatch, shares: tuple[float, ...], plays: int, counts: int
) -> None:
    """Until it is calm, three times at most; the calmest counts."""
    bed: Any = Watched(*shares)
    monkeypatch.setattr(prediction.time, "monotonic", lambda: bed.now)
    assert prediction.measure(bed, prediction.cases([WORK], "1gbit")[0], 3) == counts
    assert bed.plays == plays


def test_repeats_of_a_case_give_their_median_and_their_spread() -> None:
    case = prediction.cases([WORK], "1gbit")[0]
    answer = prediction.predicted(model(), case, "1gbit")
    value = answer.step_ns.value
    row = prediction.Row(case, answer, (value / 1.1, value / 1.25, value))
    assert (row.error, row.spread) == (pytest.approx(0.1), pytest.approx(0.25))


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


def near(found: float, expected: float, share: float) -> bool:
    return abs(found - expected) <= share * expected


def predicted_over_shaped_links(run: Path) -> list[tuple[str, float, float, float]]:
    """Calibrate on two hosts and measure three; return what was found, expected, and the limit of each that is off."""
    case = prediction.Case("two hosts", prediction.PAIR, "400mbit", WORK)
    with Bed(3) as bed:
        prediction.record(bed, case, 12, run)
        three = replace(case, label="three", shape=Shape(3, 1), knobs={"fusion_bytes": 1 << 20})
        measured = prediction.measure(bed, three, 12)
    found = calibrate(load(run), WORK.name)
    assert (found.cluster.ranks, found.cluster.hosts) == (2, 2)
    assert found.work.bytes == WORK.bytes
    assert len(open_run(run).steps) == 2
    step_ns = prediction.predicted(found, three, "400mbit").step_ns.value
    times = [
        ("compute", found.work.compute_ns, 60 * MS, 0.25),
        ("bytes/s", found.cluster.network.bytes_per_s, 48e6, 0.3),  # 400 Mbit/s are 50 MB/s
        ("step", step_ns, measured, 0.3),
    ]
    return [one for one in times if not near(*one[1:])]


@pytest.mark.long
def test_jobs_over_shaped_links_are_predicted_from_one_of_them(tmp_path: Path) -> None:
    """Calibrated on two hosts, asked for three; the limits are wide, but a machine that is busy misses them at times.

    What holds of one job that nothing disturbed holds: it is tried some times, not for ever.
    """
    lacking = network.missing()
    if lacking is not None:
        missing(lacking)
    off = []
    for attempt in range(8):
        off.append(predicted_over_shaped_links(tmp_path / f"run-{attempt}"))
        if not off[-1]:
            return
    raise AssertionError(f"off in every attempt: {off}")
