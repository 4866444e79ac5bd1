"""The pages over a run's timeline and tuning in a real browser: clicks lead on, addresses restore."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from tests.dashboard.conftest import Visit

MAP = "#stragglers-map .js-plotly-plot"


def _cell(visit: Visit, step: float, row: str) -> tuple[float, float]:
    """Where a cell of the map is on the screen."""
    found: list[float] = visit.page.evaluate(
        """([step, row]) => {
          const plot = document.querySelector("#stragglers-map .js-plotly-plot"), layout = plot._fullLayout;
          const box = plot.querySelector(".nsewdrag").getBoundingClientRect();
          return [box.x + layout.xaxis.d2p(step), box.y + layout.yaxis.d2p(row)];
        }""",
        [step, row],
    )
    return found[0], found[1]


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
    page.mouse.move(*_cell(visit, 40, "rank 3"))
    page.wait_for_selector("#stragglers-map .hoverlayer >> text=rank 3 · step 40")
    page.mouse.click(*_cell(visit, 40, "rank 3"))
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
