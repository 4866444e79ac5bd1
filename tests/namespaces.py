"""Hosts made of network namespaces on one bridge: what crosses them crosses a network."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.conftest import find_tool, missing
from tests.leftovers import NETWORK_TAG, WORKER

# No name is used twice in a process: the kernel takes the links of a deleted namespace away some time after.
_calls = itertools.count()
_RANDOM = random.SystemRandom()  # the plain one begins with the same number in every session that uses Hypothesis


@contextmanager
def machines(count: int) -> Iterator[dict[str, str]]:
    """Make `count` namespaces that reach one another and this host; give address -> namespace.

    Skips, and in CI fails, where `ip` is missing or namespaces are forbidden.
    """
    find_tool("ip")
    if os.geteuid() != 0:
        missing("needs root for network namespaces")
    tag = f"{NETWORK_TAG}{WORKER}x{next(_calls) % 100}"
    bridge, net = f"{tag}b", _free_network()
    spaces = {f"{net}.{number + 2}": f"{tag}n{number + 2}" for number in range(count)}
    commands = [f"link add {bridge} type bridge", f"addr add {net}.1/24 dev {bridge}", f"link set {bridge} up"]
    for address, space in spaces.items():
        outside, inside = f"{space}o", f"{space}i"
        commands += [
            f"netns add {space}",
            f"link add {outside} type veth peer name {inside} netns {space}",
            f"link set {outside} master {bridge} up",
            f"-n {space} addr add {address}/24 dev {inside}",
            f"-n {space} link set {inside} up",
            f"-n {space} link set lo up",
        ]
    try:
        for command in commands:
            made = subprocess.run(["ip", *command.split()], capture_output=True, text=True, check=False)
            if made.returncode != 0:
                missing(f"no network namespaces here: ip {command}: {made.stderr.strip()}")
        yield spaces
    finally:
        for space in spaces.values():
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)
            # A socket of a killed rank that still has data to send keeps its namespace, and so this end, for minutes.
            subprocess.run(["ip", "link", "del", f"{space}o"], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", bridge], capture_output=True, check=False)


def _free_network() -> str:
    """Return the first three numbers of a network that no interface of this host is in."""
    listed = subprocess.run(["ip", "-4", "-o", "addr"], capture_output=True, text=True, check=True).stdout
    while True:
        net = f"10.{_RANDOM.randrange(200, 250)}.{_RANDOM.randrange(250)}"
        if f" {net}." not in listed:
            return net
