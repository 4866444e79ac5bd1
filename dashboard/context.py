"""What every page gets: the served folder, its address, and what is kept of runs between requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ringtune import layout
from ringtune.dashboard import page_registry, routes
from ringtune.dashboard.cpu_budget import CpuBudget
from ringtune.dashboard.data.files import signature
from ringtune.dashboard.data.runs import RunInfo, RunsFolder, UnknownRun
from ringtune.dashboard.routes import Route
from ringtune.dashboard.stores.live import LiveStore
from ringtune.dashboard.stores.runs import RunStore
from ringtune.dashboard.stores.timelines import TimelineStore


class Context:
    """Answers what concerns a page as a whole. Safe to use from several threads.

    Attributes:
        folder: The runs.
        prefix: Path under which the app is served, with a slash at both ends.
        cpu_budget: The CPU budget of pages of running jobs.
        live, runs, timelines: What is kept of running jobs, of logs and records, and of timelines.
    """

    def __init__(self, folder: RunsFolder, prefix: str = "/") -> None:
        self.folder = folder
        self.prefix = prefix
        self.cpu_budget = CpuBudget()
        self.live = LiveStore()
        self.runs = RunStore(self.live)
        self.timelines = TimelineStore(self.live, self.runs)

    def route(self, pathname: str | None, search: str | None) -> Route:
        """Return the route of an address."""
        return routes.parse(pathname, search, self.prefix)

    def run(self, route: Route) -> RunInfo | None:
        """Return the route's run, None when there is none of that name (any more)."""
        known = self.cpu_budget.known
        if known is not None and route.run in known:
            return known[route.run]
        try:
            found = self.folder.find(route.run)
        except UnknownRun:
            found = None
        if known is not None:
            known[route.run] = found
        return found

    def stamp(self, route: Route, drawn: Mapping[str, Any] | None = None) -> str:
        """Return what changes when something that the route's page shows is written: a few `stat` calls.

        Of a run, what stands before the colon changes with its status and ``run.json`` alone.

        Args:
            route: The page.
            drawn: The page's description of what it has drawn.
        """
        if not route.run:
            compared = [self.run(Route("overview", one)) for one in _ids(drawn)] if route.page == "compare" else []
            known = [run for run in compared if run is not None]
            logs = [path for run in known for path in page_registry.shown_files("overview", run.path)]
            return str(hash(signature(logs) if known else self.folder.stamp()))
        run = self.run(route)
        if run is None:
            return "gone"
        path = run.path
        shown: tuple[object, ...] = ()
        if route.page in page_registry.TIMELINE_PAGES:
            shown = self.timelines.state(run, followed=route.page in page_registry.FOLLOWING_PAGES)
        files = signature(page_registry.shown_files(route.page, path))
        return f"{run.status} {hash(signature([layout.run_file(path)]))}:{hash((files, shown))}"

    def redraw_interval_ms(self, route: Route) -> int:
        """Return the milliseconds until a page redraws its figures."""
        return self.cpu_budget.redraw_interval_ms(route, self.run(route) if route.run else None)


def _ids(drawn: Mapping[str, Any] | None) -> list[str]:
    """Return the runs that a page says it compares; from the browser, which may send anything."""
    ids = (drawn or {}).get("ids")
    return [one for one in ids[:8] if isinstance(one, str)] if isinstance(ids, list) else []
