from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from ringtune import layout
from ringtune.dashboard import cli
from ringtune.dashboard.data.runs import read_run
from ringtune.dashboard.report import sections, write_report
from ringtune.errors import RingtuneError, UsageError
from tests.dashboard.conftest import Visit
from tests.dashboard.folders import HOSTILE, change, training


@pytest.mark.slow
def test_the_report_opens_from_a_file_without_any_request(visit: Visit, runs: dict[str, Path], tmp_path: Path) -> None:
    output = tmp_path / "report.html"
    result = CliRunner().invoke(cli.report, [str(runs["done"]), "-o", str(output)])
    assert result.exit_code == 0, result.output
    home = output.as_uri()
    visit.page.goto(home)
    visit.page.wait_for_selector("#figure-21 .main-svg")
    assert visit.page.locator(".figure:has(.main-svg)").count() == 22
    assert [section.inner_text() for section in visit.page.locator("h2").all()] == [
        "Summary", "Steps", "Timeline", "Stragglers", "Communication", "Tuning", "System", "Scaling",
        "Machines", "Settings",
    ]  # fmt: skip
    over = visit.page.locator("h3:has(+ .figure)")
    assert over.count() == 22 and len({title.inner_text() for title in over.all()}) == 22
    assert "60 steps of 15.3 ms" in visit.page.locator("section").first.inner_text()
    assert visit.page.locator('[data-title*="Share"]').count() == 0
    assert (
        "lost to rank 3 always (in 60 of 60 steps), by compute"
        in visit.page.locator("section:has(#figure-4)").inner_text()
    )
    begins = {"Save as PNG": b"\x89PNG", "Save as SVG": b"<svg", "Save the data as CSV": b"\xef\xbb\xbfseries,Step,"}
    for word, begin in begins.items():
        with visit.page.expect_download() as saved:
            visit.page.locator(f"#figure-0 [data-title='{word}']").click()
        kind = word.split()[-1].lower()
        assert saved.value.suggested_filename == f"ringtune-figure-0.{kind}"
        saved.value.save_as(tmp_path / kind)
        assert (tmp_path / kind).read_bytes().startswith(begin)
    assert visit.outside(home) == []
    assert visit.complaints == []


def test_plotly_is_in_the_report_once(runs: dict[str, Path], tmp_path: Path) -> None:
    size = write_report(runs["done"], tmp_path / "r.html")
    content = (tmp_path / "r.html").read_text()
    assert content.count("plotly.js v") == 1
    assert size < 7_000_000
    assert 'src="http' not in content and "cdn.plot.ly/plotly" not in content


def test_a_report_of_a_bare_run_says_what_is_missing(runs: dict[str, Path]) -> None:
    found = sections(read_run("x", runs["empty"]))
    assert [section.title for section in found] == ["Summary", "Settings"]
    assert found[0].words == ("just-started is still running.", "No steps were recorded.")


def test_numbers_and_figures_of_a_report_say_what_they_are(runs: dict[str, Path]) -> None:
    found = {section.title: section for section in sections(read_run("x", runs["done"]))}
    assert list(found["Steps"].figures) == ["Step time", "Where a step goes", "Communication by phase"]
    assert next(iter(found["Communication"].figures)) == "Exposed and overlapped"
    [system] = found["System"].words
    assert system.startswith("Watched for: ") and " (4 ranks on 1 machine); CPU of a rank: " in system


@pytest.mark.slow
def test_hostile_texts_stay_texts(visit: Visit, tmp_path: Path) -> None:
    run = training(tmp_path, ranks=1, steps=3)
    change(
        run, name=HOSTILE, command=[HOSTILE], labels={HOSTILE: HOSTILE}, config={"@@plotly@@": "</script>" + HOSTILE}
    )
    scaling = layout.scaling_file(run, "resnet")
    scaling.write_text(scaling.read_text().replace("resnet50", HOSTILE.replace('"', "")))
    output = tmp_path / "report.html"
    write_report(run, output)
    dialogs = []
    visit.page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    visit.page.goto(output.as_uri())
    visit.page.wait_for_selector("#figure-0 .main-svg")
    assert visit.page.locator("h1").inner_text().startswith("<img src=x")
    assert visit.page.locator("img").count() == 0
    assert dialogs == [] and visit.complaints == []
    assert visit.outside(output.as_uri()) == []


def test_no_run_is_a_clear_message(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such run folder"):
        write_report(tmp_path / "nowhere", tmp_path / "r.html")
    with pytest.raises(UsageError, match="not a run folder"):
        write_report(tmp_path, tmp_path / "r.html")


def test_a_report_that_cannot_be_written_leaves_nothing(runs: dict[str, Path], tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.touch()
    with pytest.raises(RingtuneError, match="cannot be written"):
        write_report(runs["empty"], occupied / "r.html")
    assert list(tmp_path.iterdir()) == [occupied]
