"""Every command and page says the right thing first of every planted job."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringtune.dashboard.data.analysis import analyse
from ringtune.dashboard.data.timeline import trace
from ringtune.dashboard.pages.stragglers_verdict import opening_words, sentences
from ringtune.timeline.inputs import load
from tests import pages
from tests.timeline.planted_jobs import JOBS, Planted, brief, opening

CASES = [
    pytest.param(job, id=job.name, marks=[pytest.mark.slow] if job.plan and job.plan.ranks > 100 else [])
    for job in JOBS
]


@pytest.mark.parametrize("job", CASES)
def test_commands_and_pages_say_what_was_planted(job: Planted, tmp_path: Path) -> None:
    sources = job.sources(tmp_path / "job")
    said = {command: opening(command, *sources) for command in ("summary", "critical-path", "efficiency", "doctor")}
    late = opening("stragglers", *sources)
    if sources[0].is_dir():
        found = analyse(*trace.read_all(sources[0], trace.sources(sources[0])))
    else:
        found = analyse(load(sources))
    said["Overview"] = opening_words(found, None)
    expected = dict.fromkeys(said, job.failed or job.says) | {"Overview": job.says}
    assert {what: text for what, text in said.items() if expected[what].lower() not in text.lower()} == {}
    page = sentences(found)[0]
    wanted = job.late or job.says
    assert (job.failed or wanted).lower() in late.lower() and wanted.lower() in page.lower()
    if job.diff:
        assert job.diff in opening("diff", job.healthy(tmp_path / "healthy"), sources[0])

    row = f"| {job.plant} | {brief(said['doctor'])} |"
    assert row in (pages.ROOT / "timeline" / "README.md").read_text(encoding="utf-8").splitlines()


def test_the_table_has_no_other_rows() -> None:
    text = (pages.ROOT / "timeline" / "README.md").read_text(encoding="utf-8")
    rows = text.split("| planted | said first |\n|---|---|\n")[1].split("\n\n")[0].splitlines()
    assert [row.split(" | ")[0] for row in rows] == [f"| {job.plant}" for job in JOBS]
