"""A calibrated model gives back what a simulated job put in, and the command says what it predicts."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from ringtune.errors import RingtuneError, UsageError
from ringtune.knobs import Knobs
from ringtune.timeline.merging.merge import join
from ringtune.timeline.spans import Trace
from ringtune.tuner.model.calibrate import Model, calibrate, check, fit_link
from ringtune.tuner.model.cluster import Cluster, Link
from ringtune.tuner.model.collectives import allreduce_ns, batch_ns
from ringtune.tuner.model.measured import Moved, measure
from ringtune.tuner.model.questions import Change, ask, built_in
from ringtune.tuner.model.replay import play
from ringtune.tuner.model.workload import Gradient, Workload
from ringtune.tuner.predict_cli import parse_time, predict
from tests.timeline.scenario import Scenario, simulate
from tests.timeline.test_directly import packed

MS = 1e6
CALM = Scenario(ranks=4, steps=50, batches=3, compute_ns=20_000_000, jitter_ns=1, hosts=("a", "a", "b", "b"))
"""Its copies keep the ranks from the next batch as long as its transfers do."""


def trace_of(plan: Scenario) -> Trace:
    job, _ = simulate(plan)
    return join([Trace(job.spans[rank], (), (job.part_info(rank),), "part") for rank in job.spans])


def test_steps_are_read_off_a_trace() -> None:
    found = measure(trace_of(CALM))
    assert found.sizes.tolist() == [CALM.tensor_bytes] * 6
    assert np.median(found.compute) == pytest.approx(CALM.compute_ns + CALM.update_ns, rel=1e-3)
    assert np.median(found.after) == pytest.approx(CALM.update_ns, rel=1e-3)
    assert set(found.moved.bytes.tolist()) == {2.0 * CALM.tensor_bytes}
    assert set(found.moved.ns.tolist()) == {float(CALM.transfer_ns + 4 * CALM.copy_ns)}
    assert not found.moved.alone.any()
    assert not found.moved.scheduled.any()
    # The scenario spreads its submissions evenly over the time that it computes.
    assert np.diff(np.median(found.ready, axis=0)) == pytest.approx(CALM.compute_ns / 6, rel=0.01)


def test_what_a_gpu_packs_is_no_cost_of_the_hosts_copies(tmp_path: Path) -> None:
    found = measure(packed(tmp_path))  # 3 us and 4 us of 400 bytes
    assert found.copy_ns is None
    assert found.staged


def test_the_model_reproduces_the_job_it_was_fitted_to() -> None:
    model = calibrate(trace_of(CALM), "job")
    assert (model.cluster.ranks, model.cluster.hosts) == (4, 2)
    one = batch_ns(2 * CALM.tensor_bytes, False, False, model.cluster)
    assert one == pytest.approx(CALM.transfer_ns + 4 * CALM.copy_ns, rel=0.01)
    error = check(model)
    assert error is not None
    assert abs(error) < 0.05


@pytest.mark.parametrize("algorithm", ["ring", "recursive-doubling", "tree", "hierarchical"])
def test_a_link_is_found_from_exact_times(algorithm: str) -> None:
    true = Cluster(ranks=8, slots=2, network=Link(25_000.0, 2e9), algorithm=algorithm)
    sizes = np.array([4e3, 64e3, 1e6, 16e6])
    times = np.array([allreduce_ns(size, true) for size in sizes])
    found = fit_link(Cluster(ranks=8, slots=2, algorithm=algorithm), Moved.collectives(sizes, times), 0.0)[0]
    assert found.network.latency_ns == pytest.approx(25_000, rel=1e-3)
    assert found.network.bytes_per_s == pytest.approx(2e9, rel=1e-3)


def test_a_few_disturbed_collectives_do_not_move_the_fit() -> None:
    true = Cluster(ranks=2, slots=1, network=Link(25_000.0, 2e9), algorithm="ring")
    sizes = np.repeat([4e3, 1e6, 16e6], 40)
    times = np.array([allreduce_ns(size, true) for size in sizes])
    times[::10] *= 8
    found = fit_link(Cluster(ranks=2, slots=1, algorithm="ring"), Moved.collectives(sizes, times))[0]
    assert found.network.bytes_per_s == pytest.approx(2e9, rel=0.05)


def test_collectives_of_one_size_leave_the_latency_as_it_was() -> None:
    cluster = Cluster(ranks=2, slots=1, algorithm="ring")
    moved = Moved.collectives(np.full(20, 1e6), np.full(20, 5 * MS))
    assert fit_link(cluster, moved)[0].network.latency_ns == pytest.approx(cluster.network.latency_ns, rel=0.05)


@pytest.mark.parametrize("burst", [0.0, 0.4, 1.0])
def test_a_bucket_is_found_by_the_rests_before_batches(burst: float) -> None:
    """Played batches give back the link; without a bucket none is seen."""
    link = Link(50_000.0, 1e8, burst * MS)
    true = Cluster(ranks=2, slots=1, network=link, copy_ns=0.2, algorithm="ring")
    sizes = [100_000, 1_000_000, 400_000, 4_000_000, 64_000, 2_000_000] * 5
    ready = np.cumsum([0.5, 3.0, 9.0, 40.0, 50.0, 1.0] * 5) * MS
    gradients = tuple(Gradient(size, at) for size, at in zip(sizes, ready.tolist(), strict=True))
    step = play(Workload("job", gradients, 1000 * MS), true, Knobs(fusion_bytes=0))
    begins, ends = (np.array([getattr(batch, name) for batch in step.batches]) for name in ("begin_ns", "end_ns"))
    idle = begins - np.concatenate((begins[:1], ends[:-1]))
    alone = np.ones(len(sizes), dtype=np.bool_)
    moved = Moved(np.array(sizes, dtype=np.float64), ends - begins, alone, alone, idle, np.zeros(len(sizes)))
    found = fit_link(replace(true, network=Link(30_000.0, 1e9)), moved, 25_000.0)[0].network
    assert found.burst_ns == pytest.approx(burst * MS, rel=0.05)
    assert found.bytes_per_s == pytest.approx(1e8, rel=0.01)
    assert found.latency_ns == pytest.approx(50_000, rel=0.1)


def test_short_batches_show_the_latency() -> None:
    true = Cluster(ranks=8, slots=1, network=Link(400_000.0, 1e9), algorithm="ring")
    sizes = np.array([1e3, 4e3, 1e4, 1e5])
    moved = Moved.collectives(sizes, np.array([allreduce_ns(size, true) for size in sizes]))
    assert fit_link(replace(true, network=Link(30_000.0, 1e9)), moved)[0].network.latency_ns == pytest.approx(
        4e5, rel=0.2
    )


def test_the_latency_of_long_batches_is_held_near_the_ping() -> None:
    cluster = Cluster(ranks=2, slots=1, algorithm="ring")
    moved = Moved.collectives(np.array([1e8, 2e8]), np.array([100 * MS, 200 * MS]))
    found = fit_link(cluster, moved, 1 * MS)[0].network
    assert found.latency_ns == pytest.approx(1 * MS, rel=0.3)


def test_a_trace_without_steps_is_refused_in_words() -> None:
    trace = trace_of(Scenario(ranks=2, steps=2))
    empty = Trace(trace.spans.take(slice(0, 0)), (), trace.parts, "part")
    with pytest.raises(RingtuneError, match="no steps"):
        calibrate(empty, "job")


def test_without_stragglers_the_one_that_was_supposed_is_gone_too() -> None:
    model = calibrate(trace_of(CALM), "job")
    supposed, even = Change("", ranks=64, straggler=1.5), Change("", ranks=64, straggler=1.5, even=True)
    assert ask(model, even).step_ns == ask(model, Change("", ranks=64, even=True)).step_ns
    assert ask(model, even).step_ns.value < ask(model, supposed).step_ns.value


def test_questions_move_the_step_the_right_way() -> None:
    model = calibrate(trace_of(CALM), "job")
    answers = {change.label: ask(model, change) for change in built_in(64)}
    now = answers["as it is"]
    assert (now.ranks, now.hosts) == (64, 32)
    assert now.step_ns.low <= now.step_ns.value <= now.step_ns.high
    for label in ("network twice as fast", "perfect overlap", "bf16 on the wire"):
        assert answers[label].step_ns.value < now.step_ns.value, label
    assert ask(model, Change("slow", ranks=64, straggler=2.0)).step_ns.value > now.step_ns.value
    assert ask(model, Change("wide", ranks=64, bandwidth=1e12)).step_ns.value < now.step_ns.value


@pytest.mark.parametrize(
    "wrong", [{"ranks": 10_001}, {"ranks": 0}, {"compression": "zip"}, {"straggler": 0.5}, {"network": 0.0}]
)
def test_impossible_questions_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Change("wrong", **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(("text", "ns"), [("10us", 1e4), ("1.5ms", 1.5e6), ("3 s", 3e9), ("7ns", 7.0), ("2µs", 2e3)])
def test_times_as_users_write_them(text: str, ns: float) -> None:
    assert parse_time(text) == ns


@pytest.mark.parametrize("text", ["", "10", "ms", "-3ms", "3 hours"])
def test_a_wrong_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no time"):
        parse_time(text)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "net.log"
    path.write_text("comment\n1\n2\n1000,4000\n9000,4000000\n")
    return path


def test_the_command_answers_in_json(profile: Path) -> None:
    words = [str(profile), "--step", "20ms", "-np", "1,8", "--slots-per-host", "4", "--bandwidth", "10Gbit/s", "--json"]
    done = CliRunner().invoke(predict, words)
    assert done.exit_code == 0, done.output
    document = json.loads(done.output)
    alone, eight = document["ranks"]
    assert (alone["efficiency"]["value"], alone["step_ns"]["value"]) == (1.0, 20 * MS)
    assert (eight["ranks"], eight["hosts"]) == (8, 2)
    assert eight["step_ns"]["value"] > 20 * MS
    assert document["measured"]["step_ns"] is None
    assert len(document["what_if"]) == len(built_in(8))


def test_the_command_says_what_it_assumes(profile: Path) -> None:
    done = CliRunner().invoke(predict, [str(profile), "-np", "4"])
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert "was not measured" in said and "hold Horovod's published results on 128 and 512 GPUs" in said
    assert re.search(r" [\d.]+ \[[\d.]+, [\d.]+\] (s|ms|µs) +0 s$", done.output, re.MULTILINE)  # exposed, late


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["-np", "0"], "ranks"),
        (["-np", "two"], "numbers of ranks"),
        (["--latency", "soon"], "no time"),
        (["--bandwidth", "much"], "bandwidth"),
        (["--straggler", "0.1"], "straggler"),
    ],
)
def test_a_wrong_option_is_named(profile: Path, words: list[str], says: str) -> None:
    done = CliRunner().invoke(predict, [str(profile), *words])
    assert isinstance(done.exception, UsageError)
    assert says in str(done.exception)


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("jitter", [0.0, 0.1])
def test_a_step_that_computes_nothing_is_predicted_like_any_other(ranks: int, jitter: float) -> None:
    """Profiles of other tools have such steps: all of the step was communication."""
    nothing = Workload("nothing", (Gradient(1 << 20, 0.0),), backward_end_ns=0.0, jitter=jitter)
    model = Model(nothing, Cluster(ranks=2), Knobs())
    for change in built_in(ranks):
        answer = ask(model, change)
        assert 0.0 <= answer.efficiency.low <= answer.efficiency.value <= answer.efficiency.high <= 1.0, change
        assert np.isfinite([answer.step_ns.low, answer.step_ns.value, answer.step_ns.high]).all(), change


@pytest.mark.parametrize(
    ("late", "jitter"),
    [({1: 12_000_000}, 1), ({}, 12_000_000), ({1: 8_000_000}, 6_000_000)],
    ids=["always the same", "in turn", "both"],
)
def test_a_job_with_late_ranks_is_given_back_and_told_what_they_cost(late: dict[int, int], jitter: int) -> None:
    """The last of 4 ranks sets the step's length: a model of average ranks would miss it by up to a third."""
    plan = replace(CALM, slow_compute=late, jitter_ns=jitter)
    model = calibrate(trace_of(plan), "late")
    assert model.measured_ns is not None
    assert abs(check(model) or 0.0) < 0.06
    shares = np.array([*late.values(), 0])[:1] / plan.ranks  # of the slow rank, in the mean
    mean = plan.compute_ns + plan.update_ns + float(shares[0]) + jitter / 2
    assert model.work.compute_ns == pytest.approx(mean, rel=0.04)
    assert model.work.skew == pytest.approx(sum(late.values()) * 0.75 / mean, abs=0.06)
    assert (model.work.jitter > 0.05) == (not late)  # one that is always the last hides how the others vary
    # Without late ranks the step is what an average one computes, and the last batch.
    even = ask(model, Change("no straggler", even=True)).step_ns.value
    assert even == pytest.approx(mean + 2 * MS, rel=0.06)


def test_late_ranks_of_a_larger_job_are_the_skew_or_grow_with_the_jitter() -> None:
    always = Workload("always", (Gradient(1 << 20, MS),), MS, skew=0.3)
    assert [always.late(ranks) for ranks in (1, 4, 64)] == [0.0, 0.3, 0.3]
    turns = Workload("turns", (Gradient(1 << 20, MS),), MS, jitter=0.1)
    assert turns.late(1) == 0.0 < turns.late(4) < turns.late(64)


def test_batches_within_a_host_that_show_no_bandwidth_give_the_latency() -> None:
    """On a machine whose cores are busy a batch waits for a core, large or small."""
    sizes = np.repeat([33_000.0, 66_000.0, 1_000_000.0], 20)
    times = np.where(sizes > 50_000, 250e3, 300e3)
    home = Cluster(ranks=2, slots=2)
    found, _ = fit_link(home, Moved.collectives(sizes, times))
    assert found.memory.untold and found.memory.bytes_per_s == pytest.approx(home.memory.bytes_per_s, rel=0.02)
    for size, taken in ((33_000.0, 300e3), (66_000.0, 250e3)):
        assert allreduce_ns(size, found) == pytest.approx(taken, rel=0.5)
    # Links that are faster than memory, and of which even the fastest batch shows no bandwidth: no batch is too fast.
    quick, _ = fit_link(home, Moved.collectives(sizes * 1000, times))
    assert quick.memory.bytes_per_s >= 1e9 * 1000 / 250
    # Between hosts no bandwidth is known well enough to stand in.
    apart, _ = fit_link(replace(home, slots=1), Moved.collectives(sizes, times))
    assert not apart.network.untold
