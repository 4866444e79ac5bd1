"""CpuBudget of a page in a real browser: late answers, answers about what is not shown any more, and nothing to say."""

from __future__ import annotations

import json
import shutil
import threading
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from ringtune.dashboard import cpu_budget
from ringtune.dashboard.data.timeline import trace
from ringtune.dashboard.pictures import serving
from tests.dashboard.conftest import Visit
from tests.dashboard.folders import Recording, change

pytestmark = pytest.mark.slow

PAGES = ("overview", "timeline", "stragglers", "communication", "tuning", "what-if", "system", "scaling")
WATCHED_MS = 6000
"""Some polls: who draws a page at each of them, because its drawing is taken for old, draws it four times."""


def test_an_answer_that_takes_longer_than_a_poll_still_comes(
    visit: Visit, runs: dict[str, Path], tmp_path: Path
) -> None:
    page, kept = visit.page, tmp_path / "runs"
    shutil.copytree(runs["done"], kept / "first")
    with serving(kept) as address:

        def late(route: Any) -> None:
            answer = route.fetch()
            page.wait_for_timeout(2.5 * cpu_budget.POLL_MS)
            route.fulfill(response=answer)

        page.route("**/_poll", late)
        page.goto(address)
        page.wait_for_selector("#runs-grid .ag-row")
        shutil.copytree(runs["done"], kept / "second")
        visit.until("document.querySelectorAll('#runs-grid .ag-row').length === 2")
        page.unroute_all(behavior="wait")  # one may be asking the server, which ends now
    assert visit.complaints_while_served == []


def test_a_drawing_does_not_wait_for_an_answer(visit: Visit, url: str, runs: dict[str, Path]) -> None:
    page, held = visit.page, list[Any]()
    page.route("**/_poll", lambda route: held.append(route))
    page.goto(f"{url}/run/{quote(runs['done'].name)}/timeline")
    page.wait_for_selector("#timeline-graph .bars .point", state="attached")
    page.click("#tab-stragglers")
    page.wait_for_selector("#stragglers-map .hm", state="attached")
    assert len(held) == 1  # one question at a time
    held[0].abort()


@pytest.mark.parametrize(
    "name", [pytest.param("done", marks=pytest.mark.long), "live", pytest.param("", marks=pytest.mark.long)]
)
def test_pages_of_which_nothing_changes_are_not_drawn_again_and_again(
    visit: Visit, url: str, runs: dict[str, Path], name: str
) -> None:
    asked, ids = Counter[tuple[str, str]](), [quote(runs[one].name) for one in ("done", "live", "failed")]

    def count(request: Any) -> None:
        if "_dash-update-component" in request.url:
            asked[request.frame.url, json.loads(request.post_data)["output"]] += 1

    pairs = [(0, 1), (0, 2), (1, 2)]
    apart = [*(f"compare?a={ids[one]}&b={ids[other]}" for one, other in pairs), "scaling", ""]
    addresses = [f"run/{quote(runs[name].name)}/{page}" for page in PAGES] if name else apart
    tabs = [visit.page.context.new_page() for _ in addresses]
    try:
        for tab, address in zip(tabs, addresses, strict=True):
            tab.on("request", count)
            tab.goto(f"{url}/{address}")
        # Each its frame and, at the least, one part that is drawn.
        visit.until_true(lambda: len(asked) >= 2 * len(addresses), asked)
        visit.page.wait_for_timeout(WATCHED_MS)
        assert max(asked.values()) <= 2, asked
    finally:
        for tab in tabs:
            tab.close()


def test_an_answer_about_a_drawing_that_is_gone_is_asked_for_again(
    visit: Visit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A poll asks, the page is drawn anew, the job records more, and only then comes the answer."""
    monkeypatch.setattr(cpu_budget, "REDRAW_MS", 10**9)
    recording = Recording(tmp_path)
    change(recording.run, status="running", exit_code=None, ended_unix_ns=None)
    recording.upto(0.5)
    page, held, letting_go = visit.page, list[Any](), threading.Event()
    with serving(tmp_path) as address:
        page.goto(f"{address}run/{quote(recording.run.name)}/timeline")
        page.wait_for_selector("#timeline-graph .js-plotly-plot", state="attached")
        with page.expect_response("**/_poll") as answered:
            pass
        assert answered.value.status in (200, 204)
        page.route("**/_poll", lambda route: route.continue_() if letting_go.is_set() else held.append(route))
        with page.expect_request("**/_poll"):
            pass
        with page.expect_response(lambda one: "timeline-graph.figure" in (one.request.post_data or "")):
            page.click("#timeline-fit")
        page.wait_for_timeout(500)  # what was drawn becomes what the next poll speaks of
        recording.upto(0.6)
        whole = len(trace.load(recording.run, trace.sources(recording.run)).recorded())
        letting_go.set()
        for one in held:
            one.continue_()
        page.wait_for_selector(f"#timeline-note >> text={whole:,} spans in")
    assert visit.complaints_while_served == []
