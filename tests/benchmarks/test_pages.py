"""The benchmark of the dashboard's timeline: a real server, a real browser, figures for every move and step."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner

from ringtune.benchmarks.viewer import live, pages, watching
from ringtune.dashboard.page_registry import PAGES
from ringtune.errors import UsageError


def invoked(arguments: list[str]) -> str:
    """Run the command in a thread of its own, where Playwright can be at work beside that of other tests."""
    with ThreadPoolExecutor(1) as thread:
        run = partial(CliRunner().invoke, pages.dashboard_command, arguments, catch_exceptions=False)
        return thread.submit(run).result().output


@pytest.mark.long
def test_it_measures_paints_answers_and_payloads(
    require_tool: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    require_tool("browser")
    monkeypatch.setattr(pages, "PAINTS", 1)
    monkeypatch.setattr(pages, "TURNS", 2)
    arguments = ["--events", "20k", "--moves", "4", "--json", str(tmp_path / "record.json")]
    assert "The timeline's page" in invoked(arguments)
    (trace,) = orjson.loads((tmp_path / "record.json").read_bytes())["traces"]
    assert trace["events"] == 20_000
    assert len(trace["first_paint_ms"]) == 1
    assert trace["prepare_s"] > 0
    assert len(trace["answer_ms"]) == len(trace["payload_bytes"]) >= 2
    assert all(2000 < size < 1_000_000 for size in trace["payload_bytes"])
    assert set(trace["analyses"]) == {"stragglers", "communication", "compare"}
    for page in trace["analyses"].values():
        assert len(page["first_paint_ms"]) == 1 and len(page["answer_ms"]) >= 2
        assert all(2000 < size < 1_000_000 for size in page["payload_bytes"])


@pytest.mark.long
def test_a_running_job_is_watched(
    require_tool: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    require_tool("browser")
    monkeypatch.setattr(live, "SETTLE_S", 0.0)
    arguments = ["--live", "--past", "20", "--seconds", "3", "--pages", "overview,stragglers,tuning"]
    assert "Pages of a running job" in invoked([*arguments, "--json", str(tmp_path / "record.json")])
    both = orjson.loads((tmp_path / "record.json").read_bytes())["pages"]
    assert [one["page"] for one in both] == ["overview", "stragglers", "tuning"]
    lags = {name: values for one in both for name, values in one["lag_ms"].items()}
    assert set(lags) == {one.name for one in watching.WATCHED if one.page in ("overview", "stragglers", "tuning")}
    # A machine that has no time for the page or its server in these seconds shows no step, and takes no time for it.
    assert any(lags.values()) and all(value > 0 for values in lags.values() for value in values)
    assert all(one["steps"] >= 20 and one["core_share"] >= 0 and one["recording_share"] >= 0 for one in both)
    assert sum(one["recording_share"] for one in both) > 0


def test_every_page_that_follows_a_running_job_is_watched() -> None:
    pages_ = {page.partition("?")[0] for page in watching.PAGES}
    assert pages_ == {page.name for page in PAGES} - {"runs", "scaling"}
    assert pages._pages_of("all") == watching.PAGES
    assert pages._pages_of("system,timeline") == ("system", *(one for one in watching.PAGES if "timeline" in one))
    with pytest.raises(UsageError, match=r"--pages nothing: expected all, or some of overview, "):
        pages._pages_of("nothing")


def test_a_lag_is_from_the_end_of_a_step_to_the_frame_that_shows_it() -> None:
    steps = [(10.0, 1), (10.1, 2), (10.2, 3), (10.3, 4), (11.0, 5), (11.9, 6)]
    seen = [[10_150.0, 2.0], [10_900.0, 4.0]]
    # The fifth was never seen although it was a second old when nobody looked any more; of the sixth nothing is known.
    assert live.lags(steps, seen, (10.05, 12.0)) == pytest.approx([50, 700, 600, 1000])


def test_limits_that_are_missed_are_named_and_end_the_command_where_they_are_required() -> None:
    good = pages.PageFigures(10, first_paint_ms=[1999, 5000, 10], answer_ms=[199] * 20, payload_bytes=[999_999])
    assert pages.missed(good) == []
    slow = pages.PageFigures(10, first_paint_ms=[2500], answer_ms=[50] * 10 + [300] * 10, payload_bytes=[10, 1_000_001])
    assert pages.missed(slow) == [
        "10 events: first paint, median 2,500 ms, the limit is 2,000 ms",
        "10 events: answers, 95 % 300 ms, the limit is 200 ms",
        "10 events: largest answer 1,000,001 bytes, the limit is 1,000,000 bytes",
    ]
    watched = live.LiveFigures("timeline", 9, 9, core_share=0.021, lag_ms={"Timeline": [100.0] * 18 + [3200.0, 3200.0]})
    assert len(live.missed_live([watched])) == 2
    assert live.missed_live([live.LiveFigures("timeline", 9, 9, core_share=0.0199, lag_ms={"x": [3000.0]})]) == []
    pages._told(["one"], required=False)
    with pytest.raises(SystemExit):
        pages._told(["one"], required=True)
