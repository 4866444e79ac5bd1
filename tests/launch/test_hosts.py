from __future__ import annotations

import socket
from pathlib import Path

import pytest

from ringtune.errors import UsageError
from ringtune.launch.hosts import Host, Slot, assign, is_local, merged, parse_hostfile, parse_hosts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost:2", [Host("localhost", 2)]),
        ("a:2,b:4", [Host("a", 2), Host("b", 4)]),
        ("a, b:3", [Host("a", 1), Host("b", 3)]),
        ("user@node-1.cluster:8", [Host("user@node-1.cluster", 8)]),
        ("[fe80::1]:2,[::1]", [Host("fe80::1", 2), Host("::1", 1)]),
        ("a:2,", [Host("a", 2)]),
        ("me@[fd77::2]:2,[fe80::1%eth0]", [Host("me@fd77::2", 2), Host("fe80::1%eth0", 1)]),
    ],
)
def test_parse_hosts(text: str, expected: list[Host]) -> None:
    assert parse_hosts(text) == expected


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "expected host:slots"),
        (",", "expected host:slots"),
        ("a:0", "slots must be a whole number from 1, got '0'"),
        ("a:-1", "got '-1'"),
        ("a:two", "got 'two'"),
        ("a:", "got ''"),
        ("a b:2", "'a b:2'"),
        ("::1:2", "'::1:2'"),
    ],
)
def test_parse_hosts_refuses(text: str, part: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_hosts(text)
    assert part in str(caught.value)


def test_parse_hostfile(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# cluster\nnode1 slots=4\n\nnode2:2  # half\nnode3\n", encoding="utf-8")
    assert parse_hostfile(file) == [Host("node1", 4), Host("node2", 2), Host("node3", 1)]


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("node1 slots=four\n", "line 1"),
        ("\nnode1 4\n", "line 2: 'node1 4': expected `host slots=N`"),
        ("node1 slots=1 slots=2\n", "line 1"),
        ("# nothing\n", "names no host"),
    ],
)
def test_parse_hostfile_refuses(tmp_path: Path, content: str, part: str) -> None:
    file = tmp_path / "hosts"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        parse_hostfile(file)
    assert part in str(caught.value)


def test_parse_hostfile_absent(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        parse_hostfile(tmp_path / "absent")


def test_assign_fills_hosts_in_order() -> None:
    assert assign([Host("a", 2), Host("b", 2)], 3) == [Slot(0, "a", 0, 2), Slot(1, "a", 1, 2), Slot(2, "b", 0, 1)]


def test_assign_leaves_hosts_out() -> None:
    assert assign([Host("a", 2), Host("b", 2)], 1) == [Slot(0, "a", 0, 1)]


def test_assign_oversubscribes_this_machine_only() -> None:
    assert [slot.local_size for slot in assign([Host("localhost", 1)], 3)] == [3, 3, 3]
    with pytest.raises(UsageError, match=r"only 4 slots \(a:2,b:2\)"):
        assign([Host("a", 2), Host("b", 2)], 5)


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "127.0.0.2", "::1"])
def test_local(name: str) -> None:
    assert is_local(name)


@pytest.mark.parametrize("name", ["192.0.2.1", "user@localhost", "no-such-host.invalid"])
def test_not_local(name: str) -> None:
    assert not is_local(name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost:2,127.0.0.1:1", [Host("localhost", 3)]),
        ("::1,192.0.2.1:2,localhost:4", [Host("::1", 5), Host("192.0.2.1", 2)]),
        ("192.0.2.1:2,192.0.2.2:2,192.0.2.1:2", [Host("192.0.2.1", 4), Host("192.0.2.2", 2)]),
        ("me@192.0.2.1:2,192.0.2.1:2", [Host("me@192.0.2.1", 2), Host("192.0.2.1", 2)]),
        ("blue.invalid,blue.invalid:2,red.invalid", [Host("blue.invalid", 3), Host("red.invalid", 1)]),
    ],
)
def test_a_machine_is_one_host_by_whatever_names(text: str, expected: list[Host]) -> None:
    given = [parse_hosts(f"[{word}]")[0] if word == "::1" else parse_hosts(word)[0] for word in text.split(",")]
    assert merged(given) == expected


def test_names_of_one_address_are_one_host(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = {"node1": "192.0.2.1", "node1-ib": "192.0.2.1", "node2": "192.0.2.2"}
    monkeypatch.setattr(
        "socket.getaddrinfo", lambda host, port, type: [(socket.AF_INET, type, 0, "", (addresses[host], port))]
    )
    hosts = [Host("node1", 1), Host("node2", 2), Host("node1-ib", 3)]
    assert merged(hosts) == [Host("node1", 4), Host("node2", 2)]


def test_a_file_of_one_line_a_slot(tmp_path: Path) -> None:
    """PBS_NODEFILE is one."""
    file = tmp_path / "nodes"
    file.write_text("192.0.2.1\n192.0.2.1\n192.0.2.2\n192.0.2.1\n", encoding="utf-8")
    assert merged(parse_hostfile(file)) == [Host("192.0.2.1", 3), Host("192.0.2.2", 1)]
