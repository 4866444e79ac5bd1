"""Addresses of this host that others can use."""

from __future__ import annotations

import socket
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from ringtune.bootstrap import interfaces
from ringtune.bootstrap.interfaces import LOCAL, any_address, outward_address
from ringtune.bootstrap.rendezvous import _own_address
from ringtune.launch.environment import address_towards

NAMES = {"blue": "127.0.1.1", "red": "10.0.0.7", "192.0.2.1": "10.0.0.1"}


@pytest.fixture
def debian(monkeypatch: pytest.MonkeyPatch) -> None:
    """Host blue, whose own name leads to its loopback interface; towards others it has 10.0.0.1."""

    def route(host: str) -> str | None:
        return None if host not in NAMES else "10.0.0.1" if host != "blue" else "127.0.0.1"

    monkeypatch.setattr(interfaces, "address_towards", route)
    monkeypatch.setattr("ringtune.bootstrap.rendezvous.address_towards", route)
    monkeypatch.setattr(socket, "gethostname", lambda: "blue")


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("blue", "10.0.0.1"),
        ("red", None),
        ("localhost", None),
        ("127.0.0.1", None),
        ("::1", None),
        (LOCAL, None),
        ("", None),
    ],
)
def test_a_name_that_leads_home_gets_an_address_for_others(name: str, address: str | None, debian: None) -> None:
    assert outward_address(name) == address


def test_a_name_that_leads_nowhere_is_ours_only_if_it_is_our_own(debian: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NAMES, "green", "10.0.0.9")
    monkeypatch.setattr(socket, "gethostname", lambda: "white")
    assert outward_address("white") == "10.0.0.1" and outward_address("yellow") is None


def test_ranks_and_launcher_tell_others_that_address(debian: None) -> None:
    assert _own_address("blue") == address_towards("blue") == address_towards("me@blue") == "10.0.0.1"
    assert address_towards("red") == "10.0.0.1" and address_towards("yellow") == "blue"


def test_without_a_route_an_interface_serves(debian: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(NAMES, "192.0.2.1")

    def found(family: int, address: str) -> Any:
        return SimpleNamespace(family=family, address=address)

    cards = {
        "lo": [found(socket.AF_INET, "127.0.0.1")],
        "eth0": [found(socket.AF_INET6, "fe80::2%eth0"), found(socket.AF_INET6, "fd00::2")],
        "eth1": [found(socket.AF_INET6, "fd00::3"), found(socket.AF_INET, "10.0.0.5")],
    }
    monkeypatch.setitem(sys.modules, "psutil", SimpleNamespace(net_if_addrs=lambda: cards))
    assert outward_address("blue") == "fd00::2"
    assert interfaces.address_of("eth0") == "fd00::2" and interfaces.address_of("eth1,eth0") == "10.0.0.5"


def test_servers_listen_for_both_protocols_where_there_are_both() -> None:
    with socket.socket(socket.AF_INET6 if ":" in any_address() else socket.AF_INET) as server:
        if ":" in any_address():
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        server.bind((any_address(), 0))
        server.listen(1)
        socket.create_connection(("127.0.0.1", server.getsockname()[1]), 10).close()
