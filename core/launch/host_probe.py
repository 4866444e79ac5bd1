"""Run on each host of a job before its ranks: tells the host's addresses, and which addresses of others it reaches.

Standard library only, run as a file (``python -I -S host_probe.py``), like the rank agent. Standard output: one line of
JSON ``{"port", "token", "addresses"}``: whoever connects to the port at one of the addresses is sent the token.
Standard input: one line ``[[address, port, token], ...]``; the answer is a line with, for each of them, the own address
of the connection, or null if there is none or another process answers. Ends with its input.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import struct
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

_SIOCGIFADDR = 0x8915
_TRY_S = 3.0
_MOST_AT_ONCE = 64


def main() -> None:
    """Serve the token, tell the addresses, try those of others."""
    listener = _listener()
    token = os.urandom(16).hex()
    threading.Thread(target=_serve, args=(listener, token.encode()), daemon=True).start()
    print(json.dumps({"port": listener.getsockname()[1], "token": token, "addresses": addresses()}), flush=True)
    for line in sys.stdin:
        targets = json.loads(line)
        with ThreadPoolExecutor(min(_MOST_AT_ONCE, max(1, len(targets)))) as pool:
            print(json.dumps(list(pool.map(lambda target: _reach(*target), targets))), flush=True)


def addresses() -> list[str]:
    """Return this host's addresses, IPv4 first, without those that only the host itself or one link can use."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # the interface has no IPv4 address
                request = struct.pack("256s", name.encode()[:15])
                found.append(socket.inet_ntoa(fcntl.ioctl(asking, _SIOCGIFADDR, request)[20:24]))
    with contextlib.suppress(OSError), open("/proc/net/if_inet6", encoding="ascii") as lines:
        for digits, _, _, scope, *_ in (line.split() for line in lines):
            if scope == "00":  # global
                found.append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)))
    return [address for address in dict.fromkeys(found) if not address.startswith("127.")]


def _listener() -> socket.socket:
    try:
        made = socket.socket(socket.AF_INET6)
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        made.bind(("::", 0))
    except OSError:
        made = socket.socket()
        made.bind(("", 0))
    made.listen(1024)
    return made


def _serve(listener: socket.socket, token: bytes) -> None:
    while True:
        with contextlib.suppress(OSError), listener.accept()[0] as caller:
            caller.sendall(token)


def _reach(address: str, port: int, token: str) -> str | None:
    try:
        with socket.create_connection((address, port), _TRY_S) as link:
            said = b""
            while part := link.recv(64):
                said += part
            # Some address, such as that of a bridge for containers, may be this host's own too.
            return str(link.getsockname()[0]) if said == token.encode() else None
    except OSError:
        return None


if __name__ == "__main__":
    main()
