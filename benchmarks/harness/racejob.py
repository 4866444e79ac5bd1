"""A job in a race: the ranks of one library, started once and kept, asleep between bursts."""

from __future__ import annotations

import os
import secrets
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from ringtune.benchmarks.harness.race.wire import Wire
from ringtune.errors import RingtuneError

_KEPT_LINES = 25
START_SECONDS = 120.0
_LEAVE_SECONDS = 8.0
_HELLO_SECONDS = 30.0
"""How long a new connection may take to name its rank; a foreign one may never do so."""
_DYING_SECONDS = 10.0
"""How long a process may take to end after its connection has, and its output to be read."""
_POLL_SECONDS = 0.1


class JobLost(RingtuneError):
    """A job could not start, died, hung, sent a wrong message, or gave a wrong result."""


class TaskUnsupported(RingtuneError):
    """A job is well but cannot do a task at all."""


@dataclass(frozen=True)
class JobPlan:
    """How to start a job.

    Args:
        name: of the peer, for messages.
        contenders: name shown in tables -> what its ranks call it.
        ranks: number of ranks.
        commands: where the ranks shall report (``host:port/token``) -> the processes to start.
        environ: environment of the processes.
        host: name under which the ranks reach this process.
    """

    name: str
    contenders: Mapping[str, str]
    ranks: int
    commands: Callable[[str], Sequence[Sequence[str]]]
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    host: str = "127.0.0.1"


class RaceJob:
    """A running job. Owns its processes and connections; `close` ends them.

    Raises:
        JobLost: not all ranks reported within the time.
    """

    def __init__(self, plan: JobPlan, start_seconds: float = START_SECONDS) -> None:
        self.plan = plan
        self.about = ""
        self._wires: dict[int, Wire] = {}
        self._pids: list[int] = []
        self._printed: deque[str] = deque(maxlen=_KEPT_LINES)
        self._processes: list[subprocess.Popen[str]] = []
        self._readers: list[threading.Thread] = []
        try:
            self._start(time.monotonic() + start_seconds)
        except BaseException:
            self.close()
            raise

    def _start(self, deadline: float) -> None:
        token = secrets.token_hex(8)
        local = self.plan.host == "127.0.0.1"
        with socket.create_server((self.plan.host if local else "", 0)) as server:
            join = f"{self.plan.host}:{server.getsockname()[1]}/{token}"
            for command in self.plan.commands(join):
                self._spawn(command)
            server.settimeout(_POLL_SECONDS)
            while len(self._wires) < self.plan.ranks:
                self._seat(server, token, deadline)

    def _spawn(self, command: Sequence[str]) -> None:
        try:
            process = subprocess.Popen(
                command,
                env=dict(self.plan.environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                # Ctrl-C reaches the driver alone, which then ends every job in order.
                start_new_session=True,
            )
        except OSError as error:
            raise self._lost(f"cannot start {command[0]}: {error}") from error
        self._processes.append(process)
        reader = threading.Thread(target=self._keep_lines, args=(process.stdout,), daemon=True)
        reader.start()
        self._readers.append(reader)

    def _keep_lines(self, stream: IO[str]) -> None:
        with stream:
            self._printed.extend(line.rstrip() for line in stream)

    def _seat(self, server: socket.socket, token: str, deadline: float) -> None:
        """Waits a moment for one more rank."""
        if any(process.poll() is not None for process in self._processes):
            raise self._lost("it ended before all ranks were ready")
        if time.monotonic() > deadline:
            raise self._lost(f"only {len(self._wires)} of {self.plan.ranks} ranks became ready in time")
        try:
            connection, _ = server.accept()
        except TimeoutError:
            return
        connection.settimeout(_HELLO_SECONDS)
        wire = Wire(connection)
        hello = _hello(wire)
        if hello.get("token") != token:
            wire.close()
            return
        rank, size = hello["rank"], hello["size"]
        if size != self.plan.ranks or rank in self._wires:
            raise self._lost(f"its ranks are not one job of {self.plan.ranks}: rank {rank} of {size} reported")
        connection.settimeout(None)
        self._wires[rank] = wire
        self._pids.append(hello["pid"])
        self.about = hello["about"]

    @property
    def pids(self) -> list[int]:
        """Processes of its ranks."""
        return list(self._pids)

    def ask(self, seconds: float, **order: Any) -> list[dict[str, Any]]:
        """Gives all ranks an order and returns their answers by rank.

        Raises:
            TaskUnsupported: a rank says that it cannot do this at all.
            JobLost: a rank failed or did not answer within `seconds`.
        """
        try:
            for wire in self._wires.values():
                wire.send(**order)
        except OSError as error:
            raise self._lost(f"a rank is gone ({error})", dying=True) from error
        answers = self._collect(time.monotonic() + seconds, order["do"])
        for answer in answers:
            if "failed" in answer:
                raise JobLost(f"{self.plan.name}: {answer['failed']}")
        for answer in answers:
            if "unsupported" in answer:
                raise TaskUnsupported(answer["unsupported"])
        return answers

    def _collect(self, deadline: float, what: str) -> list[dict[str, Any]]:
        answers: dict[int, dict[str, Any]] = {}
        with selectors.DefaultSelector() as selector:
            for rank, wire in self._wires.items():
                selector.register(wire, selectors.EVENT_READ, rank)
            while len(answers) < len(self._wires):
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    missing = sorted(set(self._wires) - set(answers))
                    raise self._lost(f"no answer from rank {missing} to '{what}' in time")
                for key, _ in ready:
                    answers[key.data] = self._answer(key.data)
                    selector.unregister(key.fileobj)
                    if "failed" in answers[key.data]:
                        # The others may wait for it for ever.
                        return [answers[key.data]]
        return [answers[rank] for rank in sorted(answers)]

    def _answer(self, rank: int) -> dict[str, Any]:
        answer = self._receive(self._wires[rank])
        if answer is None:
            raise self._lost(f"rank {rank} died", dying=True)
        return answer

    def _receive(self, wire: Wire) -> dict[str, Any] | None:
        try:
            return wire.receive()
        except (OSError, ValueError) as error:
            raise self._lost(f"broken protocol: {error}", dying=isinstance(error, OSError)) from error

    def _lost(self, what: str, *, dying: bool = False) -> JobLost:
        """Describes a loss, by the last lines of a dead process, which explain more than its exit code.

        Args:
            what: was lost.
            dying: a connection has ended, so a process is about to: it gets the time for that.
        """
        deadline = time.monotonic() + (_DYING_SECONDS if dying else 0.0)
        while all(process.poll() is None for process in self._processes) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS / 10)
        for process, reader in zip(self._processes, self._readers, strict=True):
            if process.poll() is not None:
                reader.join(_DYING_SECONDS)  # it has written everything, unless a relative of it holds the pipe open
        tail = "".join(f"\n  | {line}" for line in list(self._printed))
        return JobLost(f"{self.plan.name}: {what}{tail}")

    def close(self) -> None:
        """Ends the job: asks first, then terminates, then kills."""
        for wire in self._wires.values():
            try:
                wire.send(do="exit")
            except OSError:
                # The process has ended already.
                continue
        for end in (None, signal.SIGTERM, signal.SIGKILL):
            if end is not None:
                self._signal(end)
            if self._ended():
                break
        for wire in self._wires.values():
            wire.close()
        self._wires.clear()

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, number)
        if number == signal.SIGKILL and self.plan.host == "127.0.0.1":
            # A killed launcher leaves its ranks running.
            for pid in self._pids:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue

    def _ended(self) -> bool:
        deadline = time.monotonic() + (_LEAVE_SECONDS if self._wires else 1.0)
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                return False
        return True


def _hello(wire: Wire) -> dict[str, Any]:
    """Returns a rank's first message; None if another one arrives, or none in time."""
    try:
        return wire.receive() or {}
    except (OSError, ValueError):
        return {}
