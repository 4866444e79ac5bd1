"""Clicks through every page in a real browser: nothing leaves the machine, nothing complains, views come back."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import pytest

from ringtune import layout
from ringtune.dashboard import cpu_budget
from ringtune.dashboard.pictures import serving
from ringtune.timeline.synthetic.generate import Schedule
from tests.dashboard.conftest import Visit, range_of
from tests.dashboard.folders import HOSTILE, change, rename_tensor, training
from tests.timeline.generated_run import generate_run

DRAWN = ".js-plotly-plot .main-svg"


@pytest.mark.slow
def test_a_walk_through_all_pages(visit: Visit, url: str, runs: dict[str, Path]) -> None:
    page = visit.page
    page.goto(url)
    page.click("text=resnet50")
    page.wait_for_selector(f"#overview-steps {DRAWN}")
    page.wait_for_selector("#overview-stats >> text=15.3 ms")
    page.wait_for_selector("#overview-stats >> text=rank 3")
    page.wait_for_selector("#overview-facts >> text=host-a")
    page.click("#tab-timeline")
    page.wait_for_selector("#timeline-graph .bars .point")
    titles = page.evaluate("[...document.querySelectorAll('.modebar-btn')].map((one) => one.dataset.title)")
    assert titles == ["Download plot", "Zoom", "Pan", "Zoom in", "Zoom out", "Reset axes"]
    page.click("#tab-tuning")
    page.wait_for_selector("#tuning-words >> text=A better setting was found")
    page.wait_for_selector("#tuning-grid .ag-row")
    page.click("#tab-scaling")
    page.wait_for_selector("#scaling-table >> text=276 images/s")
    page.click("#nav-scaling")
    page.wait_for_selector(f"#scaling-rate {DRAWN}")
    assert page.url == f"{url}/scaling"
    page.go_back()
    page.wait_for_selector("#tab-scaling.rt-tab-active")
    page.click("#nav-runs")
    page.wait_for_selector("#runs-grid .ag-row")
    assert visit.complaints == []
    assert visit.outside(url) == []
    assert len(visit.requests) > 20


def test_the_table_of_runs_shows_states_sorts_and_searches(visit: Visit, url: str) -> None:
    page = visit.page
    page.goto(url)
    page.wait_for_selector("#runs-grid .ag-row")
    for word in ("ended by SIGKILL", "finished after 2 min 00 s", "live", "model=resnet50"):
        page.wait_for_selector(f"#runs-grid .ag-row >> text={word}")
    page.dblclick("#runs-grid .ag-row [col-id=steps]:has-text('60')")
    visit.until("window.getSelection().toString().trim() === '60'")
    page.click('.ag-header-cell[col-id="ranks"]')
    page.click('.ag-header-cell[col-id="ranks"]')
    visit.until("document.querySelector('.ag-row[row-index=\"0\"] [col-id=ranks]').innerText === '4'")
    page.fill("#runs-search", "crash")
    visit.until("document.querySelectorAll('#runs-grid .ag-row').length === 1")
    page.wait_for_url("**?q=crash")
    page.reload()
    visit.until("document.querySelectorAll('#runs-grid .ag-row').length === 1")
    page.fill("#runs-search", "")
    page.click("#runs-group")
    page.click("[role=option]:has-text('model')")
    page.wait_for_selector("#runs-groups >> text=resnet50")
    page.wait_for_url("**?group=model")
    visit.until("document.querySelector('.ag-row[row-index=\"0\"] [col-id=group]').innerText === 'resnet50'")
    for head in ("group", "created"):  # sorted by both, no head is broken inside its one word
        text = f"document.querySelector('.ag-header-cell[col-id={head}] .ag-header-cell-text')"
        visit.until(
            f"{text}.offsetHeight > 0 && {text}.offsetHeight < 1.9 * parseFloat(getComputedStyle({text}).fontSize)"
        )
    assert visit.complaints == []


_RANGE = range_of("timeline-graph")


def _range(visit: Visit) -> list[float]:
    found: list[float] = visit.page.evaluate(_RANGE)
    return found


@pytest.mark.slow
def test_the_timeline_zooms_jumps_searches_and_its_address_restores_it(
    visit: Visit, url: str, runs: dict[str, Path]
) -> None:
    page = visit.page
    page.goto(f"{url}/run/{quote(runs['done'].name)}/timeline")
    page.wait_for_selector("#timeline-graph .bars .point")
    page.wait_for_selector("#timeline-note >> text=drawn as")
    whole = _range(visit)
    box = page.locator("#timeline-graph .nsewdrag").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
    for _ in range(50):
        page.mouse.wheel(0, -240)
        page.wait_for_timeout(25)
    page.wait_for_url("**from=*")
    visit.until("!document.querySelector('#timeline-note').innerText.includes('drawn as')")
    near = _range(visit)
    assert near[1] - near[0] < (whole[1] - whole[0]) / 10
    page.fill("#timeline-step", "7")
    page.wait_for_selector("#timeline-graph >> text=step 7")
    page.fill("#timeline-search", "layer2.0.conv1.weight")
    page.wait_for_selector("#timeline-note >> text=The search finds")
    page.wait_for_url("**q=layer2.0.conv1.weight*")
    searched = page.url
    page.click("#timeline-next")
    page.wait_for_url(lambda now: now != searched)
    address = page.url
    shown = [float(parse_qs(urlsplit(address).query)[end][0]) for end in ("from", "to")]
    visit.until(f"{_RANGE}.every((end, at) => Math.abs(end - {shown}[at]) < 0.002)")
    before = _range(visit)
    page.reload()
    page.wait_for_selector("#timeline-note >> text=The search finds")
    page.wait_for_selector("#timeline-graph .bars .point")
    assert _range(visit) == pytest.approx(before, rel=1e-3)
    assert page.url == address
    page.fill("#timeline-step", "999")
    page.wait_for_selector("#timeline-note >> text=Step 999 is not in the timeline; steps 0 to 59 are recorded.")
    page.click("#timeline-fit")
    visit.until("!window.location.search.includes('from=')")
    assert visit.complaints == []
    assert visit.outside(url) == []


def test_the_hover_shows_a_span(visit: Visit, url: str, runs: dict[str, Path]) -> None:
    page = visit.page
    page.goto(f"{url}/run/{quote(runs['failed'].name)}/timeline")
    bar = page.locator("#timeline-graph .bars .point path").first
    bar.wait_for()
    box = bar.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector("#timeline-graph .hoverlayer >> text=rank 0")
    assert visit.complaints == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/run/nothing", "This run is not here"),
        ("/nowhere/at/all", "There is no such page"),
        ("/run/just-started", "No steps yet"),
        ("/run/just-started/timeline", "No timeline was recorded"),
        ("/run/just-started/tuning", "This run was not tuned"),
        ("/run/just-started/scaling", "This run holds no scaling record"),
    ],
)
def test_empty_pages_say_what_to_do(visit: Visit, url: str, path: str, text: str) -> None:
    visit.page.goto(url + path)
    visit.page.wait_for_selector(f"text={text} >> visible=true")
    visit.page.wait_for_timeout(300)
    assert visit.page.locator(".js-plotly-plot >> visible=true").count() == 0
    missing = text in ("This run is not here", "There is no such page")
    # The browser itself complains of a 404, once.
    assert [one for one in visit.complaints if "404" not in one] == [] and len(visit.complaints) == missing


def test_an_empty_folder_says_how_to_start(visit: Visit, tmp_path: Path) -> None:
    with serving(tmp_path) as address:
        visit.page.goto(address)
        visit.page.wait_for_selector("text=No runs yet >> visible=true")
        visit.page.wait_for_selector("text=ringtune run -np 2 >> visible=true")
        visit.page.click("#nav-scaling")
        visit.page.wait_for_selector("text=No scaling measured yet >> visible=true")
    assert visit.complaints == []


def test_a_failed_run_shows_how_it_ended(visit: Visit, url: str, runs: dict[str, Path]) -> None:
    visit.page.goto(f"{url}/run/{quote(runs['failed'].name)}")
    visit.page.wait_for_selector("text=This run ended by SIGKILL after 1 min 40 s")
    visit.page.wait_for_selector("text=PeerLost: rank 0 is gone")
    assert visit.complaints == []


def test_a_running_job_is_followed_without_reloading(
    visit: Visit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_budget, "REDRAW_MS", 10**9)  # no figure is drawn a second time
    run = generate_run(tmp_path, "growing", Schedule(ranks=2, steps=3), tuning=False)
    change(run, status="running", exit_code=None, ended_unix_ns=None)
    with serving(tmp_path) as address:
        page = visit.page
        page.goto(f"{address}run/{quote(run.name)}")
        page.wait_for_selector("#run-status >> text=live")
        page.wait_for_selector("#overview-stats >> text=on 2 ranks")
        page.wait_for_load_state("networkidle")
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.post_data or ""))
        for rank in (0, 1):
            log = layout.step_log(run, rank)
            last = json.loads(log.read_text().splitlines()[-1])
            with log.open("a") as stream:
                for step in range(3, 50):
                    length = last["end_ns"] - last["begin_ns"]
                    last = {**last, "step": step, "begin_ns": last["end_ns"], "end_ns": last["end_ns"] + length}
                    stream.write(json.dumps(last) + "\n")
        visit.until("document.querySelector('#overview-stats .rt-stat-value').innerText === '50'")
        # The numbers come with the poll that notices the new lines.
        assert any('"known":' in body for body in asked)
        assert not any("overview-stats.children" in body for body in asked)
        # And so do new points of the lines: the median of the new steps at the last of them.
        ends = "document.querySelector('#overview-steps .js-plotly-plot')._fullData.map((one) => [...one.x].pop())"
        visit.until(f"JSON.stringify({ends}) === '[49,49]'")
        assert not any("overview-steps.figure" in body for body in asked)
        change(run, status="failed", exit_code=1)
        page.wait_for_selector("#run-status >> text=failed")
        page.wait_for_selector("text=This run failed with exit code 1")
    assert visit.complaints_while_served == []


def test_light_and_dark_are_remembered(visit: Visit, url: str, runs: dict[str, Path]) -> None:
    page = visit.page
    page.emulate_media(color_scheme="light")
    page.goto(f"{url}/run/{quote(runs['done'].name)}")
    page.wait_for_selector("html[data-mantine-color-scheme=light]")
    page.click("#scheme-toggle")
    page.wait_for_selector("html[data-mantine-color-scheme=dark]")
    visit.until("document.querySelector('#overview-steps .js-plotly-plot')?._fullLayout?.font.color === '#d7dae0'")
    page.reload()
    page.wait_for_selector("html[data-mantine-color-scheme=dark]")
    page.wait_for_selector(f"#overview-steps {DRAWN}")
    page.click("#scheme-toggle")
    page.wait_for_selector("html[data-mantine-color-scheme=light]")
    assert visit.complaints == []


@pytest.mark.slow
def test_hostile_runs_are_texts_and_clear_messages(visit: Visit, tmp_path: Path) -> None:
    run = training(tmp_path, ranks=2, steps=4)
    change(run, name=HOSTILE, labels={HOSTILE: HOSTILE}, hosts=[HOSTILE], command=[HOSTILE], config={HOSTILE: HOSTILE})
    rename_tensor(layout.timeline_part(run, 0), "layer1.0.conv1.weight", HOSTILE.replace('"', ""))
    scaling = layout.scaling_file(run, "resnet")
    scaling.write_text(scaling.read_text().replace("resnet50", HOSTILE))
    for name, content in (("broken", "{"), ("x" * 200, '{"name":"' + "y" * 100_000 + '"}'), ("ünï <b>", "[]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / layout.RUN_FILE).write_text(content)
    pipe = tmp_path / "pipe"
    pipe.mkdir()
    os.mkfifo(pipe / layout.RUN_FILE)
    dialogs: list[str] = []
    page = visit.page
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    with serving(tmp_path) as address:
        page.goto(address)
        page.wait_for_selector("#runs-grid .ag-row")
        page.wait_for_selector("#runs-grid >> text=run.json is not valid JSON")
        page.locator(".rt-link", has_text=re.compile("^<img")).click()
        page.wait_for_selector(f"#overview-steps {DRAWN}")
        for tab in ("timeline", "tuning", "scaling"):
            page.click(f"#tab-{tab}")
            page.wait_for_selector(f"#{tab}-charts {DRAWN}")
            page.wait_for_timeout(300)
        page.goto(f"{address}run/broken")
        page.wait_for_selector("text=run.json is not valid JSON >> visible=true")
        page.wait_for_timeout(300)
        assert page.locator("img").count() == 0
        assert visit.outside(address) == []
    assert dialogs == []
    assert visit.complaints_while_served == []
