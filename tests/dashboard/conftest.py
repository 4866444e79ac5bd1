"""Fixtures: folders of runs, a served dashboard, and a browser that notices every request and complaint."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ringtune.dashboard.data.live import timeline as live_timeline
from ringtune.dashboard.pictures import CHROMIUM_ARGUMENTS, HEIGHT, WIDTH, serving
from tests.dashboard.folders import Recording, gallery


def range_of(graph: str) -> str:
    """Return the expression that is the range of a figure's time axis, in milliseconds."""
    return f"document.querySelector('#{graph} .js-plotly-plot')._fullLayout.xaxis.range"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Report failures of browser tests in Python's own style.

    pytest's style parses the sources again, which Python 3.11 refuses at times among Playwright's greenlets
    ("AST constructor recursion depth mismatch") and which then ends the whole session.
    """
    style = item.config.option.tbstyle
    if "visit" in getattr(item, "fixturenames", ()):
        item.config.option.tbstyle = "native"
    try:
        report = yield
    finally:
        item.config.option.tbstyle = style
    seen = getattr(item, "funcargs", {}).get("visit")
    if report.failed and isinstance(seen, Visit):
        report.sections.append(("browser", seen.described()))
    return report


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs of every status; tests must not change them."""
    return gallery(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def root(runs: dict[str, Path]) -> Path:
    return runs["done"].parent


@pytest.fixture(scope="session")
def url(root: Path) -> Iterator[str]:
    """Address of a dashboard over `runs`, without its last slash."""
    with serving(root) as address:
        yield address.rstrip("/")


@pytest.fixture
def every_look_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Followed timelines read anew whenever they are asked."""
    monkeypatch.setattr(live_timeline, "_SAME_LOOK_S", 0)


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    """A run that is still being recorded."""
    return Recording(tmp_path)


@dataclass
class Visit:
    """A page of the browser with what it asked for and complained about."""

    page: Any
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    unanswered: dict[int, str] = field(default_factory=dict)
    cut_off: int = 0

    def complained(self, text: str) -> None:
        """Note a complaint.

        The browser drops its connections when this machine's network changes, as it does where other tests make hosts:
        such a request, and the callback that asked for it, are no fault of the page.
        """
        if "ERR_NETWORK_CHANGED" in text:
            self.cut_off += 1
        elif self.cut_off and "the server did not respond" in text:
            self.cut_off -= 1
        else:
            self.complaints.append(text)

    def described(self) -> str:
        """Return what somebody who was not there needs to know of a failure."""
        try:
            text = self.page.locator("body").inner_text(timeout=10_000)
        except Exception as error:  # a report of a failure must not fail
            text = f"(cannot be read: {error})"
        lists = [f"complaints: {self.complaints}", f"unanswered: {list(self.unanswered.values())}"]
        return "\n".join([f"address: {self.page.url}", *lists, "text:", text[:3000]])

    @property
    def complaints_while_served(self) -> list[str]:
        """Complaints but those of polls that no server answers any more, because the test has ended it."""
        return [one for one in self.complaints if "ERR_CONNECTION_REFUSED" not in one]

    def until(self, expression: str, seconds: float = 120) -> None:
        """Wait until an expression is true in the page; Playwright's own way needs eval, which the page forbids."""
        self.until_true(lambda: bool(self.page.evaluate(expression)), expression, seconds)

    def until_true(self, condition: Callable[[], bool], what: object, seconds: float = 120) -> None:
        """Wait until a condition holds, while the browser goes on; ``what`` is named when it does not come true."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"still not true: {what}"
            self.page.wait_for_timeout(50)

    def until_after(self, gesture: Callable[[], None], selector: str) -> None:
        """Repeat a gesture with the mouse until it shows what it should: a slow page may be drawn anew beneath it."""
        for _ in range(20):
            gesture()
            shown = time.monotonic() + 6
            while time.monotonic() < shown:
                if self.page.locator(selector).count():
                    return
                self.page.wait_for_timeout(50)
        raise AssertionError(f"never shown: {selector}")

    def outside(self, home: str) -> list[str]:
        """Requests that left for anywhere but home."""
        return [one for one in self.requests if not one.startswith((home, "data:", "blob:", "about:"))]


@pytest.fixture(scope="session")
def browser(require_tool: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A headless Chromium; without one tests are skipped, and with CI=true they fail."""
    program = require_tool("browser")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            str(tmp_path_factory.mktemp("profile")),
            executable_path=program,
            args=list(CHROMIUM_ARGUMENTS),
            headless=True,
            viewport={"width": WIDTH, "height": HEIGHT},
        )
        context.set_default_timeout(120_000)
        yield context
        context.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Visit]:
    """A fresh page; requests and complaints are collected."""
    page = browser.new_page()
    seen = Visit(page)

    def asked(request: Any) -> None:
        seen.requests.append(request.url)
        seen.unanswered[id(request)] = request.url

    page.on("request", asked)
    for ended in ("requestfinished", "requestfailed"):
        page.on(ended, lambda request: seen.unanswered.pop(id(request), None))
    page.on("console", lambda message: seen.complained(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    yield seen
    page.close()
