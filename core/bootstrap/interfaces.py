"""Network interfaces by name, and the address by which processes of one host meet."""

from __future__ import annotations

import functools
import ipaddress
import socket

from ringtune.errors import ConfigError

LOCAL = "@local"
"""Stands for a host: Unix sockets, which need no network at all (see ``native/transport/socket.h``)."""
_FAR = ("192.0.2.1", "2001:db8::1")
"""Addresses of no host (RFC 5737, RFC 3849), towards which the kernel knows a route if it knows any."""


@functools.cache
def loopback() -> str:
    """Return the address by which processes of this host reach each other.

    Hosts and containers may have IPv6 alone, or a loopback interface that is down.
    """
    return next((address for address in ("127.0.0.1", "::1") if _works(address)), LOCAL)


@functools.cache
def any_address() -> str:
    """Return the address at which a server listens for processes of all hosts, by IPv6 and IPv4 where both work."""
    if loopback() == LOCAL:
        return LOCAL
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            probe.bind(("::", 0))
    except OSError:
        return "0.0.0.0"
    return "::"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def address_towards(host: str) -> str | None:
    """Return this machine's address on the way to `host`; None if there is no way.

    Nothing is sent: connecting a UDP socket only asks the kernel for its route.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            found: str = probe.getsockname()[0]
            return found
    except OSError:
        return None


def outward_address(name: str) -> str | None:
    """Return this host's address for others where its own name leads it to its loopback interface, or nowhere.

    Debian writes ``127.0.1.1 <hostname>`` into ``/etc/hosts``: the host reaches a server under its own name there, and
    an address of that connection would lead every other host to itself.

    Args:
        name: Name or address of a host, perhaps this one.

    Returns:
        The address; None for another host's name, and where there is none.
    """
    if name == LOCAL or is_loopback(name):
        return None
    towards = address_towards(name)
    if name != socket.gethostname() if towards is None else not is_loopback(towards):
        return None
    routed = (address_towards(far) for far in _FAR)
    return next((one for one in (*routed, *_addresses().values()) if one is not None and not is_loopback(one)), None)


def _works(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family) as listener, socket.socket(family) as client:
            listener.bind((address, 0))
            listener.listen(1)
            client.settimeout(1)
            client.connect(listener.getsockname())
    except OSError:
        return False
    return True


def address_of(names: str) -> str:
    """Return the address of the first of these interfaces that has one here, by IPv4 if it has both.

    Args:
        names: Names separated by commas.

    Raises:
        ConfigError: None of them has; the message lists those that do.
    """
    wanted = [word for part in names.split(",") if (word := part.strip())]
    addresses = _addresses()
    for name in wanted:
        if name in addresses:
            return addresses[name]
    here = ", ".join(addresses)
    raise ConfigError(
        f"RINGTUNE_INTERFACE={names!r}: this host has no such network interface with an address; it has {here}"
    )


def _addresses() -> dict[str, str]:
    """Return an address of every interface that has one which other hosts can use: IPv4's first, else IPv6's."""
    import psutil  # imported here because every process reads its settings and few name an interface

    found = {}
    for name, several in psutil.net_if_addrs().items():
        usable = [one for one in several if one.family in (socket.AF_INET, socket.AF_INET6)]
        usable = [one for one in usable if not one.address.lower().startswith("fe80:")]  # of one link
        if usable:
            found[name] = min(usable, key=lambda one: one.family != socket.AF_INET).address
    return found
