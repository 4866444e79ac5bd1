"""Addresses: every view has one that restores it, and a run's name in it can be any text."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, unquote, urlencode

from ringtune.dashboard.page_registry import OVERALL, TABS


@dataclass(frozen=True)
class Route:
    """A page and what it shows.

    Attributes:
        page: One of `OVERALL`, one of `TABS` with a run, or ``unknown``.
        run: The run's id (its path below the served folder), empty where there is none.
        query: The rest of the view, for example the timeline's window.
    """

    page: str
    run: str = ""
    query: dict[str, str] = field(default_factory=dict)

    def number(self, name: str) -> float | None:
        """Return a number of the query; None when it is missing or not a finite number."""
        try:
            value = float(self.query[name])
        except (KeyError, ValueError):
            return None
        return value if abs(value) < 1e18 else None

    def list(self, name: str) -> list[str]:
        """Return a comma-separated list of the query; parts are unquoted once more, so they may hold commas."""
        return [unquote(part) for part in self.query.get(name, "").split(",") if part]


def parse(pathname: str | None, search: str | None, prefix: str = "/") -> Route:
    """Return the route of an address as the browser writes it (still percent-encoded)."""
    path = pathname or "/"
    if prefix != "/" and path.startswith(prefix):
        path = path[len(prefix) :]
    parts = [unquote(part) for part in path.split("/") if part]
    query = dict(parse_qsl((search or "").lstrip("?"), max_num_fields=50)) if search and search.count("&") < 50 else {}
    if not parts:
        return Route("runs", query=query)
    if len(parts) == 1 and parts[0] in OVERALL:
        return Route(parts[0], query=query)
    if parts[0] == "run" and len(parts) == 2:
        return Route("overview", parts[1], query)
    if parts[0] == "run" and len(parts) == 3 and parts[2] in TABS:
        return Route(parts[2], parts[1], query)
    return Route("unknown", query=query)


def href(route: Route, prefix: str = "/") -> str:
    """Return the address of a route; the inverse of `parse`."""
    if route.page == "runs":
        path = ""
    elif route.run:
        path = f"run/{quote(route.run, safe='')}" + ("" if route.page == "overview" else f"/{route.page}")
    else:
        path = route.page
    query = f"?{urlencode(route.query)}" if route.query else ""
    return f"{prefix}{path}{query}"
