"""Every command and page says the right thing first of every planted job."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringtune.dashboard.data.analysis import analyse
from ringtune.dashboard.data.timeline import trace
from ringtune.dashboard.pages.stragglers_verdict import opening_words, sentences
from ringtune.timeline.inputs import load
from tests.timeline.planted_jobs import JOBS, Planted, opening


@pytest.mark.parametrize("job", JOBS, ids=[job.name for job in JOBS])
def test_commands_and_pages_say_what_was_planted(job: Planted, tmp_path: Path) -> None:
    sources = job.sources(tmp_path / "job")
    said = {command: opening(command, *sources) for command in ("summary", "critical-path", "efficiency", "doctor")}
    late = opening("stragglers", *sources)
    if sources[0].is_dir():
        found = analyse(*trace.read_all(sources[0], trace.sources(sources[0])))
    else:
        found = analyse(load(sources))
    said["Overview"] = opening_words(found, None)
    expected = dict.fromkeys(said, job.says) | ({"doctor": job.doctor} if job.doctor else {})
    assert {what: text for what, text in said.items() if expected[what].lower() not in text.lower()} == {}
    page = sentences(found)[0]
    wanted = (job.late or job.says).lower()
    assert wanted in late.lower() and wanted in page.lower()
    if job.diff:
        assert job.diff in opening("diff", job.healthy(tmp_path / "healthy"), sources[0])
