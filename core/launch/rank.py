"""One rank as the launcher sees it: its rank agent's process, its two streams, its end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ringtune.launch import descriptors
from ringtune.launch.hosts import Slot


@dataclass(frozen=True)
class Order:
    """The order for a rank agent: the first line that it reads.

    Attributes:
        command: Program and arguments.
        environ: The rank's whole environment.
        cwd: Folder in which it starts.
        local_size: Ranks on the host, which share its cores.
        grace_s: Time between SIGTERM and SIGKILL if the launcher disappears.
        of_host: Variables that the rank takes from its rank agent, as far as that has them.
        proof: What the agent writes to its standard error when the rank has ended with 0; empty = nothing. For agents
            whose starter may end with 0 although the agent was lost, as srun does when a node dies.
    """

    command: Sequence[str]
    environ: Mapping[str, str]
    cwd: Path
    local_size: int
    grace_s: float
    of_host: Sequence[str] = ()
    proof: str = ""

    def line(self) -> bytes:
        """Return the order as one line of JSON; ASCII, so that bytes that are no UTF-8 survive as escapes."""
        fields = {
            "command": list(self.command),
            "environ": dict(self.environ),
            "cwd": str(self.cwd),
            "local_size": self.local_size,
            "grace_s": self.grace_s,
            "of_host": list(self.of_host),
            "proof": self.proof,
        }
        return json.dumps(fields).encode("ascii") + b"\n"


_LOST = 255
"""Exit code of a rank whose end nobody has seen; ssh's own is the same when it loses its host."""


ABANDON_S = 3.0
"""Time a rank agent may take after SIGKILL before it is killed itself (an ssh to a host that is gone)."""


class RankProcess:
    """A started rank. Not thread-safe: belongs to the launcher's loop."""

    def __init__(self, slot: Slot, rank_agent: Sequence[str], order: Order) -> None:
        self.slot = slot
        self._proof, self._held, self._proven = order.proof.encode(), b"", not order.proof
        # A session of its own: Ctrl-C in the terminal reaches the launcher alone, which forwards it once.
        self._process = subprocess.Popen(
            rank_agent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        assert self._process.stdout is not None and self._process.stderr is not None
        self.stdout = self._process.stdout.fileno()
        self.stderr = self._process.stderr.fileno()
        os.set_blocking(self.stdout, False)
        os.set_blocking(self.stderr, False)
        self.pidfd = os.pidfd_open(self._process.pid)
        # The order starts the rank, which inherits the limit: so the limit is set first.
        descriptors.hand_down(self._process.pid, order.local_size)
        self._tell(order.line())

    @property
    def rank(self) -> int:
        """Rank in the job."""
        return self.slot.rank

    @property
    def pid(self) -> int:
        """Process id of the rank agent (or of ssh)."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """Return the exit code once the rank has ended (128 + number after a signal), else None."""
        code = self._process.poll()
        if code == 0 and not self._proven:
            return _LOST
        return code if code is None or code >= 0 else 128 - code

    def without_proof(self, data: bytes, *, last: bool = False) -> bytes:
        """Take the proof of a good end out of what was read of the standard error, and note it.

        Args:
            data: What was read.
            last: Whether nothing follows. Else the beginning of a proof at the end of `data` is held back.
        """
        data, self._held = self._held + data, b""
        if self._proof and self._proof in data:
            self._proven = True
            data = data.replace(self._proof, b"")
        at = data.rfind(self._proof[:1]) if self._proof and not last else -1
        if at >= 0 and self._proof.startswith(data[at:]):
            data, self._held = data[:at], data[at:]
        return data

    def send_signal(self, number: int) -> None:
        """Send a signal to everything the rank has started in its session."""
        self._tell(f"signal {number}\n".encode())

    def end_if_stopped(self, seconds: float) -> None:
        """Let the rank agent end a rank whose process is stopped (SIGSTOP) for so long without a break."""
        self._tell(f"end-if-stopped {seconds}\n".encode())

    def kill(self) -> None:
        """End the rank now; the rank agent sees the signal and, if it is stuck, the end of its input."""
        self.send_signal(signal.SIGKILL)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def kill_rank_agent(self) -> None:
        """Last resort after `kill`: an ssh that hangs. The kernel then ends a local rank too."""
        self._process.kill()

    def close(self) -> None:
        """Wait for the process, which has ended or was told to (`kill`), and free its descriptors."""
        os.close(self.pidfd)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        try:
            self._process.wait(ABANDON_S)
        except subprocess.TimeoutExpired:
            self.kill_rank_agent()
            self._process.wait()

    def _tell(self, data: bytes) -> None:
        assert self._process.stdin is not None
        # A rank agent that is gone needs no signal.
        with contextlib.suppress(BrokenPipeError, ValueError):
            view = memoryview(data)
            while view:
                view = view[self._process.stdin.write(view) :]
