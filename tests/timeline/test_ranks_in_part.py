"""Ranks that were there for a part of a job only (killed, late, torn) crash no command: it answers or says why not."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from ringtune import layout
from ringtune.dashboard.report import write_report
from ringtune.errors import RingtuneError
from ringtune.timeline.cli import timeline
from ringtune.timeline.synthetic.generate import GeneratedJob
from tests.timeline.planted import MS, job
from tests.timeline.planted_jobs import write_run
from tests.timeline.scenario import simulate

COMMANDS = ("summary", "stragglers", "critical-path", "efficiency", "doctor")


@st.composite
def jobs(draw: st.DrawFn) -> tuple[GeneratedJob, dict[int, int], dict[int, float]]:
    """A job with late ranks and pauses, the step in which each rank joined, and which share of each part is left."""
    ranks, steps = draw(st.integers(2, 4)), draw(st.integers(2, 30))
    a_rank, a_step = st.integers(0, ranks - 1), st.integers(0, steps - 1)
    late = {place: 60 * MS for place in draw(st.lists(st.tuples(a_rank, a_step), max_size=8))}
    paused = {(rank, step): 400 * MS for step in draw(st.lists(a_step, max_size=3)) for rank in range(ranks)}
    more: dict[str, Any] = {"scheduled": draw(st.booleans()), "hosts": tuple("ab"[rank % 2] for rank in range(ranks))}
    made, _ = simulate(job(ranks, steps, 12, late | paused, **more))
    return made, draw(st.dictionaries(a_rank, a_step)), draw(st.dictionaries(a_rank, st.floats(0, 1)))


@settings(deadline=None, max_examples=20)
@given(jobs())
def test_no_command_crashes(drawn: tuple[GeneratedJob, dict[int, int], dict[int, float]]) -> None:
    made, joined, left = drawn
    spans = {rank: table.take(table.step >= joined.get(rank, 0)) for rank, table in made.spans.items()}
    with tempfile.TemporaryDirectory() as temporary:
        run = write_run(Path(temporary) / "run", replace(made, spans=spans))
        for rank, share in left.items():
            part = layout.timeline_part(run, rank)
            part.write_bytes(part.read_bytes()[: int(share * part.stat().st_size)])
        for command in COMMANDS:
            done = CliRunner().invoke(timeline, [command, str(run)])
            assert done.exit_code == 0 or isinstance(done.exception, RingtuneError), (command, done.exc_info)
        write_report(run, Path(temporary) / "report.html")
