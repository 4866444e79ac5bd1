"""What if: dials, addresses and answers, without a browser."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from ringtune.dashboard.context import Context
from ringtune.dashboard.data import job, whatif
from ringtune.dashboard.data.files import Unreadable
from ringtune.dashboard.data.runs import RunsFolder
from ringtune.dashboard.data.timeline import trace
from ringtune.dashboard.data.timeline.index import TimelineIndex
from ringtune.dashboard.data.whatif import Baseline
from ringtune.dashboard.figures import whatif as figures
from ringtune.dashboard.pages import whatif as page
from ringtune.timeline.spans import Trace, empty_table
from ringtune.timeline.synthetic.generate import HostClock, Schedule
from ringtune.tuner.model.calibrate import Model, calibrate
from ringtune.tuner.model.questions import Change, Value, ask
from tests.dashboard.folders import training
from tests.timeline.generated_run import generate_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training(tmp_path_factory.mktemp("runs"), ranks=4, steps=30)


@pytest.fixture(scope="module")
def model(run: Path) -> Model:
    context = Context(RunsFolder(run))
    found = context.timelines.model(context.folder.rows()[0].info)
    assert isinstance(found, Model)
    return found


def values(model: Model, **asked: str) -> dict[str, float]:
    return {dial.name: dial.value for dial in whatif.dials(model, asked)}


def test_the_model_is_the_one_that_predict_fits(run: Path, model: Model) -> None:
    whole, _ = trace.read_all(run, trace.sources(run))
    assert model == calibrate(whole, model.work.name)


def test_hosts_and_clocks_reach_the_model(tmp_path: Path) -> None:
    plan = Schedule(ranks=2, steps=12, hosts=("a", "b"), clocks={"b": HostClock(offset_ns=5_000, error_ns=40_000)})
    run = generate_run(tmp_path, "two", plan, tuning=False, scaling=False)
    whole, _ = trace.read_all(run, trace.sources(run))
    assert whole.instants_named("CLOCK")
    context = Context(RunsFolder(tmp_path))
    found = context.timelines.model(context.folder.rows()[0].info)
    assert isinstance(found, Model) and found.cluster.hosts == 2
    assert found == calibrate(whole, "two")


def test_dials_start_where_the_job_ran(model: Model) -> None:
    found = whatif.dials(model, {})
    assert all(dial.value == dial.start == dial.values[dial.position] for dial in found)
    assert (values(model)["ranks"], values(model)["slots"]) == (4.0, float(model.cluster.slots))
    assert whatif.changed(found) == {}
    assert whatif.question(found, "none") == Change("with these settings")


def test_an_address_turns_dials_and_dials_make_the_address(model: Model) -> None:
    asked = {"ranks": "96", "gbit": "25", "us": "7.5", "straggler": "1.2", "fusion": "64", "cycle": "0.5"}
    found = whatif.dials(model, asked)
    assert whatif.changed(found) == asked
    change = whatif.question(found, "bf16")
    assert (change.ranks, change.slots, change.bandwidth, change.latency_ns) == (96, None, 25e9 / 8, 7500.0)
    assert (change.straggler, change.compression) == (1.2, "bf16")
    assert change.knobs == {"fusion_bytes": 64 << 20, "cycle_time_ns": 500_000}


@pytest.mark.parametrize("bad", ["", "x", "nan", "-1", "1e99", "<b>"])
def test_nonsense_in_an_address_is_as_it_ran(model: Model, bad: str) -> None:
    assert values(model, **dict.fromkeys(whatif.DIALS, bad)) == values(model)
    assert whatif.question(whatif.dials(model, {}), bad).compression == "none"


def test_positions_of_the_browser_are_dials_again(model: Model) -> None:
    found = whatif.dials(model, {"ranks": "64", "cycle": "0.3"})
    held = {dial.name: {"values": list(dial.values), "start": dial.start, "origin": dial.origin} for dial in found}
    again = page.turned(held, {dial.name: dial.position for dial in found})
    assert [(one.name, one.value) for one in again] == [(one.name, one.value) for one in found]
    wild = page.turned(held, dict.fromkeys(whatif.DIALS, 10**9) | {"us": None, "gbit": "x"})
    assert {one.name: one.value for one in wild}["ranks"] == whatif.MOST_RANKS
    assert all(one.value == one.start for one in wild if one.name in ("us", "gbit"))


def test_the_outlook_is_what_the_model_answers(model: Model) -> None:
    change = Change("x", ranks=48, bandwidth=1e9, latency_ns=5e3)
    outlook = whatif.data(Baseline.of(model), change)
    assert outlook.answer == ask(model, change)
    assert outlook.as_ran.ranks == 4
    assert [answer.ranks for answer in outlook.curve] == sorted({*(2**n for n in range(13)), 48})
    assert {answer.ranks: answer for answer in outlook.curve}[48].step == outlook.answer.step
    assert not outlook.host_bound and "links of" not in outlook.assumed
    assert outlook.measured_ns == model.measured_ns


def test_the_page_refuses_a_model_that_misses_its_own_job(
    run: Path, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = Context(RunsFolder(run))
    route = context.route(f"/run/{run.name}/what-if", "")
    shown = str(page.layout(context, route))
    assert "whatif-ranks" in shown and "the model gives" not in shown
    monkeypatch.setattr(context.timelines, "baseline", lambda _run: Baseline.of(replace(model, measured_ns=1e6)))
    refused = str(page.layout(context, route))
    assert "resnet50: the model gives " in refused and "whatif-ranks" not in refused


def test_a_network_that_nobody_measured_is_said_to_be_assumed(model: Model) -> None:
    at_home = replace(model, cluster=replace(model.cluster, slots=4))
    base = Baseline.of(at_home)
    said = page.note(whatif.data(base, Change("x", ranks=8)))
    assert (
        "was not measured. Assumed: links of " in said
        and "(Bandwidth between hosts)" in said
        and "(Latency between hosts)" in said
    )
    half = page.note(whatif.data(base, Change("x", ranks=8, bandwidth=1e9)))
    assert (
        "(Latency between hosts)" in half
        and "(Bandwidth between hosts)" not in half
        and "links carry 90 % of the bandwidth given" in half
    )
    assert "do not matter" in page.note(whatif.data(Baseline.of(at_home), Change("x", ranks=4)))
    found = {dial.name: dial.origin for dial in whatif.dials(at_home, {})}
    assert (found["gbit"], found["us"], found["ranks"]) == ("assumed", "assumed", "as it ran")


def test_where_a_step_goes_adds_up(model: Model) -> None:
    answer = ask(model, Change("x", ranks=64, straggler=1.3, bandwidth=1e8))
    assert sum(figures.parts(answer)) == pytest.approx(answer.step_ns.value)
    assert min(figures.parts(answer)) >= 0


def test_advice_is_sorted_by_what_it_saves(model: Model) -> None:
    found = whatif.advice(model, Change("x", ranks=64, bandwidth=1e8, straggler=1.5))
    assert [one.saved.value for one in found] == sorted((one.saved.value for one in found), reverse=True)
    saved = {one.label: one.saved for one in found}
    assert saved["no straggler"].value > 0 and saved["bf16 on the wire"].low > 0
    rows = page.advice_rows(found)
    assert len(rows[0]) == len(page.HEAD)
    assert all(re.fullmatch(r"\S+ \[\S+, \S+\] (%|µs|ms|s)", cell) for _, *cells in rows for cell in cells)


def test_what_is_saved_lies_in_its_interval_which_no_step_below_its_computing_bounds(model: Model) -> None:
    change = Change("x", ranks=64, bandwidth=1e8, straggler=1.5)
    for one in whatif.advice(model, change):
        assert one.saved.low <= one.saved.value <= one.saved.high
        assert one.saved.high <= 1 - one.answer.step.compute_ns / ask(model, change).step.length_ns + 1e-9
    surer = replace(model, error=model.error / 2)
    pairs = zip(whatif.advice(model, change), whatif.advice(surer, change), strict=True)
    assert all(less.saved.low > more.saved.low for more, less in pairs)


def test_a_change_that_changes_nothing_saves_nothing_and_the_job_as_it_ran_has_its_throughput(model: Model) -> None:
    found = {one.label: one.saved for one in whatif.advice(model, Change("x", knobs={"fusion_bytes": 1 << 20}))}
    assert found["fusion buffer 1 MiB"] == Value(0, 0, 0)
    base = Baseline.of(model)
    same, more = whatif.data(base, Change("x")).throughput, whatif.data(base, Change("x", ranks=64)).throughput
    assert same == Value(1, 1, 1)
    assert 1 < more.low < more.value < more.high and more.value == pytest.approx(
        16 * base.answer.step_ns.value / ask(model, Change("x", ranks=64)).step_ns.value
    )


def test_a_long_trace_is_cut_to_its_newest_steps(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = trace.load(run, trace.sources(run))
    monkeypatch.setattr(job, "SPAN_LIMIT", len(index.spans) // 3)
    cut = job.recorded(index, ("a", "a", "b", "b"))
    assert sorted(set(cut.spans.step.tolist())) == list(range(20, 30))
    assert [part.host for part in cut.parts] == ["a", "a", "b", "b"]


def test_a_trace_without_steps_is_a_clear_sentence() -> None:
    with pytest.raises(Unreadable, match=r"No prediction can be made from the timeline: .*no steps"):
        job.fitted(Trace(empty_table(), (), (), "merged", "job"), "x")


def test_a_run_without_a_timeline_has_no_model(tmp_path: Path) -> None:
    run = generate_run(tmp_path, "one", Schedule(ranks=2, steps=3))
    for part in (run / "timeline").iterdir():
        part.unlink()
    context = Context(RunsFolder(tmp_path))
    assert context.timelines.model(context.folder.rows()[0].info) is None


def test_the_model_is_kept_as_long_as_the_timeline_is_the_same(run: Path) -> None:
    context = Context(RunsFolder(run))
    info = context.folder.rows()[0].info
    assert isinstance(context.timelines.timeline(info), TimelineIndex)
    assert context.timelines.model(info) is context.timelines.model(info)
    assert context.timelines.baseline(info) is context.timelines.baseline(info)


@pytest.mark.parametrize(("gradients", "words"), [(25, "95 % intervals"), (26, "the spread of 38 resamp")])
def test_bands_are_called_95_percent_only_when_they_are(model: Model, gradients: int, words: str) -> None:
    wide = replace(model, work=replace(model.work, gradients=model.work.gradients[:1] * gradients))
    assert len(wide.draws) == 40
    assert whatif.bands(wide).startswith(f"Bands: {words}")
    assert whatif.bands(replace(wide, draws=wide.draws[:38])).startswith("Bands: the spread of 38")
