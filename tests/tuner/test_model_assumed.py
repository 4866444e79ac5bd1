"""Predictions of what was not measured have an interval and say what is assumed; a model that misses its job none."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from ringtune import layout
from ringtune.errors import RingtuneError
from ringtune.knobs import DEFAULTS
from ringtune.tuner import predict_cli
from ringtune.tuner.model import assumed
from ringtune.tuner.model.calibrate import FASTEST, Model
from ringtune.tuner.model.cluster import Cluster, Link
from ringtune.tuner.model.questions import NORMAL_95, Change, ask
from ringtune.tuner.model.replay import Conditions, play
from ringtune.tuner.model.workload import evenly
from ringtune.tuner.predict_cli import predict
from tests.timeline.scenario import Scenario, simulate

MS = 1e6
WORK = evenly([1 << 20] * 8, 20 * MS, "job")


def of_job(cluster: Cluster, off: float = 1.0) -> Model:
    """A model whose job's step took so many times as long as it says."""
    return Model(WORK, cluster, DEFAULTS, measured_ns=play(WORK, cluster, DEFAULTS).length_ns * off)


@pytest.mark.parametrize(
    ("ran", "asked", "unknown"),
    [
        (Cluster(ranks=1), (1, 1), False),
        (Cluster(ranks=1), (4, 1), True),
        (Cluster(ranks=1), (4, 4), True),
        (Cluster(ranks=4, slots=4), (2, 4), False),
        (Cluster(ranks=4, slots=4), (8, 4), True),
        (Cluster(ranks=4, slots=2), (64, 2), False),
        (Cluster(ranks=4, slots=2), (2, 2), False),
    ],
)
def test_links_that_the_job_did_not_use_widen_the_interval(ran: Cluster, asked: tuple[int, int], unknown: bool) -> None:
    step = ask(of_job(ran), Change("", ranks=asked[0], slots=asked[1])).step_ns
    assert (step.high > step.value) == unknown
    if unknown:
        assert step.high == pytest.approx(step.value * (1 + NORMAL_95 * assumed.ERROR))
    both = ask(replace(of_job(ran), error=0.1), Change("", ranks=asked[0], slots=asked[1])).step_ns
    expected = math.hypot(0.1, assumed.ERROR if unknown else 0.0) if asked[0] > 1 else 0.0
    assert both.high == pytest.approx(both.value * (1 + NORMAL_95 * expected))


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "net.log"
    path.write_text("comment\n1\n8\n" + "2000,4000000\n" * 8)
    return path


@pytest.mark.parametrize("words", [[], ["--bandwidth", "25Gbit/s"], ["--bandwidth", "25Gbit/s", "--latency", "10us"]])
def test_every_answer_for_a_profile_has_an_interval_and_its_assumptions(words: list[str], profile: Path) -> None:
    done = CliRunner().invoke(predict, [str(profile), "-np", "2,8,64", *words, "--json"], catch_exceptions=False)
    document = json.loads(done.output)
    for answer in (*document["ranks"], *document["what_if"]):
        assert answer["step_ns"]["low"] < answer["step_ns"]["value"] < answer["step_ns"]["high"], answer
        assert answer["efficiency"]["low"] < answer["efficiency"]["value"], answer
    said = document["assumed"]
    assert ("--bandwidth" in said, "90 % of the bandwidth given" in said) == (not words, bool(words))
    assert ("--latency" in said) == (len(words) < 4) and "computing spreads by 2.3 %" in said


def test_of_a_line_that_is_given_links_carry_a_share(profile: Path) -> None:
    def longest(words: list[str]) -> float:
        done = CliRunner().invoke(predict, [str(profile), "-np", "8", *words, "--json"], catch_exceptions=False)
        return float(json.loads(done.output)["ranks"][0]["communicate_ns"])

    latency = ["--latency", "1ns", "--algorithm", "ring"]
    slow, fast = (longest(["--bandwidth", rate, *latency]) for rate in ("1Gbit/s", "2Gbit/s"))
    size = 8 * 4_000_000
    assert slow - fast == pytest.approx(2 * 7 / 8 * size / (assumed.LINE_SHARE * 0.25e9) * 1e9, rel=0.02)


@pytest.mark.parametrize("width", ["80", "200"])
def test_no_figure_is_cut(width: str, profile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", width)
    said = CliRunner().invoke(predict, [str(profile), "-np", "2,512"], catch_exceptions=False).output
    assert "…" not in said and max(map(len, said.splitlines())) <= int(width)
    assert said.count("perfect overlap") == (2 if width == "80" else 1)


@pytest.mark.parametrize("off", [1.0, 1.2, 0.82])
def test_a_model_that_gives_back_its_job_is_believed(off: float) -> None:
    model = of_job(Cluster(ranks=4, slots=2), off)
    assert assumed.believed(model) is model
    assert assumed.assumptions(model) == ""


@pytest.mark.parametrize(("off", "says"), [(1 / 1.49, "149 %"), (2.0, "50 %")])
def test_a_model_that_misses_its_own_job_is_refused(off: float, says: str) -> None:
    with pytest.raises(RingtuneError, match=f"the model gives {says} of the job's own step"):
        assumed.believed(of_job(Cluster(ranks=4, slots=2), off))


def test_links_that_no_machine_has_are_refused() -> None:
    with pytest.raises(RingtuneError, match="as if links carried 1,000 GB/s after 2"):
        assumed.believed(of_job(Cluster(ranks=2, slots=2, memory=Link(2.5 * MS, FASTEST))))


def test_the_command_refuses_such_a_model_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(Scenario(ranks=2, steps=20))[0].write(layout.timeline_parts(tmp_path))
    monkeypatch.setattr(predict_cli, "calibrate", lambda trace, name: of_job(Cluster(ranks=4, slots=2), 1 / 1.49))
    done = CliRunner().invoke(predict, [str(tmp_path)])
    assert isinstance(done.exception, RingtuneError) and "149 %" in str(done.exception)


def test_perfect_overlap_takes_nothing_from_computing() -> None:
    cluster = Cluster(ranks=4, contention=0.5)
    assert play(WORK, cluster, DEFAULTS, Conditions(hidden=True)).length_ns == WORK.compute_ns
    assert play(WORK, cluster, DEFAULTS).contention_ns > 0


def test_links_that_batches_did_not_show_widen_the_interval_and_are_said() -> None:
    told = of_job(Cluster(ranks=2, slots=2))
    untold = of_job(Cluster(ranks=2, slots=2, memory=Link(140e3, 12e9, untold=True)))
    assert assumed.believed(untold) is untold
    assert ask(told, Change("")).step_ns.high == ask(told, Change("")).step_ns.value
    step = ask(untold, Change("")).step_ns
    assert step.high == pytest.approx(step.value * (1 + NORMAL_95 * assumed.ERROR))
    said = assumed.assumptions(untold, across=False)
    assert said.startswith("Large batches took no longer") and said.endswith("carry 12.0 GB/s.")
    assert assumed.assumptions(told, across=False) == ""
    assert "Assumed: links of" in assumed.assumptions(untold)


def test_a_job_whose_own_stretches_differ_is_not_refused_for_that() -> None:
    missed = of_job(Cluster(ranks=4, slots=2), 1 / 1.4)
    with pytest.raises(RingtuneError, match="140 %"):
        assumed.believed(missed)
    unsteady = replace(missed, unsteady=0.2)
    assert assumed.believed(unsteady) is unsteady
