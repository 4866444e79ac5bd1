"""The poll of a page: whether anything that it shows has changed, and what is new. It is frequent, so it is cheap.

Polling has a route of its own: the overhead of a Dash callback costs more than most answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson
from dash import Dash
from dash.development.base_component import Component
from flask import Flask, Response, request

from ringtune.dashboard.context import Context
from ringtune.dashboard.routes import Route

News = Mapping[str, Callable[[Context, Route, dict[str, Any]], dict[str, Any]]]
"""By page: the function that returns what is new, given what the page has drawn."""

ROUTE = "_poll"
MOST_BYTES = 1 << 20
"""Longest request; the state that a page sends takes a few hundred bytes."""


def register(app: Dash, context: Context, news: News) -> None:
    """Answer ``{"path", "known", "drawn"}`` with ``{"stamp", "news"}``, empty if all is known."""
    server = app.server
    assert isinstance(server, Flask)

    def poll() -> Response:
        asked = _asked()
        if asked is None:
            return Response("expected an object with path, known and drawn\n", 400, mimetype="text/plain")
        answer = _answer(context, news, asked)
        if answer is None:
            return Response(status=204)
        said = orjson.dumps(answer, default=_component, option=orjson.OPT_SERIALIZE_NUMPY)
        return Response(said, mimetype="application/json")

    server.add_url_rule(f"{context.prefix}{ROUTE}", ROUTE, poll, methods=["POST"])


def _component(value: Any) -> Any:
    """Return what a component of Dash's is made of."""
    if isinstance(value, Component):
        return value.to_plotly_json()  # type: ignore[no-untyped-call]
    raise TypeError(type(value).__name__)


def _asked() -> dict[str, Any] | None:
    """Return what the browser asks, which may be anything."""
    if (request.content_length or 0) > MOST_BYTES:
        return None
    try:
        asked = orjson.loads(request.get_data(cache=False))
    except orjson.JSONDecodeError:
        return None
    sound = isinstance(asked, dict) and isinstance(asked.get("path"), str)
    return asked if sound else None


def _answer(context: Context, news: News, asked: dict[str, Any]) -> dict[str, Any] | None:
    path, drawn = asked["path"], asked.get("drawn")
    route = context.route(path, "")
    before = drawn if isinstance(drawn, dict) and drawn.get("page") == path else {}
    with context.cpu_budget.poll():
        now = context.stamp(route, before)
        if now == asked.get("known"):
            return None
        came = news[route.page](context, route, before) if route.page in news else {}
        said = {"path": path, "every_ms": context.redraw_interval_ms(route), **came}
    return {"stamp": now, "news": said}
