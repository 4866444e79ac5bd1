from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringtune.dashboard import routes
from ringtune.dashboard.app import MODULES, create_app, title_of
from ringtune.dashboard.context import Context
from ringtune.dashboard.data.runs import RunInfo, RunsFolder
from ringtune.dashboard.page_registry import PAGES, TABS
from ringtune.dashboard.routes import Route
from ringtune.timeline.synthetic.generate import Schedule
from tests.timeline.generated_run import generate_run


@given(st.text(min_size=1, max_size=40).filter(lambda name: max(name) < "\ud800"), st.sampled_from(TABS))
def test_an_address_leads_back_to_its_route(run: str, tab: str) -> None:
    route = Route(tab, run, {"q": "a b&c", "from": "1.5"})
    path, _, search = routes.href(route).partition("?")
    assert routes.parse(path, "?" + search) == route


@pytest.mark.parametrize("prefix", ["/", "/tools/ringtune/"])
def test_addresses_carry_the_prefix(prefix: str) -> None:
    address = routes.href(Route("timeline", "demo/train"), prefix)
    assert address == f"{prefix}run/demo%2Ftrain/timeline"
    assert routes.parse(address, "", prefix) == Route("timeline", "demo/train")


@pytest.mark.parametrize("path", ["/nowhere", "/run", "/run/a/b/c", "/run/a/nothing", "/scaling/x"])
def test_other_addresses_are_unknown(path: str) -> None:
    assert routes.parse(path, "").page == "unknown"


def test_numbers_of_a_query_are_finite_or_nothing() -> None:
    query = routes.parse("/", "?a=1.5&b=nan&c=x&d=1e999").number
    assert (query("a"), query("b"), query("c"), query("d"), query("e")) == (1.5, None, None, None, None)


def test_a_query_with_too_many_fields_is_ignored() -> None:
    assert routes.parse("/", "?" + "a=1&" * 1000) == Route("runs")


def test_every_registered_page_has_its_module() -> None:
    assert list(MODULES) == [page.name for page in PAGES]


def only_run(root: Path) -> RunInfo:
    folder = RunsFolder(root)
    (run_id,) = folder.paths()
    return folder.find(run_id)


@pytest.mark.parametrize("prefix", ["/", "/tools/ringtune/"])
def test_what_is_not_there_is_answered_with_404(prefix: str, tmp_path: Path) -> None:
    generate_run(tmp_path / "group", "one", Schedule(ranks=2, steps=2))
    run = only_run(tmp_path)
    client = create_app(tmp_path, prefix).server.test_client()

    def status(address: str) -> int:
        path = address.partition("?")[0]
        return int(client.get(address, environ_overrides={"REQUEST_URI": path}).status_code)

    for route in (Route("runs"), Route("compare"), Route("overview", run.id), Route("timeline", run.id)):
        assert status(routes.href(route, prefix)) == 200, route
    for address in ("nowhere", "run/other", f"run/{run.id}x/timeline", "run/a/nothing"):
        assert status(prefix + address) == 404, address
    assert status(f"{prefix}_dash-layout") == 200


def test_every_page_has_a_title_of_its_own(tmp_path: Path) -> None:
    generate_run(tmp_path, "one", Schedule(ranks=2, steps=2))
    context = Context(RunsFolder(tmp_path))
    run = only_run(tmp_path)
    titles = [title_of(context, Route(tab, run.id)) for tab in TABS]
    assert len(set(titles)) == len(TABS) and all(run.name in title for title in titles)
    assert title_of(context, Route("runs")) == "Runs - ringtune"
    assert title_of(context, Route("timeline", "gone")) == "No such run - ringtune"
    assert title_of(context, Route("unknown")) == "No such page - ringtune"
