"""The rank agent: a small process between the launcher and one rank, on the rank's host.

It starts the rank in a session of its own, passes signals on and ends everything the rank has started when the launcher
is gone, whatever ended it: the launcher holds the other end of the rank agent's standard input, through ssh on another
host, and the agent sees the end of that input. Standard library only, run as a file (``python -I -S rank_agent.py``),
so that it starts in a hundredth of a second.

Standard input: one line of JSON ``{"command", "environ", "cwd", "local_size", "grace_s", "of_host", "proof"}``, then
lines ``signal <number>`` and ``end-if-stopped <seconds>``. Exit code: the rank's, 128 + number after a signal, 126 and
127 when it cannot be started.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_EXIT_NOT_EXECUTABLE = 126
_EXIT_NOT_FOUND = 127


def main() -> int:
    """Run one rank to its end and return its exit code."""
    reader = _Lines(0)
    first = reader.wait_line()
    if first is None:
        return 1
    order = json.loads(first)
    wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    libc = ctypes.CDLL(None, use_errno=True)
    # Whatever the rank leaves behind becomes our child, so that it can be found and ended.
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        rank = _start(order, libc)
    except OSError as error:
        return _say_cannot_start(order, error)
    # A signal meant for the rank agent is meant for the rank.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: _signal_group(rank, number))
    code = _watch(rank, reader, wake, float(order["grace_s"]))
    if code == 0:
        os.write(2, order["proof"].encode())
    return code


def _start(order: dict[str, Any], libc: ctypes.CDLL) -> subprocess.Popen[bytes]:
    environ: dict[str, str] = order["environ"]
    environ.update({name: os.environ[name] for name in order["of_host"] if name in os.environ})
    if not environ.get("OMP_NUM_THREADS"):
        cores = len(os.sched_getaffinity(0))
        environ["OMP_NUM_THREADS"] = str(max(1, cores // order["local_size"]))

    def before_exec() -> None:
        # The rank agent has one thread, so running Python between fork and exec is safe. A killed agent takes its rank
        # along.
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    os.chdir(order["cwd"])
    return subprocess.Popen(
        order["command"], env=environ, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=before_exec
    )


def _say_cannot_start(order: dict[str, Any], error: OSError) -> int:
    missing = error.filename == order["cwd"]
    what = f"folder {order['cwd']}" if missing else f"command {order['command'][0]!r}"
    print(f"ringtune: cannot start the rank: {what}: {error.strerror} on {os.uname().nodename}", file=sys.stderr)
    return _EXIT_NOT_FOUND if isinstance(error, FileNotFoundError) else _EXIT_NOT_EXECUTABLE


def _watch(rank: subprocess.Popen[bytes], reader: _Lines, wake: int, grace_s: float) -> int:
    """Wait for the rank's end; obey the launcher until then."""
    poller = select.poll()
    poller.register(wake, select.POLLIN)
    poller.register(reader.descriptor, select.POLLIN | select.POLLHUP)
    kill_at: float | None = None
    stopped = _Stopped(rank)
    while rank.poll() is None:
        for line in reader.take_lines():
            word, value = line.split()
            if word == b"signal":
                _signal_group(rank, int(value))
            else:
                stopped.limit_s = float(value)
        if stopped.too_long():
            print(f"ringtune: ending the rank, which stands stopped for {stopped.limit_s:g} s", file=sys.stderr)
            _signal_group(rank, signal.SIGKILL)
            stopped.limit_s = float("inf")
        moments = [at for at in (kill_at, stopped.look_at()) if at is not None]
        timeout_ms = max(0.0, (min(moments) - time.monotonic()) * 1e3) if moments else None
        ready = {descriptor for descriptor, _ in poller.poll(timeout_ms)}
        if wake in ready:
            os.read(wake, 4096)
            _reap(rank)
        if reader.descriptor in ready:
            reader.read()
            if reader.ended:
                # The launcher has gone, and with it the reader of the rank's output.
                poller.unregister(reader.descriptor)
                _signal_group(rank, signal.SIGTERM)
                _signal_group(rank, signal.SIGCONT)
                kill_at = time.monotonic() + grace_s
        if kill_at is not None and time.monotonic() >= kill_at:
            _signal_group(rank, signal.SIGKILL)
            kill_at = None
    _end_leftovers(rank, everything=reader.ended)
    code = rank.returncode
    return code if code >= 0 else 128 - code


class _Stopped:
    """How long a process has been stopped, looked at some times within the limit.

    Args:
        rank: The process.

    Attributes:
        limit_s: How long it may be; infinite until the launcher sets it.
    """

    def __init__(self, rank: subprocess.Popen[bytes]) -> None:
        self.limit_s = float("inf")
        self._stat = f"/proc/{rank.pid}/stat"
        self._since: float | None = None

    def look_at(self) -> float | None:
        """Return when to look again."""
        return None if self.limit_s == float("inf") else time.monotonic() + self.limit_s / 8

    def too_long(self) -> bool:
        """Look whether it is stopped, and since when."""
        if self.limit_s == float("inf"):
            return False
        try:
            with open(self._stat, encoding="utf-8", errors="replace") as file:
                stopped = file.read().rpartition(")")[2].split()[0] == "T"
        except (OSError, IndexError):
            stopped = False
        now = time.monotonic()
        self._since = (self._since or now) if stopped else None
        return self._since is not None and now - self._since >= self.limit_s


def _signal_group(rank: subprocess.Popen[bytes], number: int) -> None:
    # The group outlives its leader while a member lives, so it is signalled even after the rank has ended.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(rank.pid, number)


def _end_leftovers(rank: subprocess.Popen[bytes], *, everything: bool) -> None:
    """End the rank's process group; with `everything` also descendants that made a session of their own."""
    _signal_group(rank, signal.SIGKILL)
    # Children of those we end become ours, so this goes down the tree generation by generation.
    while everything and (children := _children()):
        for child in children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)


def _children() -> list[int]:
    pid = os.getpid()
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        # A kernel built without CONFIG_PROC_CHILDREN: leftovers outside the rank's group cannot be found.
        return []


def _reap(rank: subprocess.Popen[bytes]) -> None:
    """Collect adopted children that have ended; the rank itself is left to `Popen`."""
    for child in _children():
        if child != rank.pid:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)


class _Lines:
    """Lines from a descriptor."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.ended = False
        self._pending = b""

    def wait_line(self) -> bytes | None:
        """Return the first line, waiting for it; None at the end of input."""
        while b"\n" not in self._pending:
            self.read()
            if self.ended:
                return None
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def read(self) -> None:
        """Read once; sets `ended` at the end of input."""
        data = os.read(self.descriptor, 1 << 16)
        self.ended = not data
        self._pending += data

    def take_lines(self) -> list[bytes]:
        """Return the complete lines read so far."""
        *lines, self._pending = self._pending.split(b"\n")
        return lines


if __name__ == "__main__":
    sys.exit(main())
