"""Pages of a running job: what comes is put onto what is drawn, at a poll, and nothing is drawn a second time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from ringtune import layout
from ringtune.dashboard import cpu_budget
from ringtune.dashboard.pictures import serving
from ringtune.timeline.synthetic.generate import Schedule
from tests.dashboard.conftest import Visit
from tests.dashboard.folders import Recording, change, sampled
from tests.timeline.generated_run import tuning_lines

pytestmark = pytest.mark.slow


def text(where: str) -> str:
    return f"(document.querySelector('{where}')?.innerText || '')"


def columns(graph: str, trace: int = 0) -> str:
    return f"[...(document.querySelector('#{graph} .js-plotly-plot')?._fullData[{trace}]?.x || [])]"


@pytest.fixture
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recording:
    """A job that goes on, of whose pages no figure is drawn a second time."""
    monkeypatch.setattr(cpu_budget, "REDRAW_MS", 10**9)
    found = Recording(tmp_path / "runs")
    change(found.run, status="running", exit_code=None, ended_unix_ns=None)
    found.upto(0.5)
    return found


def test_stragglers_and_communication_follow_step_by_step(visit: Visit, recording: Recording) -> None:
    page, run = visit.page, recording.run
    with serving(run.parent) as address:
        page.goto(f"{address}run/{quote(run.name)}/stragglers")
        page.wait_for_selector("#stragglers-map .hm", state="attached")
        newest, said = f"{columns('stragglers-map')}.pop()", text("#stragglers-age")
        before = page.evaluate(newest)
        visit.until(f"{said}.includes('the page covers its steps 0 to {before}')")
        recording.upto(0.6)
        visit.until(f"{newest} > {before}")
        now = page.evaluate(newest)
        visit.until(f"{said}.includes('its steps 0 to {now}; the tests and tables below are of those up to')")
        assert "rank 1" in page.evaluate("document.querySelector('#stragglers-map').innerText")

        page.click("#tab-communication")
        page.wait_for_selector("#communication-exposed .bars .point", state="attached")
        said = text("#communication-age")
        visit.until(f"{said}.includes('its steps 0 to {now}')")
        bars = columns("communication-phases")
        drawn = page.evaluate(bars)
        recording.upto(0.9)
        visit.until(f"Number({said}.match(/steps 0 to ([0-9]+)/)[1]) > {now}")
        assert len(page.evaluate(bars)) == len(drawn) and all(page.evaluate(bars))
    assert visit.complaints_while_served == []


def last_row(log: Path) -> dict[str, Any]:
    """The last line of a log."""
    found: dict[str, Any] = json.loads(log.read_text().splitlines()[-1])
    return found


def say_again(log: Path, **changes: int) -> None:
    """Add the last line of a log once more, with other values."""
    row = {**last_row(log), **changes}
    with log.open("a") as stream:
        stream.write(json.dumps(row) + "\n")


def test_system_and_what_if_follow_and_what_if_says_of_when_it_is(visit: Visit, recording: Recording) -> None:
    page, run = visit.page, recording.run
    sampled(run, seconds=5)
    with serving(run.parent) as address:
        page.goto(f"{address}run/{quote(run.name)}/system")
        page.wait_for_selector("#system-cpu .scatterlayer .trace", state="attached")
        visit.until(f"{columns('system-cpu')}.length === 5")
        for rank in (0, 1):
            log = layout.sample_log(run, rank)
            last = last_row(log)
            say_again(log, **{name: last[name] + 10**9 for name in ("at_ns", "unix_ns")})
        visit.until(f"{columns('system-cpu')}.length === 6 && {columns('system-busy')}.length === 6")
        visit.until(f"{text('#system-stats .rt-stat-value')} === '5.00 s'")

        page.click("#tab-what-if")
        page.wait_for_selector("#whatif-efficiency .scatterlayer .trace", state="attached")
        said = text("#whatif-age")
        visit.until(f"/The job is running: step 39, .* The model is of the newest steps of [0-9]+ s ago/.test({said})")
        for rank in (0, 1):
            say_again(layout.step_log(run, rank), step=40)
        visit.until(f"{said}.includes('step 40,')")
    assert visit.complaints_while_served == []


def test_trials_come_one_by_one_and_two_runs_are_compared_while_one_goes_on(visit: Visit, recording: Recording) -> None:
    page, run = visit.page, recording.run
    journal = layout.tuning_journal(run)
    lines = tuning_lines(Schedule(ranks=2, steps=40))
    trials = [line for line in lines if line["event"] == "trial"]
    first = [line for line in lines if line["event"] in ("start", "trial")][:4]
    journal.parent.mkdir(exist_ok=True)
    journal.write_text("".join(json.dumps(line) + "\n" for line in first))
    with serving(run.parent) as address:
        page.goto(f"{address}run/{quote(run.name)}/tuning")
        page.wait_for_selector("#tuning-trials .scatterlayer .trace", state="attached")
        page.wait_for_selector("#tuning-grid .ag-row")
        known = page.locator("#tuning-grid .ag-center-cols-container .ag-row").count()
        again = {**trials[1], "trial": 17, "source": trials[1]["source"]}
        with journal.open("a") as stream:
            stream.write(json.dumps(again) + "\n")
        names = "document.querySelector('#tuning-trials .js-plotly-plot')._fullData"
        visit.until(f"{names}.some((one) => [...one.x].includes(17))")
        rows = "document.querySelectorAll('#tuning-grid .ag-center-cols-container .ag-row').length"
        visit.until(f"{rows} === {known + 1}")
        visit.until(f"{text('#tuning-age')}.startsWith('{known + 1} trials so far.')")

        page.goto(f"{address}compare?a={quote(run.name)}&b={quote(recording.done.name)}")
        page.wait_for_selector("#compare-spread .scatterlayer .trace", state="attached")
        visit.until(f"{text('#compare-age')}.startsWith('A is running: step 39,')")
        for rank in (0, 1):
            say_again(layout.step_log(run, rank), step=40)
        visit.until(f"{text('#compare-age')}.startsWith('A is running: step 40,')")
    assert visit.complaints_while_served == []
