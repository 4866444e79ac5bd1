"""``ringtune timeline doctor``."""

from __future__ import annotations

from pathlib import Path

import click

from ringtune.errors import RingtuneError
from ringtune.timeline.commands import Found, analysis, load_counted, named_run, show, sources
from ringtune.timeline.doctor.diagnosis import diagnose
from ringtune.timeline.doctor.failure import failure
from ringtune.timeline.doctor.page import WIDTH, doctor_view
from ringtune.timeline.runs.run import Run


@click.command("doctor")
@sources
@analysis
@click.pass_context
def doctor_command(
    context: click.Context, source: tuple[Path, ...], as_json: bool, steps: str | None, all_steps: bool
) -> None:
    """Print the whole story of a run on one page.

    What to do first; health of the recording; start-up and steps; where the time goes; who is late, why, and what it
    costs; what tuning or another network would give. Of a run that failed or hangs: which rank is at fault, its last
    lines, and of every rank its last collective and where in Python it stood. Takes what the other analyses take.
    """
    run = named_run(source)
    what = _read(source, run, steps, all_steps)
    failed = what.failure if what is not None else failure(run, None) if run is not None else None
    found = diagnose(what, run, failed, context.obj)
    show(found.to_json, lambda: doctor_view(found), as_json, widest=WIDTH)


def _read(source: tuple[Path, ...], run: Run | None, steps: str | None, all_steps: bool) -> Found | None:
    """Load the trace; None for a run that left none, of which step logs or its end tell something all the same."""
    try:
        return load_counted(source, steps, all_steps)
    except RingtuneError:
        if (
            run is None
            or run.timeline is not None
            or run.parts
            or not (run.steps or run.stacks or run.status == "failed")
        ):
            raise
        return None
