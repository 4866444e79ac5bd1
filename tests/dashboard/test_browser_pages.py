"""Clicks through what if, compare and the choice of runs in a real browser."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

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


def test_what_if_without_a_timeline_says_how_to_get_one(visit: Visit, url: str) -> None:
    visit.page.goto(f"{url}/run/just-started/what-if")
    visit.page.wait_for_selector("text=A prediction needs a timeline >> visible=true")
    visit.page.wait_for_timeout(300)
    assert visit.complaints == []
