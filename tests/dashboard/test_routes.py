from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringtune.dashboard import routes
from ringtune.dashboard.app import MODULES
from ringtune.dashboard.page_registry import PAGES, TABS
from ringtune.dashboard.routes import Route


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
