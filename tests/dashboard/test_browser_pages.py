"""Clicks through what if, compare and the choice of runs in a real browser."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest

from ringtune.dashboard.page_registry import TABS
from tests.dashboard.conftest import Visit


def test_what_if_answers_while_a_dial_is_turned_and_its_address_restores_it(
    visit: Visit, url: str, runs: dict[str, Path]
) -> None:
    page = visit.page
    page.goto(f"{url}/run/{quote(runs['done'].name)}/what-if?ranks=64&wire=bf16")
    page.wait_for_selector("#whatif-ranks-text >> text=64")
    page.wait_for_selector("#whatif-stats >> text=Efficiency")
    before = page.locator("#whatif-stats").inner_text()
    page.focus("#whatif-ranks [role=slider]")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#whatif-ranks-text >> text=128")
    page.wait_for_url("**ranks=128&wire=bf16")
    after = page.locator("#whatif-stats").inner_text()
    assert after != before
    page.reload()
    page.wait_for_selector("#whatif-ranks-text >> text=128")
    page.wait_for_selector("#whatif-advice >> text=perfect overlap")
    assert page.locator("#whatif-stats").inner_text() == after
    page.click("#whatif-reset")
    page.wait_for_selector("#whatif-ranks-text >> text=4, as it ran")
    visit.until("window.location.search === ''")
    assert visit.complaints == []
    assert visit.outside(url) == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, pytest.param(1280, marks=pytest.mark.long)])
def test_every_page_fits_and_has_its_title(width: int, visit: Visit, url: str, runs: dict[str, Path]) -> None:
    page = visit.page
    page.set_viewport_size({"width": width, "height": 844})
    run = f"/run/{quote(runs['done'].name)}"
    titles = set()
    for path in ("/", "/compare", "/scaling", run, *(f"{run}/{tab}" for tab in TABS if tab != "overview")):
        page.goto(url + path)
        page.wait_for_selector("#page > *")
        visit.until("document.title !== 'ringtune'")
        page.wait_for_timeout(500)  # figures and tables are drawn after the page has come
        # A figure may be wide for the moment before it takes the size of its place.
        visit.until(f"document.documentElement.scrollWidth <= {width}")
        header = page.locator("#scheme-toggle").bounding_box()
        assert header is not None and header["y"] + header["height"] <= 54, path
        titles.add(page.title())
    assert len(titles) == 3 + len(TABS)
    assert visit.complaints == []


_BOXES = """[...document.querySelectorAll('#tuning-parallel .annotation-text')].map(one => {
    const box = one.getBoundingClientRect();
    return [box.left, box.top, box.right, box.bottom];
})"""


@pytest.mark.slow
def test_texts_of_all_settings_do_not_touch_on_a_phone(visit: Visit, url: str, runs: dict[str, Path]) -> None:
    page = visit.page
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{url}/run/{quote(runs['done'].name)}/tuning")
    page.wait_for_selector("#tuning-parallel .annotation-text >> text=Step time", state="attached")
    visit.until("document.querySelector('#tuning-parallel .main-svg').clientWidth >= 600")
    boxes = page.evaluate(_BOXES)
    assert len(boxes) >= 12
    touching = [
        (one, other)
        for at, one in enumerate(boxes)
        for other in boxes[:at]
        if one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
    ]
    assert not touching
    visit.until("document.documentElement.scrollWidth <= 390")


def test_what_if_without_a_timeline_says_how_to_get_one(visit: Visit, url: str) -> None:
    visit.page.goto(f"{url}/run/just-started/what-if")
    visit.page.wait_for_selector("text=A prediction needs a timeline >> visible=true")
    visit.page.wait_for_timeout(300)
    assert visit.complaints == []


def test_marked_runs_are_compared_and_the_address_restores_it(visit: Visit, url: str, runs: dict[str, Path]) -> None:
    page = visit.page
    page.goto(url)
    page.wait_for_selector("#runs-compare >> text=Mark two runs")
    for name in ("digits-crash", "resnet50"):
        page.locator(".ag-row", has_text=name).locator("input[type=checkbox]").check()
    page.click("#runs-compare >> text=Compare 2 runs")
    page.wait_for_url(f"**/compare?a={runs['failed'].name}&b={runs['done'].name}")
    page.wait_for_selector("#compare-stats >> text=Step of A, mean")
    page.wait_for_selector("#compare-table >> text=computing, rank 0")
    page.wait_for_selector("#compare-still-b .bars .point")
    page.wait_for_selector("#compare-settings >> text=Ranks")
    page.click("#compare-swap")
    page.wait_for_url(f"**/compare?a={runs['done'].name}&b={runs['failed'].name}")
    page.reload()
    page.wait_for_selector("#compare-head-a >> text=A: resnet50, step 30")
    page.click("#compare-head-a a")
    page.wait_for_url("**/timeline?from=*")
    page.wait_for_selector("#timeline-graph .bars .point")
    assert visit.complaints == []
    assert visit.outside(url) == []


def test_compare_without_runs_says_what_to_do(visit: Visit, url: str, runs: dict[str, Path]) -> None:
    page = visit.page
    page.goto(f"{url}/compare?a=nothing&b=%3Cb%3E")
    page.wait_for_selector("text=Choose two runs >> visible=true")
    page.click("#compare-a")
    page.locator("[role=option]", has_text="resnet50").first.click()
    page.click("#compare-b")
    page.locator("[role=option]:visible", has_text="digits-crash").first.click()
    page.wait_for_selector("#compare-table >> text=computing, rank 0")
    plot = page.locator("#compare-spread .main-svg").first.bounding_box()
    assert plot["width"] > 600 and plot["height"] > 250
    assert visit.complaints == []


def test_scaling_predicts_beyond_what_was_measured(visit: Visit, url: str, runs: dict[str, Path]) -> None:
    page = visit.page
    page.goto(f"{url}/run/{quote(runs['failed'].name)}/scaling")
    page.wait_for_selector("#scaling-rate >> text=predicted")
    page.wait_for_selector("#scaling-factors >> text=Waiting for others")
    page.wait_for_selector("#scaling-table >> text=batches/s")
    page.click("#scaling-kind >> text=Strong scaling")
    page.wait_for_selector("#scaling-table >> text=steps/s")
    page.wait_for_url("**/scaling?scaling=strong")
    page.click("#scaling-predict")
    page.wait_for_url("**/scaling?scaling=strong&predict=0")
    visit.until("!document.querySelector('#scaling-rate').innerText.includes('predicted')")
    page.reload()
    page.wait_for_selector("#scaling-table >> text=steps/s")
    assert "predicted" not in page.locator("#scaling-rate").inner_text()
    assert visit.complaints == []
