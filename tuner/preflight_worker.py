"""One rank of ``ringtune check --network``: measures links and collectives; rank 0 prints one line.

Started by the launcher as ``python -m ringtune.tuner.preflight_worker SECONDS``. Between hosts the first rank of each
one measures: round trips of a byte one link after the other, then, all at once as a ring does, a stream to the next
host. Then all ranks time allreduces.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import socket
import sys
import time
from typing import Any

import numpy as np

from ringtune import session
from ringtune.config import Config
from ringtune.operations import Allreduce, Barrier
from ringtune.session import Session

MARK = "RINGTUNE_PREFLIGHT "
SIZES = (4 << 10, 64 << 10, 512 << 10, 2 << 20, 8 << 20)
_PINGS = 100
_TOKEN_BYTES = 32
_SLICES = 24
"""Slices of the counted time of a stream: each has a rate, and the rates have an interval."""
_PIECE = 256 << 10
_WAIT_S = 60.0
_CONNECTED_S = 20.0
_FEWEST, _LONG_NS = 6, 20_000_000
_FLOAT32, _SUM = 7, 1


def main(seconds: str) -> None:
    """Measures for about so many seconds a phase."""
    current = session.init()
    config = Config.from_environ()
    told: dict[str, Any] = {
        "rank": current.rank,
        "host": current.hosts[current.rank],
        "local_rank": current.local_rank,
        "transports": list(current.transports),
    }
    if current.cross_size > 1:
        told["link"] = _measure_link(current, config, float(seconds))
    told["collectives"] = [_time_allreduce(current, size, float(seconds)) for size in SIZES] if current.size > 1 else []
    told["copies_ns"] = _copies_ns()
    if current.store is not None:
        current.store.set(f"preflight/{current.job}/{current.rank}", json.dumps(told).encode())
    if current.rank == 0:
        others = [
            json.loads(current.store.get(f"preflight/{current.job}/{rank}", int(_WAIT_S * 1e9)))
            for rank in range(1, current.size)
        ]
        print(MARK + json.dumps({"ranks": [told, *others]}), flush=True)
    _meet(current, "end")
    session.shutdown()


def _meet(current: Session, name: str) -> None:
    if current.size > 1:
        ticket = current.submit(Barrier(f"preflight.{name}"))
        current.wait(ticket)
        current.release(ticket)


def _measure_link(current: Session, config: Config, seconds: float) -> dict[str, Any] | None:
    """Latency and rate from this rank's host to the next one; None on ranks that only take part."""
    leaders = sorted({host: rank for rank, host in reversed(list(enumerate(current.hosts)))}.values())
    if current.rank not in leaders:
        for turn in range(len(leaders) + 2):
            _meet(current, f"turn.{turn}")
        return None
    place = leaders.index(current.rank)
    to = leaders[(place + 1) % len(leaders)]
    address = config.own_address or current.store.local_address()
    with socket.create_server((address, 0)) as server:
        server.settimeout(_CONNECTED_S)
        # The store answers this job alone: so who brings the token is the rank that is meant.
        token = secrets.token_bytes(_TOKEN_BYTES)
        here = json.dumps([address, server.getsockname()[1], token.hex()]).encode()
        current.store.set(f"preflight/{current.job}/at/{current.rank}", here)
        there = json.loads(current.store.get(f"preflight/{current.job}/at/{to}", int(_WAIT_S * 1e9)))
        out = socket.create_connection((there[0], there[1]), timeout=_CONNECTED_S)
        out.sendall(bytes.fromhex(there[2]))
        into = _accept(server, token)
    with out, into:
        for end in (out, into):
            end.settimeout(_CONNECTED_S)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        trips: list[int] = []
        for turn in range(len(leaders)):
            _meet(current, f"turn.{turn}")
            if turn == place:
                trips = _round_trips(out)
            elif (turn + 1) % len(leaders) == place:
                _answer(into)
        _meet(current, f"turn.{len(leaders)}")
        rates = _stream(out, into, seconds)
        _meet(current, f"turn.{len(leaders) + 1}")
    return {"to": to, "round_trips_ns": trips, "received_bytes_per_s": rates}


def _accept(server: socket.socket, token: bytes) -> socket.socket:
    """Return the connection that brings the token; others are closed."""
    while True:
        link, _ = server.accept()
        link.settimeout(_CONNECTED_S)
        brought = b""
        with contextlib.suppress(OSError):
            while len(brought) < len(token) and (piece := link.recv(len(token) - len(brought))):
                brought += piece
        if hmac.compare_digest(brought, token):
            return link
        link.close()


def _round_trips(link: socket.socket) -> list[int]:
    """Of a byte, in ns."""
    times = []
    for _ in range(_PINGS):
        begin = time.perf_counter_ns()
        link.sendall(b"?")
        link.recv(1)
        times.append(time.perf_counter_ns() - begin)
    return times


def _answer(link: socket.socket) -> None:
    for _ in range(_PINGS):
        link.recv(1)
        link.sendall(b"!")


def _stream(out: socket.socket, into: socket.socket, seconds: float) -> list[float]:
    """Sends and receives at once; returns received bytes per second by slices of the time.

    Without the first third of it: links have buffers.
    """
    out.setblocking(False)
    into.setblocking(False)
    piece = memoryview(bytes(_PIECE))
    space = bytearray(_PIECE)
    begin = time.perf_counter()
    length = seconds * 2 / 3 / _SLICES
    rates: list[float] = []
    counted, since = 0, begin + seconds / 3
    while (now := time.perf_counter()) < begin + seconds:
        if now >= since + length:
            rates.append(counted / (now - since))
            counted, since = 0, now
        sent, received = _try_send(out, piece), _try_receive(into, space)
        counted += received if now >= since else 0
        if not sent and not received:
            time.sleep(1e-4)
    out.setblocking(True)
    out.shutdown(socket.SHUT_WR)
    into.settimeout(_CONNECTED_S)
    while into.recv(_PIECE):
        pass
    return rates


def _try_send(link: socket.socket, piece: memoryview) -> int:
    try:
        return link.send(piece)
    except BlockingIOError:
        return 0


def _try_receive(link: socket.socket, space: bytearray) -> int:
    try:
        return link.recv_into(space)
    except BlockingIOError:
        return 0


def _time_allreduce(current: Session, size: int, seconds: float) -> dict[str, Any]:
    """Times of allreduces of one size, one after the other, on this rank; the first ones, negotiated, are left out."""
    array = np.zeros(size // 4, dtype=np.float32)
    address = array.ctypes.data
    operation = Allreduce(f"preflight.{size}", address, address, array.shape, _FLOAT32, _SUM)
    # All ranks must agree that the time is over on one of them, and that one call takes long.
    shared = np.zeros(2, dtype=np.float32)
    agree = Allreduce(f"preflight.{size}.agree", shared.ctypes.data, shared.ctypes.data, shared.shape, _FLOAT32, _SUM)
    times: list[int] = []
    end = time.perf_counter() + seconds / len(SIZES)
    while not shared[0]:
        for _ in range(1 if shared[1] or not times else 5):
            begin = time.perf_counter_ns()
            _reduce(current, operation)
            times.append(time.perf_counter_ns() - begin)
        shared[:] = time.perf_counter() > end and len(times) >= _FEWEST, times[-1] > _LONG_NS
        _reduce(current, agree)
    return {"bytes": size, "times_ns": times[min(10, len(times) // 2) :]}


def _reduce(current: Session, operation: Allreduce) -> None:
    ticket = current.submit(operation)
    current.wait(ticket)
    current.release(ticket)


def _copies_ns() -> list[float]:
    """Of a byte from memory to memory and back again, time after time."""
    source, target = np.zeros(4 << 20, dtype=np.uint8), np.ones(4 << 20, dtype=np.uint8)
    times = []
    for _ in range(8):
        begin = time.perf_counter_ns()
        np.copyto(target, source)
        times.append(time.perf_counter_ns() - begin)
    return [2 * time_ns / len(source) for time_ns in times]


if __name__ == "__main__":
    main(*sys.argv[1:])
