"""Network interfaces by name."""

from __future__ import annotations

import fcntl
import socket
import struct

from ringtune.errors import ConfigError

# Asks the kernel for the IPv4 address of an interface (netdevice(7)).
_SIOCGIFADDR = 0x8915
_NAME_BYTES = 15


def address_of(names: str) -> str:
    """Return the IPv4 address of the first of these interfaces that has one here.

    Args:
        names: Names separated by commas.

    Raises:
        ConfigError: None of them has; the message lists those that do.
    """
    words = [word.strip() for word in names.split(",") if word.strip()]
    for word in words:
        if (address := _address(word)) is not None:
            return address
    here = ", ".join(name for _, name in socket.if_nameindex() if _address(name) is not None)
    raise ConfigError(
        f"RINGTUNE_INTERFACE={names!r}: this host has no such network interface with an IPv4 address; it has {here}"
    )


def _address(name: str) -> str | None:
    request = struct.pack("256s", name.encode()[:_NAME_BYTES])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, request)
        except OSError:
            return None  # no such interface, or it has no IPv4 address
    return socket.inet_ntoa(answer[20:24])
