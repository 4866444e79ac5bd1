"""Every control of every page by keyboard alone: reached by Tab, seen when reached, and used."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest

from tests.dashboard.conftest import Visit

pytestmark = pytest.mark.slow

PAGES = {
    "": "#runs-grid .ag-row",
    "compare": "#compare-swap",
    "scaling": "#scaling-rate .js-plotly-plot .main-svg",
    "run/{run}": "#overview-facts >> text=host-a",
    "run/{run}/timeline": "#timeline-graph .bars .point",
    "run/{run}/stragglers": "#stragglers-grid .ag-row",
    "run/{run}/communication": "#communication-waits >> text=Waiting for rank 3",
    "run/{run}/tuning": "#tuning-grid .ag-row",
    "run/{run}/what-if": "#whatif-step .legendtoggle",
    "run/{run}/system": "#system-stats >> text=Watched for",
    "run/{run}/scaling": "#scaling-table >> text=276 images/s",
}
"""Pages, and what is there when they are drawn."""

LISTEN = """() => {
  // By its place in the page: a figure that is drawn again has new elements for the same controls.
  window.placeOf = (one) => one && one.parentElement
    ? window.placeOf(one.parentElement) + ">" + [...one.parentElement.children].indexOf(one) : "";
  window.reached = new Set();
  window.unseen = new Set();
  document.addEventListener("focusin", ({ target }) => {
    window.reached.add(window.placeOf(target));
    const rings = [target, target.nextElementSibling].filter(Boolean).map((one) => getComputedStyle(one));
    if (!rings.some((one) => one.outlineStyle === "solid" && parseFloat(one.outlineWidth) >= 2)) {
      window.unseen.add(target.outerHTML.slice(0, 160));
    }
  });
}"""

MISSED = """() => {
  const drawn = (one) => one.getBoundingClientRect().width && getComputedStyle(one).visibility !== "hidden";
  // Parts of one control: arrows beside a field (arrow keys), crosses in it (Backspace), a group of radio buttons.
  const part = (one) =>
    one.closest(".mantine-Input-section, .mantine-NumberInput-controls, .mantine-Pill-root") ||
    (one.type === "radio" && !one.checked) || one.type === "hidden" || one.disabled;
  const reached = (one) => window.reached.has(window.placeOf(one));
  const within = (one) => one.closest(".ag-cell");
  const controls = "a[href], button, input, select, textarea, [role=button], [role=slider], [role=application], " +
    ".ag-header-cell-sortable, .ag-cell .rt-link, .ag-cell.rt-link";
  return [...document.querySelectorAll(controls)]
    .filter((one) => drawn(one) && !part(one) && ![one, within(one)].some((own) => own && reached(own)))
    .map((one) => one.outerHTML.slice(0, 160));
}"""


def _tab_through(visit: Visit, most: int = 500) -> None:
    """Press Tab until the first control has the focus again."""
    brand = "document.activeElement.classList.contains('rt-brand')"
    visit.page.keyboard.press("Tab")
    for _ in range(most):
        visit.page.keyboard.press("Tab")
        if visit.page.evaluate(brand):
            return
    where = visit.page.evaluate("document.activeElement.outerHTML.slice(0, 160)")
    raise AssertionError(f"after {most} times Tab the focus is still at {where}")


@pytest.mark.parametrize("place", PAGES)
def test_everything_that_can_be_used_is_reached_by_tab_and_shows_it(
    visit: Visit, url: str, runs: dict[str, Path], place: str
) -> None:
    page = visit.page
    page.goto(f"{url}/{place.format(run=quote(runs['done'].name))}")
    page.wait_for_selector(PAGES[place])
    # A page is drawn again when its first poll is answered: what has the focus then loses it.
    page.wait_for_load_state("networkidle")
    visit.until("!document.querySelector('.legendtoggle:not([tabindex])')")
    page.evaluate(LISTEN)
    _tab_through(visit)
    assert page.evaluate(MISSED) == []
    assert page.evaluate("[...window.unseen]") == []


def test_a_cell_of_the_map_is_chosen_by_arrows_and_enter_leads_to_the_timeline(
    visit: Visit, url: str, runs: dict[str, Path]
) -> None:
    page = visit.page
    page.goto(f"{url}/run/{quote(runs['done'].name)}/stragglers?from=10&to=29")
    plot = page.locator("#stragglers-map .js-plotly-plot[role=application]")
    visit.until("document.querySelector('#stragglers-map .js-plotly-plot')?._fullLayout?.xaxis.range[0] > 9")
    plot.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowDown", "ArrowDown", "ArrowLeft"):
        page.keyboard.press(key)
    page.wait_for_selector("#stragglers-map .hoverlayer >> text=rank 3 · step 10")
    page.keyboard.press("Enter")
    page.wait_for_url("**/timeline?from=*")
    page.wait_for_selector("#timeline-graph >> text=step 10")
    page.wait_for_selector("#timeline-graph .js-plotly-plot[role=application]").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_selector("#timeline-unfollow")
    page.wait_for_url("**batch=*")
    assert visit.complaints == []


def test_a_version_of_the_knobs_and_a_run_are_opened_by_enter(visit: Visit, url: str, runs: dict[str, Path]) -> None:
    page = visit.page
    page.goto(f"{url}/run/{quote(runs['done'].name)}/tuning")
    page.locator("#tuning-grid .ag-header-cell[col-id=trial]").wait_for()
    page.locator("#tuning-grid .ag-row[row-index='0'] .ag-cell[col-id=knobs_version]").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/timeline?from=*")
    page.goto(url)
    page.locator("#runs-grid .ag-cell[col-id=name]:has-text('resnet50')").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#overview-stats >> text=on 4 ranks")
    page.wait_for_selector("#overview-breakdown .legendtoggle[tabindex]").focus()
    visible = "document.querySelector('#overview-breakdown .js-plotly-plot')._fullData[0].visible"
    page.keyboard.press("Enter")
    visit.until(f"{visible} === 'legendonly'")
    page.keyboard.press(" ")
    visit.until(f"{visible} === true")
    assert visit.complaints == []
