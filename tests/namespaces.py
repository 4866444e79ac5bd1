"""Hosts made of network namespaces on one bridge: what crosses them crosses a network."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.conftest import find_tool, missing
from tests.leftovers import NETWORK_TAG, WORKER

# No name is used twice in a process: the kernel takes the links of a deleted namespace away some time after.
_calls = itertools.count()
_RANDOM = random.SystemRandom()  # the plain one begins with the same number in every session that uses Hypothesis


@contextmanager
def machines(count: int, *, ipv6: bool = False) -> Iterator[dict[str, str]]:
    """Make `count` namespaces that reach one another and this host; give address -> namespace.

    Skips, and in CI fails, where `ip` is missing or namespaces are forbidden.

    Args:
        count: How many.
        ipv6: Whether they have addresses of IPv6 instead of IPv4.
    """
    find_tool("ip")
    if os.geteuid() != 0:
        missing("needs root for network namespaces")
    tag = f"{NETWORK_TAG}{WORKER}x{next(_calls) % 100}"
    bridge, net = f"{tag}b", f"fd{_RANDOM.randrange(256):02x}:{_RANDOM.randrange(1, 1 << 16):x}::"
    bits, sort = "64", "nodad"  # an address of IPv6 can be used at once only without duplicate address detection
    if not ipv6:
        net, bits, sort = f"{_free_network()}.", "24", ""
    spaces = {f"{net}{number + 2}": f"{tag}n{number + 2}" for number in range(count)}
    commands = [
        f"link add {bridge} type bridge",
        f"addr add {net}1/{bits} dev {bridge} {sort}",
        f"link set {bridge} up",
    ]
    for address, space in spaces.items():
        outside, inside = f"{space}o", f"{space}i"
        commands += [
            f"netns add {space}",
            f"link add {outside} type veth peer name {inside} netns {space}",
            f"link set {outside} master {bridge} up",
            f"-n {space} addr add {address}/{bits} dev {inside} {sort}",
            f"-n {space} link set {inside} up",
            f"-n {space} link set lo up",
        ]
    try:
        _run(commands)
        yield spaces
    finally:
        for space in spaces.values():
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)
            # A socket of a killed rank that still has data to send keeps its namespace, and so this end, for minutes.
            subprocess.run(["ip", "link", "del", f"{space}o"], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", bridge], capture_output=True, check=False)


@contextmanager
def joined(spaces: Sequence[str]) -> Iterator[list[str]]:
    """Join namespaces by one more network, which this host is not in; give their addresses."""
    bridge, net = f"{NETWORK_TAG}{WORKER}x{next(_calls) % 100}j", _free_network()
    addresses = [f"{net}.{number + 2}" for number in range(len(spaces))]
    commands = [f"link add {bridge} type bridge", f"link set {bridge} up"]
    for address, space in zip(addresses, spaces, strict=True):
        commands += [
            f"link add {space}p type veth peer name {space}j netns {space}",
            f"link set {space}p master {bridge} up",
            f"-n {space} addr add {address}/24 dev {space}j",
            f"-n {space} link set {space}j up",
        ]
    try:
        _run(commands)
        yield addresses
    finally:
        for name in (*(f"{space}p" for space in spaces), bridge):
            subprocess.run(["ip", "link", "del", name], capture_output=True, check=False)


def _run(commands: Sequence[str]) -> None:
    for command in commands:
        made = subprocess.run(["ip", *command.split()], capture_output=True, text=True, check=False)
        if made.returncode != 0:
            missing(f"no network namespaces here: ip {command}: {made.stderr.strip()}")


def _free_network() -> str:
    """Return the first three numbers of a network that no interface of this host is in."""
    listed = subprocess.run(["ip", "-4", "-o", "addr"], capture_output=True, text=True, check=True).stdout
    while True:
        net = f"10.{_RANDOM.randrange(200, 250)}.{_RANDOM.randrange(250)}"
        if f" {net}." not in listed:
            return net
