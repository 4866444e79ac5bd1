"""Discovery of hosts: a script that runs again and again, or a fixed list."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from ringtune.errors import UsageError
from ringtune.launch.hosts import Host, parse_host_line

_EVERY_S = 1.0
_SCRIPT_TIMEOUT_S = 30.0


class Discovery:
    """Runs a script that prints the hosts, once a second, on a thread of its own.

    The script prints one line ``host`` or ``host:slots`` for each host.

    Args:
        script: The script.
        default_slots: Slots of a host whose line gives none.

    Attributes:
        wake_fd: Readable when `take` has something.
    """

    def __init__(self, script: Path, default_slots: int) -> None:
        self._script = script
        self._default_slots = default_slots
        self._found: deque[list[Host] | str] = deque()
        self._stopped = threading.Event()
        self.wake_fd, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="ringtune-discovery", daemon=True)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def first(self) -> list[Host]:
        """Ask once, before `start`.

        Raises:
            UsageError: The script cannot be run, fails, or prints what cannot be understood.
        """
        answer = self._ask()
        if isinstance(answer, str):
            raise UsageError(answer)
        return answer

    def take(self) -> list[Host] | str | None:
        """Return the next answer: hosts, or what went wrong; None when there is none."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake_fd, 4096)
        return self._found.popleft() if self._found else None

    def close(self) -> None:
        """Stop asking. A running script ends by itself or at its time limit."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(_SCRIPT_TIMEOUT_S + 1)
        os.close(self.wake_fd)
        os.close(self._wake_write)

    def _run(self) -> None:
        last: list[Host] | str | None = None
        while not self._stopped.wait(_EVERY_S):
            answer = self._ask()
            if answer != last and not self._stopped.is_set():
                last = answer
                self._found.append(answer)
                with contextlib.suppress(BlockingIOError):
                    os.write(self._wake_write, b"x")

    def _ask(self) -> list[Host] | str:
        name = f"--host-discovery-script {self._script}"
        try:
            done = subprocess.run(
                [str(self._script.absolute())],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_SCRIPT_TIMEOUT_S,
                check=False,
            )
        except OSError as error:
            return f"{name}: cannot be run: {error.strerror}"
        except subprocess.TimeoutExpired:
            return f"{name}: no answer within {_SCRIPT_TIMEOUT_S:g} s"
        if done.returncode != 0:
            said = done.stderr.decode("utf-8", "replace").strip().splitlines()
            return f"{name}: ended with {done.returncode}{': ' + said[-1] if said else ''}"
        try:
            return parse_lines(done.stdout.decode("utf-8", "replace").splitlines(), self._default_slots, name)
        except UsageError as error:
            return str(error)


def parse_lines(lines: Sequence[str], default_slots: int, source: str) -> list[Host]:
    """Parse the output of a discovery script; empty lines are skipped.

    Raises:
        UsageError: A line is not ``host`` or ``host:slots``, or a host appears twice.
    """
    hosts = [parse_host_line(line.strip(), default_slots, source) for line in lines if line.strip()]
    if len({host.name for host in hosts}) < len(hosts):
        raise UsageError(f"{source}: names a host twice")
    return hosts
