"""The registry of pages: one line each, from which addresses, navigation and the watching of files follow.

A new page: a line in `PAGES`, a module with ``layout`` and ``register`` in ``pages/``, its line in ``app.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ringtune import layout
from ringtune.dashboard.data.files import listing


@dataclass(frozen=True)
class Page:
    """A page.

    Attributes:
        name: In addresses: ``/run/<id>/<name>`` and ``/<name>``.
        word: In the navigation.
        files: Of a run, what the page shows beside ``run.json``; None: a run has no such page.
        overall: There is one over all runs.
    """

    name: str
    word: str
    files: Callable[[Path], list[Path]] | None = None
    overall: bool = False


def _steps(run: Path) -> list[Path]:
    return [run / layout.MACHINE_FOLDER, run / layout.STACKS_FOLDER, *listing(run, layout.step_logs(run), ".jsonl")]


def _samples(run: Path) -> list[Path]:
    return listing(run, layout.sample_logs(run), ".jsonl")


def _journal(run: Path) -> list[Path]:
    return [layout.tuning_journal(run)]


def _records(run: Path) -> list[Path]:
    return listing(run, layout.scaling_folder(run), ".json")


def _stacks(run: Path) -> list[Path]:
    """What tells a job that hangs: ranks leave stacks."""
    return [run / layout.STACKS_FOLDER]


def _timeline(_run: Path) -> list[Path]:
    """Nothing: `TimelineStore.state` watches timelines, which are read less often than they grow."""
    return []


PAGES: tuple[Page, ...] = (
    Page("runs", "Runs", overall=True),
    Page("compare", "Compare", overall=True),
    Page("overview", "Overview", _steps),
    Page("timeline", "Timeline", _timeline),
    Page("stragglers", "Stragglers", _stacks),
    Page("communication", "Communication", _timeline),
    Page("tuning", "Tuning", _journal),
    Page("what-if", "What if", _steps),
    Page("system", "System", _samples),
    Page("scaling", "Scaling", _records, overall=True),
)
"""All pages, in the order of the navigation."""

TIMELINE_PAGES = ("overview", "timeline", "stragglers", "communication", "what-if")
"""Pages of a run that show its timeline, or analyses of it."""

FOLLOWING_PAGES = ("timeline", "stragglers", "communication")
"""Those of them that follow a running job's timeline at every poll."""

TABS = tuple(page.name for page in PAGES if page.files is not None)
"""Pages of one run."""

OVERALL = tuple(page.name for page in PAGES if page.overall)
"""Pages over all runs."""


def shown_files(page: str, run: Path) -> list[Path]:
    """Return the small files of a run that a page shows."""
    files = next((one.files for one in PAGES if one.name == page), None)
    return [layout.run_file(run), *(files(run) if files else [])]
