"""The pages over a run's timeline and tuning in a real browser: clicks lead on, addresses restore."""

from __future__ import annotations

import csv
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from ringtune import layout
from ringtune.dashboard.pictures import serving
from ringtune.dashboard.server import ServeOptions, Server
from tests.dashboard.conftest import Visit
from tests.dashboard.folders import HOSTILE, change, rename_tensor, sampled, training, tuned

pytestmark = pytest.mark.slow

MAP = "#stragglers-map .js-plotly-plot"


def _cell(visit: Visit, step: float, row: str) -> tuple[float, float]:
    """Where a cell of the map is on the screen, once plotly has fitted its first drawing to the page's width."""
    plot = f"document.querySelector('{MAP}')"
    visit.until(f"Math.abs({plot}._fullLayout.width - {plot}.clientWidth) < 1")
    found: list[float] = visit.page.evaluate(
        """([step, row]) => {
          const plot = document.querySelector("#stragglers-map .js-plotly-plot"), layout = plot._fullLayout;
          const box = plot.querySelector(".nsewdrag").getBoundingClientRect();
          return [box.x + layout.xaxis.d2p(step), box.y + layout.yaxis.d2p(row)];
        }""",
        [step, row],
    )
    return found[0], found[1]


def _open_cell(visit: Visit, step: int, rank: int) -> None:
    """Click a cell of the map once the page says beneath the pointer that it is the one, until the timeline opens."""
    row = f"rank {rank}"

    def point() -> None:
        visit.page.mouse.move(*_cell(visit, step, row))

    def click() -> None:
        # A map that is drawn anew between press and release takes no click; one that led away is there no more.
        if "/timeline?" not in visit.page.url:
            visit.until_after(point, f"#stragglers-map .hoverlayer >> text={row} · step {step}")
            visit.page.mouse.click(*_cell(visit, step, row))

    visit.until_after(click, "#timeline-graph")


def test_a_cell_of_the_map_leads_to_the_timeline_and_the_address_restores_the_view(
    visit: Visit, url: str, runs: dict[str, Path]
) -> None:
    page = visit.page
    page.goto(f"{url}/run/{quote(runs['done'].name)}/stragglers?cause=compute&from=10&to=29")
    page.wait_for_selector("#stragglers-words >> text=Rank 3 makes the others wait")
    page.wait_for_selector("#stragglers-grid .ag-row")
    page.wait_for_selector("#stragglers-note >> text=Steps 10 to 29 of 59")
    page.click("#stragglers-cause >> text=network")
    page.wait_for_url("**cause=network&from=10&to=29")
    page.click("#stragglers-all")
    page.wait_for_selector("#stragglers-note >> text=/^Steps 0 to 59$/")
    visit.until(f"document.querySelector('{MAP}')._fullLayout.xaxis.range[1] > 59")
    left, right = _cell(visit, 30, "rank 1"), _cell(visit, 45, "rank 1")
    page.mouse.move(*left)
    page.mouse.down()
    page.mouse.move(*right, steps=5)
    page.mouse.up()
    page.wait_for_selector("#stragglers-note >> text=/Steps 3[01] to 4[45] of 59/")
    page.wait_for_url("**from=3*&to=4*")
    _open_cell(visit, 40, 3)
    page.wait_for_url("**/timeline?from=*")
    page.wait_for_selector("#timeline-graph >> text=step 40")
    page.go_back()
    page.wait_for_selector("#tab-stragglers.rt-tab-active")
    page.wait_for_selector("#stragglers-tables >> text=Worst steps")
    assert visit.complaints == []
    assert visit.outside(url) == []


def test_communication_shows_its_figures_and_the_link_is_in_the_address(
    visit: Visit, url: str, runs: dict[str, Path]
) -> None:
    page = visit.page
    page.goto(f"{url}/run/{quote(runs['done'].name)}/communication?link=100Gbit/s")
    for name in ("exposed", "phases", "bandwidth", "fill", "waits"):
        page.wait_for_selector(f"#communication-{name} .js-plotly-plot .main-svg")
    page.wait_for_selector("#communication-bandwidth >> text=link, 100Gbit/s")
    page.wait_for_selector("#communication-waits >> text=Waiting for rank 3")
    page.fill("#communication-link", "fast")
    page.wait_for_selector("text=expected for example 12.5GB/s")
    page.wait_for_url("**link=fast")
    assert visit.complaints == []
    assert visit.outside(url) == []


def _saved(visit: Visit, figure: str, word: str, folder: Path) -> bytes:
    """What the menu of a figure saves."""
    visit.page.locator(f".rt-figure:has(#{figure}) .rt-save button").click()
    with visit.page.expect_download() as waiting:
        visit.page.locator(f"[role=menuitem]:has-text('{word}') >> visible=true").click()
    path = folder / waiting.value.suggested_filename
    waiting.value.save_as(path)
    assert path.stem.startswith("ringtune-") and path.stem.endswith(figure)
    return path.read_bytes()


def test_a_figure_is_saved_as_picture_drawing_and_data_in_the_browser(
    visit: Visit, url: str, runs: dict[str, Path], tmp_path: Path
) -> None:
    page = visit.page
    page.goto(f"{url}/run/{quote(runs['done'].name)}/tuning")
    page.wait_for_selector("#tuning-trials .js-plotly-plot .main-svg")
    page.wait_for_selector("#tuning-grid .ag-row")
    assert _saved(visit, "tuning-trials", "PNG", tmp_path).startswith(b"\x89PNG")
    assert b"<svg" in _saved(visit, "tuning-trials", "SVG", tmp_path)[:200]
    text = _saved(visit, "tuning-trials", "CSV", tmp_path).decode("utf-8-sig")
    head, *lines = list(csv.reader(text.splitlines()))
    assert head[:3] == ["series", "Trial", "Step time (ms)"] and {"low", "high", "note"} <= set(head)
    default = next(line for line in lines if line[0] == "default")
    assert float(default[head.index("low")]) < float(default[2]) < float(default[head.index("high")])
    page.click("#tab-stragglers")
    page.wait_for_selector("#stragglers-grid .ag-row")
    cells = _saved(visit, "stragglers-map", "CSV", tmp_path).decode("utf-8-sig").splitlines()
    assert len(cells) == 1 + 4 * 60 and cells[-1].startswith("Lateness,59,rank 3,900,")
    assert visit.complaints == []
    assert visit.outside(url) == []


def test_texts_in_saved_data_are_no_formulas(visit: Visit, url: str) -> None:
    visit.page.goto(url)
    visit.until("window.ringtuneExport !== undefined")
    plot = """{
      _fullLayout: {xaxis: {title: {text: "A <b>b</b>"}}, yaxis: {title: {text: "Click"}}, _dfltTitle: {y: "Click"}},
      _fullData: [{visible: true, type: "scatter", name: "=1+1", x: [-1, 2.5], y: ["-3", NaN],
                   hovertext: ["a,&lt;b&gt;", "x<br>y"]}],
    }"""
    found = visit.page.evaluate(f"window.ringtuneExport.csv({plot})")
    assert found == "series,A b,y,note\r\n'=1+1,-1,-3,\"a,<b>\"\r\n'=1+1,2.5,,x; y\r\n"


def test_bars_that_float_are_saved_by_where_they_begin_and_their_length(
    visit: Visit, url: str, runs: dict[str, Path], tmp_path: Path
) -> None:
    page = visit.page
    page.goto(f"{url}/run/{quote(runs['done'].name)}/timeline")
    page.wait_for_selector("#timeline-graph .bars .point", state="attached")
    text = _saved(visit, "timeline-graph", "CSV", tmp_path).decode("utf-8-sig")
    head, *lines = list(csv.reader(text.splitlines()))
    assert head == ["series", "Time since the job's first event (ms)", "y", "length (ms)", "note"]
    found = [(line, at) for line in lines if (at := re.search(r"; (\S+) ms, from (\S+) to", line[4]))]
    assert found
    for line, at in found:
        assert float(line[1]) == pytest.approx(float(at[2].replace(",", "")), abs=1e-3)
        assert float(line[3]) == pytest.approx(float(at[1]), rel=0.01)
    page.click("#tab-stragglers")
    page.wait_for_selector("#stragglers-grid .ag-row")
    cells = _saved(visit, "stragglers-map", "CSV", tmp_path).decode("utf-8-sig").splitlines()
    assert cells[0] == "series,Step,label,Lateness (µs a step),note"


def test_tuning_shows_what_was_learned_and_a_version_leads_to_the_timeline(
    visit: Visit, url: str, runs: dict[str, Path]
) -> None:
    page = visit.page
    page.goto(f"{url}/run/{quote(runs['done'].name)}/tuning")
    for name in ("trials", "plane", "lost", "importance", "parallel"):
        page.wait_for_selector(f"#tuning-{name} .js-plotly-plot .main-svg")
    page.wait_for_selector("#tuning-importance >> text=Fusion buffer")
    page.wait_for_selector("#tuning-plane .contourlayer path")
    page.click("#tuning-grid .ag-row[row-index='9'] [col-id=knobs_version]")
    page.wait_for_selector("#tuning-missed >> text=No step under version 10 is in the timeline")
    page.click("#tuning-grid .ag-row[row-index='1'] [col-id=knobs_version]")
    page.wait_for_url("**/timeline?from=*")
    page.wait_for_selector("#timeline-graph .bars .point", state="attached")
    assert visit.complaints == []
    assert visit.outside(url) == []


def test_system_shows_ranks_and_machines(visit: Visit, url: str, runs: dict[str, Path]) -> None:
    page = visit.page
    page.goto(f"{url}/run/{quote(runs['done'].name)}/system")
    for name in ("cpu", "memory", "busy", "used", "network"):
        page.wait_for_selector(f"#system-{name} .js-plotly-plot .main-svg")
    page.wait_for_selector("#system-stats >> text=19.0 s")
    assert not page.locator("#system-gpu-card").is_visible()
    assert visit.complaints == []
    assert visit.outside(url) == []


@pytest.mark.parametrize(
    ("tab", "text"),
    [
        ("stragglers", "No timeline was recorded"),
        ("communication", "No timeline was recorded"),
        ("system", "No samples of this run"),
    ],
)
def test_pages_of_a_bare_run_say_what_to_do(visit: Visit, url: str, tab: str, text: str) -> None:
    visit.page.goto(f"{url}/run/just-started/{tab}")
    visit.page.wait_for_selector(f"text={text} >> visible=true")
    assert visit.page.locator(".js-plotly-plot >> visible=true").count() == 0
    assert visit.complaints == []


def test_hostile_names_and_broken_files_stay_texts_on_every_page(visit: Visit, tmp_path: Path) -> None:
    name = HOSTILE.replace('"', "")
    run = training(tmp_path, ranks=2, steps=4, job=name, hosts=(name, name + "2"))
    tuned(run)
    sampled(run)
    change(run, name=HOSTILE, hosts=[name, name + "2"])
    for rank in (0, 1):
        rename_tensor(layout.timeline_part(run, rank), "layer1.0.conv1.weight", name)
    with layout.sample_log(run, 0).open("a") as stream:
        stream.write("{\n[]\n" + '{"at_ns": 1e400, "gpus": "x"}\n')
    (tmp_path / "outside.jsonl").write_text(layout.sample_log(run, 1).read_text())
    layout.sample_log(run, 1).unlink()
    layout.sample_log(run, 1).symlink_to(tmp_path / "outside.jsonl")
    journal = layout.tuning_journal(run)
    journal.write_text(journal.read_text().replace('"sampler"', json.dumps(HOSTILE)))
    dialogs: list[str] = []
    visit.page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    with serving(tmp_path) as address:
        visit.page.goto(f"{address}run/{run.name}")
        for tab in ("stragglers", "communication", "tuning", "system"):
            visit.page.click(f"#tab-{tab}")
            visit.page.wait_for_selector(f"#{tab}-charts .js-plotly-plot .main-svg")
        visit.page.wait_for_selector("text=rank-00001.jsonl is a link out of the run's folder")
        assert visit.page.locator("img").count() == 0
        assert visit.outside(address) == []
    assert dialogs == []
    assert visit.complaints_while_served == []


@pytest.fixture
def guarded(visit: Visit, root: Path) -> Iterator[str]:
    """Address, with its token, of a dashboard that is served under a path."""
    server = Server(ServeOptions(root, port=0, token="a-long-enough-token", prefix="/tools/rt/"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    yield server.url
    visit.page.goto("about:blank")
    server.close()
    thread.join(5)


def test_under_a_sub_path_and_with_a_token_a_cell_leads_to_the_timeline(visit: Visit, guarded: str) -> None:
    page = visit.page
    page.goto(guarded)
    page.click("text=resnet50")
    page.click("#tab-stragglers")
    page.wait_for_selector("#stragglers-grid .ag-row")
    page.wait_for_selector("#stragglers-map .hm image")
    _open_cell(visit, 40, 3)
    page.wait_for_url("**/tools/rt/run/*/timeline?from=*")
    page.wait_for_selector("#timeline-graph >> text=step 40")
    assert "token" not in page.url
    assert visit.complaints == []
    assert visit.outside(guarded.split("?")[0].removesuffix("/tools/rt/")) == []
