"""The timeline's page in a real browser: a large one is prepared in view, and every view comes back by its address."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from ringtune import layout
from ringtune.dashboard import cpu_budget
from ringtune.dashboard.data.timeline import prepare, trace
from ringtune.dashboard.pictures import serving
from ringtune.timeline.merging.merge import merge
from ringtune.timeline.synthetic.generate_long import generate_long, schedule_of
from tests.dashboard.conftest import Visit, range_of
from tests.dashboard.folders import Recording, change

pytestmark = pytest.mark.slow

SPANS = "#timeline-graph .bars .point"


def _click_a_bar(visit: Visit, stage: str) -> None:
    """Click the first bar of a phase that shows one span of a batch."""
    place = visit.page.evaluate(
        """(name) => {
          const plot = document.querySelector("#timeline-graph .js-plotly-plot");
          const trace = plot.data.find((one) => one.name === name), axis = plot._fullLayout.xaxis;
          const batches = Array.from(trace.customdata._inputArray || trace.customdata);
          const numbers = (column) => Array.from(column._inputArray || column);
          const base = numbers(trace.base), x = numbers(trace.x), y = numbers(trace.y);
          const n = batches.findIndex((batch, at) => batch > 0 && base[at] > axis.range[0]);
          const box = plot.querySelector(".nsewdrag").getBoundingClientRect();
          return [box.x + axis.d2p(base[n] + x[n] / 2), box.y + plot._fullLayout.yaxis.d2p(y[n])];
        }""",
        stage,
    )
    visit.page.mouse.click(*place)


def test_a_batch_is_followed_the_path_shown_and_the_address_restores_both(
    visit: Visit, url: str, runs: dict[str, Path]
) -> None:
    page = visit.page
    page.goto(f"{url}/run/{quote(runs['done'].name)}/timeline")
    page.wait_for_selector(SPANS)
    page.click("#timeline-start")
    page.wait_for_url("**from=*")
    page.wait_for_timeout(500)
    visit.until_after(lambda: _click_a_bar(visit, "Communicate"), "#timeline-batch")
    page.wait_for_selector("#timeline-batch >> text=on 4 ranks")
    page.wait_for_selector("#timeline-batch >> text=Rank 3 submitted last, 900 µs after the last but one")
    page.wait_for_url("**batch=*")
    page.locator("label", has_text="Critical path").click()
    page.wait_for_url("**path=1*")
    page.wait_for_selector("#timeline-graph .ytick >> text=Critical path")
    address = page.url
    page.reload()
    page.wait_for_selector("#timeline-batch >> text=on 4 ranks")
    page.wait_for_selector("#timeline-graph .ytick >> text=Critical path")
    assert page.url == address
    page.click("#timeline-unfollow")
    visit.until("!document.querySelector('#timeline-batch') && !window.location.search.includes('batch=')")
    assert visit.complaints == []


def test_lanes_are_seen_before_plotly_has_come_and_give_way_to_its_drawing(
    visit: Visit, url: str, runs: dict[str, Path]
) -> None:
    page, held = visit.page, list[Any]()
    page.route("**/plotly.min.js*", lambda route: held.append(route))
    page.goto(f"{url}/run/{quote(runs['done'].name)}/timeline?from=0&to=40")
    page.wait_for_selector("#timeline-sketch >> text=Communicate")
    visit.until("document.querySelector('#timeline-sketch img').naturalWidth > 0")
    assert page.locator(SPANS).count() == 0
    sketched = page.locator("#timeline-sketch img").bounding_box()
    assert held
    for one in held:
        one.continue_()
    page.unroute("**/plotly.min.js*")
    page.wait_for_selector(SPANS)
    page.wait_for_selector("#timeline-sketch", state="hidden")
    drawn = page.locator("#timeline-graph .nsewdrag").first.bounding_box()
    assert sketched is not None and drawn is not None
    far = {side: abs(sketched[side] - drawn[side]) for side in ("x", "y", "width", "height")}
    assert far["width"] < 0.01 * drawn["width"] and max(far["x"], far["y"], far["height"]) < 2, (sketched, drawn)
    assert visit.complaints == []


def test_what_a_running_job_adds_is_added_to_the_lanes(
    visit: Visit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_budget, "REDRAW_MS", 10**9)
    recording = Recording(tmp_path)
    change(recording.run, status="running", exit_code=None, ended_unix_ns=None)
    recording.upto(0.5)
    shown = """(() => {
      const plot = document.querySelector("#timeline-graph .js-plotly-plot");
      const bars = plot._fullData.filter((one) => one.type === "bar");
      const ends = bars.flatMap((one) => Array.from(one.base).map((base, at) => base + one.x[at]));
      return { end: Math.max(...ends), range: plot.layout.xaxis.range[1], names: bars.map((one) => one.name) };
    })()"""
    with serving(tmp_path) as address:
        visit.page.goto(f"{address}run/{quote(recording.run.name)}/timeline")
        visit.page.wait_for_selector(SPANS, state="attached")
        before = visit.page.evaluate(shown)
        asked: list[str] = []
        visit.page.on("request", lambda request: asked.append(request.post_data or ""))
        recording.upto(0.6)
        whole = trace.load(recording.run, trace.sources(recording.run)).extent.end_ns / 1e6
        assert before["end"] < 0.9 * whole
        visit.until(f"{shown}.end >= {whole - 1e-6}")
        after = visit.page.evaluate(shown)
        assert after["range"] > whole and after["names"] == before["names"]
        assert not any("timeline-graph.figure" in body for body in asked)
    assert visit.complaints_while_served == []


def test_the_minimap_moves_the_window(visit: Visit, url: str, runs: dict[str, Path]) -> None:
    page = visit.page
    page.goto(f"{url}/run/{quote(runs['done'].name)}/timeline")
    page.wait_for_selector(SPANS)
    page.wait_for_timeout(500)
    box = page.locator("#timeline-map .nsewdrag").first.bounding_box()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.25 * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"], y, steps=5)
    page.mouse.up()
    page.wait_for_url("**from=*")
    whole = page.evaluate(range_of("timeline-map"))
    wanted = [whole[0] + part * (whole[1] - whole[0]) for part in (0.25, 0.5)]
    shown, near = range_of("timeline-graph"), 0.02 * (whole[1] - whole[0])
    visit.until(f"{shown}.every((end, at) => Math.abs(end - {wanted}[at]) < {near})")
    assert visit.complaints == []


def test_a_large_timeline_shows_how_far_it_is_and_then_itself(
    visit: Visit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(trace, "LARGE_BYTES", 1)
    seen, follow = threading.Event(), prepare._follow

    def follow_when_seen(*job: Any) -> None:
        """However fast the machine is, the preparation does not begin before the page has shown it."""
        seen.wait(120)
        follow(*job)

    monkeypatch.setattr(prepare, "_follow", follow_when_seen)
    run = tmp_path / "runs" / "long-20260101-000000"
    merge(generate_long(*schedule_of(20_000, 2)).write(tmp_path / "parts"), layout.timeline_file(run))
    layout.run_file(run).write_text('{"format": 1, "name": "long", "status": "finished", "size": 2}')
    with serving(tmp_path / "runs") as address:
        visit.page.goto(f"{address}run/{run.name}/timeline")
        visit.page.wait_for_selector("text=Preparing the timeline >> visible=true")
        visit.page.wait_for_selector("#timeline-progress")
        seen.set()
        visit.page.wait_for_selector(SPANS, state="attached")
        visit.page.wait_for_selector("#timeline-note >> text=spans in")
        assert visit.page.locator("#timeline-progress").count() == 0
    assert visit.complaints_while_served == []


def test_keys_and_the_wheel_reach_a_hundredth_of_the_run_and_back(
    visit: Visit, url: str, runs: dict[str, Path]
) -> None:
    page = visit.page
    page.goto(f"{url}/run/{quote(runs['done'].name)}/timeline?path=1")
    page.wait_for_selector(SPANS)
    page.wait_for_selector(".rt-legend >> text=late: all others waited for it")
    page.wait_for_load_state("networkidle")
    box, ends = page.locator("#timeline-graph .nsewdrag").first.bounding_box(), range_of("timeline-graph")
    whole = page.evaluate(ends)
    length, middle = whole[1] - whole[0], sum(whole) / 2
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
    for _ in range(12):  # from 11 s to 40 ms
        page.mouse.wheel(0, -100)
    visit.until(f"{ends}[1] - {ends}[0] < {length * 0.04 / 11}")
    visit.until(f"Math.abs({ends}[0] + {ends}[1] - {2 * middle}) < {length / 100}")
    page.wait_for_url("**from=*")
    page.keyboard.press("d")
    visit.until(f"{ends}[0] + {ends}[1] > {2 * middle} + 0.1 * ({ends}[1] - {ends}[0])")
    for key in 14 * "s":
        page.keyboard.press(key)
    visit.until(f"{ends}.every((end, at) => Math.abs(end - {whole}[at]) < {length / 1000})")  # not beyond the run
    for key in "+w":
        page.keyboard.press(key)
    visit.until(f"{ends}[1] - {ends}[0] < {0.5 * length}")
    page.focus("#timeline-search")
    page.keyboard.type("was")  # in a field letters are letters
    assert page.input_value("#timeline-search") == "was"
    visit.until(f"{ends}[1] - {ends}[0] > {0.3 * length}")
    address = "['from', 'to'].map((end) => new URLSearchParams(location.search).get(end))"
    visit.until(f"{address}.every((end, at) => Math.abs(end - {ends}[at]) < {length / 100})")  # the answer is drawn
    page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 60)
    page.keyboard.down("Shift")
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 90, steps=4)
    page.mouse.up()
    page.keyboard.up("Shift")
    chosen = f"{ends}[1] - {ends}[0] < {0.06 * length}"
    visit.until(chosen)
    page.mouse.wheel(0, 1200)  # as many notches as a busy browser makes one event of
    visit.until(f"{ends}[1] - {ends}[0] > {length}")
    page.mouse.wheel(0, -1200)
    visit.until(chosen)
    assert visit.complaints == []


def test_f_zooms_to_the_followed_batch(visit: Visit, url: str, runs: dict[str, Path]) -> None:
    page = visit.page
    page.goto(f"{url}/run/{quote(runs['done'].name)}/timeline?batch=9")
    page.wait_for_selector(SPANS)
    page.wait_for_selector("#timeline-batch >> text=on 4 ranks")
    page.keyboard.press("f")
    page.wait_for_url("**from=*")
    frames = "document.querySelector('#timeline-graph .js-plotly-plot').layout.shapes"
    visit.until(
        f"(([low, high]) => {frames}.every((one) => low < one.x0 && one.x1 < high) && "
        f"high - low < 3 * ({frames}[0].x1 - {frames}[0].x0))({range_of('timeline-graph')})"
    )
    assert visit.complaints == []
