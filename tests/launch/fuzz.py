"""Nonsense for every port that a running job listens at, and what it does to the job.

``python -m tests.launch.fuzz --seconds 600`` starts ranks over TCP with metrics, finds all ports at which the launcher
and the ranks listen (store; links, control and liveness of each rank; metrics), starts the probe of a host beside them,
and lets a process of its own open connections there for half of the time, in turn with quiet times of the same length.
Sums must stay right, a step take no more than a fifth longer than in quiet times, and no process grow by more than
64 MiB.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from ringtune.launch import host_probe
from tests.launch.conftest import DRIVER
from tests.ports import free_port

WORKER = Path(__file__).with_name("fuzz_worker.py")
RANKS = 3
ROUND_S = 5.0
MOST_GROWTH = 64 << 20
SLOWER = 1.2
_PAUSE_S = 0.005
_MAGICS = (b"RTS2", b"RTGL", b"RTGA", b"RTS1", b"GET / HTTP/1.1\r\n", b"POST /metrics HTTP/1.0\r\n", b"\x16\x03\x01")
_KEPT = 100
"""Connections that stay open, say nothing more, and hold what they have sent."""


@dataclass
class Found:
    """What the fuzzing did.

    Attributes:
        ports: Ports that were fuzzed.
        connections: How many were opened.
        quiet_s: Median step in quiet times.
        fuzzed_s: Median step in the others.
        growth: Bytes by which the process that grew most did so.
        wrong: Sentences about what is not as it should be.
    """

    ports: list[int] = field(default_factory=list)
    connections: int = 0
    quiet_s: float = 0.0
    fuzzed_s: float = 0.0
    growth: int = 0
    wrong: list[str] = field(default_factory=list)


def nonsense(rng: random.Random) -> bytes:
    """Return what a stranger may say: a beginning that is known here, lengths that lie, noise, much of it or little."""
    said = rng.choice((b"", *_MAGICS))
    for _ in range(rng.randrange(4)):
        said += rng.choice(
            (
                struct.pack("<I", rng.choice((0, 1, 3, 36, 64, 1 << 16, 1 << 30, (1 << 32) - 1))),
                struct.pack("<Q", rng.randrange(1 << 64)),
                rng.randbytes(rng.choice((1, 32, 36, 68, 4096))),
                b"Host: " + rng.randbytes(8).hex().encode() + b"\r\n\r\n",
            )
        )
    return said + (rng.randbytes(1 << 20) if rng.random() < 0.02 else b"")


def disturb(ports: Sequence[int], seed: int, seconds: float, count: multiprocessing.Queue[int]) -> None:
    """Open connections for so long; tell how many."""
    os.nice(10)
    rng, until, kept, opened = random.Random(seed), time.monotonic() + seconds, [], 0
    while time.monotonic() < until:
        link = socket.socket()
        link.settimeout(0.2)
        with contextlib.suppress(OSError):  # refused, closed while it speaks, or not read from
            link.connect(("127.0.0.1", rng.choice(ports)))
            opened += 1
            link.sendall(nonsense(rng))
            how = rng.random()
            if how < 0.2:
                link.recv(4096)
            elif how < 0.4:  # a reset instead of an end
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif how < 0.6:
                link.shutdown(socket.SHUT_WR)
        if rng.random() < 0.3:
            kept.append(link)
            if len(kept) > _KEPT:
                kept.pop(rng.randrange(_KEPT)).close()
        else:
            link.close()
        time.sleep(_PAUSE_S)
    count.put(opened)


def listening(processes: Sequence[psutil.Process]) -> list[int]:
    """Return the ports of TCP at which the processes listen."""
    found = [link for process in processes for link in process.net_connections("tcp")]
    return sorted({link.laddr.port for link in found if link.status == psutil.CONN_LISTEN})


def run(seconds: float, seed: int) -> Found:
    """Run a job for so long, and fuzz it for half of that time."""
    found, rng = Found(), random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="fuzz") as name:
        folder = Path(name)
        with _job(folder) as launcher, _probe() as (probe, told):
            ranks = [psutil.Process(int(_content(folder / f"pid-{rank}", launcher))) for rank in range(RANKS)]
            processes = [psutil.Process(launcher.pid), psutil.Process(probe.pid), *ranks]
            found.ports = listening(processes)
            rounds: list[tuple[float, float, bool]] = []
            before = [process.memory_info().rss for process in processes]
            until = time.monotonic() + seconds
            while time.monotonic() < until and launcher.poll() is None:
                began, fuzzing = time.monotonic(), len(rounds) % 2 == 1
                if fuzzing:
                    count: multiprocessing.Queue[int] = multiprocessing.Queue()
                    arguments = (found.ports, rng.randrange(1 << 30), ROUND_S, count)
                    fuzzer = multiprocessing.Process(target=disturb, args=arguments)
                    fuzzer.start()
                    found.connections += count.get(timeout=60)
                    fuzzer.join()
                else:
                    time.sleep(ROUND_S)
                rounds.append((began, time.monotonic(), fuzzing))
                with contextlib.suppress(psutil.Error):
                    now = [process.memory_info().rss for process in processes]
                    grown = [after - first for after, first in zip(now, before, strict=True)]
                    found.growth = max(found.growth, *grown)
            (folder / "stop").touch()
            said, _ = launcher.communicate(timeout=120)
            answer, _ = probe.communicate(json.dumps([["127.0.0.1", told["port"], told["token"]]]) + "\n", timeout=120)
            if json.loads(answer) != ["127.0.0.1"]:
                found.wrong.append(f"the probe of a host says {answer!r}")
        _judge(found, folder, launcher.returncode, said, rounds)
    return found


@contextlib.contextmanager
def _job(folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [
        sys.executable, str(DRIVER), "run", "-np", str(RANKS), "--run-dir", str(folder / "run"),
        sys.executable, str(WORKER), str(folder),
    ]  # fmt: skip
    settings = {"RINGTUNE_TRANSPORT": "tcp", "RINGTUNE_METRICS_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, env={**os.environ, **settings}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    ) as launcher:  # fmt: skip
        try:
            yield launcher
        finally:
            launcher.kill()


@contextlib.contextmanager
def _probe() -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """What runs on each host before its ranks, and its first line."""
    command = [sys.executable, "-I", "-S", host_probe.__file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as probe:
        try:
            assert probe.stdout is not None
            yield probe, json.loads(probe.stdout.readline())
        finally:
            probe.kill()


def _content(file: Path, launcher: subprocess.Popen[str]) -> str:
    deadline = time.monotonic() + 120
    while not file.exists() or not file.read_text():
        assert launcher.poll() is None and time.monotonic() < deadline, f"{file} does not come"
        time.sleep(0.05)
    return file.read_text()


def _judge(found: Found, folder: Path, code: int, said: str, rounds: Sequence[tuple[float, float, bool]]) -> None:
    if code != 0:
        found.wrong.append(f"the job ended with {code}: {said[-4000:]}")
        return
    for rank in range(RANKS):
        ended = json.loads((folder / f"end-{rank}").read_text())
        if ended["wrong"]:
            found.wrong.append(f"rank {rank}: {ended['wrong']} of {ended['steps']} sums are wrong")
    steps = [tuple(map(float, line.split())) for line in (folder / "steps-0").read_text().splitlines()]

    def typical(fuzzing: bool) -> float:
        return median(
            took for began, took in steps if any(a <= began < b for a, b, fuzzed in rounds if fuzzed == fuzzing)
        )

    found.quiet_s, found.fuzzed_s = typical(False), typical(True)
    if found.fuzzed_s > SLOWER * found.quiet_s:
        found.wrong.append(f"a step took {found.fuzzed_s * 1e3:.1f} ms instead of {found.quiet_s * 1e3:.1f}")
    if found.growth > MOST_GROWTH:
        found.wrong.append(f"a process grew by {found.growth >> 20} MiB")
    if len(found.ports) < RANKS + 3:
        found.wrong.append(f"only {len(found.ports)} ports: store, metrics, probe and one a rank are expected")
    if "Traceback" in said:
        found.wrong.append(f"a traceback: {said[-4000:]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    given = parser.parse_args()
    found = run(given.seconds, given.seed)
    print(
        f"seed {given.seed}: {found.connections} connections to {len(found.ports)} ports; a step took "
        f"{found.quiet_s * 1e3:.1f} ms, fuzzed {found.fuzzed_s * 1e3:.1f} ms; grown by {found.growth / 2**20:.1f} MiB"
    )
    print(*found.wrong, sep="\n")
    return int(bool(found.wrong))


if __name__ == "__main__":
    sys.exit(main())
