"""Network interfaces by name, and the address by which processes of one host meet."""

from __future__ import annotations

import functools
import ipaddress
import socket

from ringtune.errors import ConfigError

LOCAL = "@local"
"""Stands for a host: Unix sockets, which need no network at all (see ``native/transport/socket.h``)."""
_ANY = {"127.0.0.1": "0.0.0.0", "::1": "::", LOCAL: LOCAL}


@functools.cache
def loopback() -> str:
    """Return the address by which processes of this host reach each other.

    Hosts and containers may have IPv6 alone, or a loopback interface that is down.
    """
    return next((address for address in ("127.0.0.1", "::1") if _works(address)), LOCAL)


def any_address() -> str:
    """Return the address at which a server listens for processes of all hosts."""
    return _ANY[loopback()]


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
    """Return the IPv4 address of the first of these interfaces that has one here.

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
        f"RINGTUNE_INTERFACE={names!r}: this host has no such network interface with an IPv4 address; it has {here}"
    )


def _addresses() -> dict[str, str]:
    """Return the first IPv4 address of every interface that has one."""
    import psutil  # imported here because every process reads its settings and few name an interface

    return {
        name: addresses[0]
        for name, found in psutil.net_if_addrs().items()
        if (addresses := [one.address for one in found if one.family == socket.AF_INET])
    }
