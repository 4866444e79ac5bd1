"""Hosts and slots: which rank runs where. Pure but for `is_local`, which asks the name service."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ringtune.errors import UsageError

_HOST = re.compile(
    r"^(?:(?P<user>[A-Za-z0-9._-]+@)?\[(?P<address>[0-9A-Fa-f:.]+(?:%[A-Za-z0-9._-]+)?)\]|(?P<name>[A-Za-z0-9._@-]+))"
    r"(?::(?P<slots>[^:]*))?$"
)
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class Host:
    """A machine and the number of ranks it takes."""

    name: str
    slots: int


@dataclass(frozen=True)
class Slot:
    """Where a rank runs.

    Attributes:
        rank: Rank in the job.
        host: Name of the host as the user gave it.
        local_rank: Rank among those of the host.
        local_size: Number of ranks on the host.
    """

    rank: int
    host: str
    local_rank: int
    local_size: int


def parse_hosts(text: str) -> list[Host]:
    """Parse ``host:slots,host2:slots``; a host without slots takes one rank, an IPv6 address stands in brackets.

    Raises:
        UsageError: A word is not ``host[:slots]``.
    """
    hosts = [parse_host_line(word.strip(), 1, "-H") for word in text.split(",") if word.strip()]
    if not hosts:
        raise UsageError(f"-H {text!r}: expected host:slots, separated by commas (localhost:2,node7:4)")
    return hosts


def parse_hostfile(path: Path) -> list[Host]:
    """Parse a file of lines ``host slots=N`` (or ``host:N``); ``#`` begins a comment.

    Raises:
        UsageError: The file cannot be read, is empty, or a line cannot be understood.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--hostfile {path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    hosts = []
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        name, options = words[0], words[1:]
        slots = [word.partition("=")[2] for word in options if word.startswith("slots=")]
        if len(slots) != len(options) or len(slots) > 1:
            raise UsageError(f"--hostfile {path}, line {number}: {line.strip()!r}: expected `host slots=N`")
        hosts.append(parse_host_line(f"{name}:{slots[0]}" if slots else name, 1, f"--hostfile {path}, line {number}"))
    if not hosts:
        raise UsageError(f"--hostfile {path}: names no host")
    return hosts


def merged(hosts: Sequence[Host]) -> list[Host]:
    """Return every machine once, under its first name, with the slots of all its names and lines.

    Names belong to one machine if they lead to a common address, this machine's being any that can be bound here.
    """
    slots: dict[str, int] = {}
    first_names: dict[object, str] = {}
    for host in hosts:
        keys = _keys_of(host.name)
        name = next((first_names[key] for key in keys if key in first_names), host.name)
        slots[name] = slots.get(name, 0) + host.slots
        for key in keys:
            first_names.setdefault(key, name)
    return [Host(name, count) for name, count in slots.items()]


def _keys_of(name: str) -> list[object]:
    """Return what tells a machine from others: its name as it is given, and its addresses for one user."""
    if is_local(name):
        return [_LOCAL_NAMES]
    user, _, host = name.rpartition("@")
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return [name]  # known to ssh alone
    return [name, *((user, address[0]) for *_, address in found)]


def assign(hosts: Sequence[Host], num_proc: int) -> list[Slot]:
    """Give ranks to hosts in the order given, each host filled before the next.

    One local host may take more ranks than it has slots: tests and small machines need that.

    Raises:
        UsageError: The hosts have fewer slots than there are ranks.
    """
    offered = sum(host.slots for host in hosts)
    if num_proc > offered:
        if len(hosts) > 1 or not is_local(hosts[0].name):
            listed = ",".join(f"{host.name}:{host.slots}" for host in hosts)
            raise UsageError(f"-np {num_proc}: the hosts offer only {offered} slots ({listed})")
        hosts = [Host(hosts[0].name, num_proc)]
    slots: list[Slot] = []
    for host in hosts:
        local_size = min(host.slots, num_proc - len(slots))
        slots += [Slot(len(slots) + local, host.name, local, local_size) for local in range(local_size)]
    return slots


def is_local(name: str) -> bool:
    """Whether a host's name means this machine: one of its addresses can be bound here."""
    if name in _LOCAL_NAMES or name == socket.gethostname():
        return True
    if "@" in name:
        return False
    try:
        infos = socket.getaddrinfo(name, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    return any(_can_bind(family, address) for family, _, _, _, address in infos)


def _can_bind(family: int, address: tuple[object, ...]) -> bool:
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(address)
        except OSError:
            return False
    return True


def parse_host_line(word: str, default_slots: int, source: str) -> Host:
    """Parse ``host`` or ``host:slots``; without slots it takes the default.

    Raises:
        UsageError: The word is neither.
    """
    match = _HOST.match(word)
    if match is None:
        raise UsageError(f"{source}: {word!r}: expected host:slots, for example localhost:2")
    name = (match["user"] or "") + match["address"] if match["address"] else match["name"]
    slots = match["slots"]
    if slots is None:
        return Host(name, default_slots)
    if not slots.isascii() or not slots.isdigit() or int(slots) == 0:
        raise UsageError(f"{source}: {word!r}: slots must be a whole number from 1, got {slots!r}")
    return Host(name, int(slots))
