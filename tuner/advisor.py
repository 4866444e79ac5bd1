"""The advisor process: Optuna's sampler beside the training process, never inside it.

``python -m ringtune.tuner.advisor`` speaks `wire` messages on its standard input and output. Training writes
requests and reads answers that have arrived; it never waits. The process runs niced, on one thread and without GPU;
it ends when its input ends or its parent is gone, whichever is seen first (a forked data loader may hold the pipe
open). Its failure is one sentence in the journal, and training goes on with what is confirmed.

Requests: ``setup``, ``open``, ``ask``, ``tell``, ``conclude``. Answers: ``ready``, ``stored``, ``suggestion``,
``concluded``, ``failed``.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict
from typing import IO, Any

from ringtune.tuner import wire
from ringtune.tuner.advice import AdvisorState, Outcome, Stored, Suggestion, Workload
from ringtune.tuner.records import ResultRecord
from ringtune.tuner.study import StudyAdvisor

_NICE = 10
_PARENT_CHECK_S = 1.0
_CLOSE_TIMEOUT_S = 10.0
_LAST_THOUGHT_S = 4.0
"""How long a process that has stored everything waits for its sampler; less than `_CLOSE_TIMEOUT_S`."""


class ProcessAdvisor:
    """An `Advisor` in another process; no call blocks but `close`.

    Args:
        setup: What the advisor is made of.
        command: How to start the process; default: this interpreter with this module.
    """

    def __init__(self, setup: wire.Setup, command: list[str] | None = None) -> None:
        self._job = setup.job
        self._state: AdvisorState = "starting"
        self._failure = ""
        self._stored: Stored | None = None
        self._suggestion: Suggestion | None = None
        self._asked = False
        self._unread, self._unsent = b"", b""
        # A file, not a pipe, since no thread would empty a pipe while training runs.
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = subprocess.Popen(
                command or [sys.executable, "-m", "ringtune.tuner.advisor"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=_environment(),
            )
        except OSError as error:
            self._fail(f"its process does not start: {error}")
            return
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
        self._send("setup", **wire.setup_fields(setup))

    @property
    def state(self) -> AdvisorState:
        self._pump()
        return self._state

    @property
    def failure(self) -> str:
        return self._failure

    @property
    def pid(self) -> int | None:
        """Process id, while there is a process."""
        return self._process.pid if self._process is not None else None

    def open(self, workload: Workload) -> str:
        self._send("open", **asdict(workload))
        return self._job.fingerprint(workload)

    def stored(self) -> Stored | None:
        self._pump()
        return self._stored if self._state != "failed" else self._stored or Stored(None, 0)

    def ask(self) -> Suggestion | None:
        if not self._asked:
            self._asked = True
            self._send("ask")
        self._pump()
        suggestion, self._suggestion = self._suggestion, None
        self._asked = suggestion is None
        return suggestion

    def tell(self, outcome: Outcome) -> None:
        self._send("tell", **wire.outcome_fields(outcome))

    def conclude(self, result: ResultRecord) -> None:
        self._send("conclude", **wire.result_fields(result))

    def finish(self) -> None:
        """Let the process end by itself once it has stored all outcomes; `close` reaps it."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        # `close` sends what the pipe does not take now.
        if not self._unsent and not self._process.stdin.closed:
            self._process.stdin.close()

    def close(self) -> None:
        """Let the process finish its requests, for a few seconds at most; then end it."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None and process.stdout is not None
            with contextlib.suppress(OSError):
                if not process.stdin.closed:
                    os.set_blocking(process.stdin.fileno(), True)
                    if self._state != "failed":
                        process.stdin.write(self._unsent)
                    process.stdin.close()
            try:
                process.wait(_CLOSE_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                said = f"the sampler needed more than {_CLOSE_TIMEOUT_S:g} s to store the outcomes, and was ended"
                print(f"ringtune autotune: {said}: the next job may not begin with it", file=sys.stderr, flush=True)
            process.stdout.close()
        self._errors.close()

    def _send(self, kind: str, **fields: Any) -> None:
        if self._process is None or self._state == "failed":
            return
        self._unsent += wire.encode(kind, **fields)
        self._flush()

    def _flush(self) -> None:
        """Write as much as the pipe takes; the next call writes the rest."""
        assert self._process is not None and self._process.stdin is not None
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._process.stdin.fileno(), self._unsent) :]
        except BlockingIOError:
            return
        except OSError:
            self._fail_from_process()

    def _pump(self) -> None:
        """Read the answers that have arrived."""
        if self._process is None or self._state == "failed":
            return
        self._flush()
        assert self._process.stdout is not None
        while True:
            try:
                data = os.read(self._process.stdout.fileno(), 1 << 16)
            except BlockingIOError:
                break
            if not data:
                self._fail_from_process()
                break
            *lines, self._unread = (self._unread + data).split(b"\n")
            for line in lines:
                self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            message = wire.decode(line)
        except ValueError as error:
            self._fail(str(error))
            return
        if message["kind"] == "ready" and self._state == "starting":
            self._state = "ready"
        elif message["kind"] == "stored":
            self._stored = wire.stored_from(message)
        elif message["kind"] == "suggestion":
            self._suggestion = wire.suggestion_from(message)
        elif message["kind"] == "failed":
            self._fail(message["why"])

    def _fail(self, why: str) -> None:
        if self._state != "failed":
            self._state, self._failure = "failed", why

    def _fail_from_process(self) -> None:
        """The process has closed its pipes: once it has ended too, say how, with the last line it printed."""
        assert self._process is not None
        if self._process.poll() is None:  # its pipes close before the process ends: a later call finds the exit code
            return
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        last = f": {said[-1]}" if said else ""
        self._fail(f"its process ended with code {self._process.returncode}{last}")


def _environment() -> dict[str, str]:
    """Environment of the process: one thread, no GPU context; it belongs to no job."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RINGTUNE_")}
    threads = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    return {**kept, **threads, "CUDA_VISIBLE_DEVICES": ""}


class Server:
    """The process's side: reads requests and answers them in order, suggestions when they are found.

    A suggestion is computed in a thread: the sampler may need seconds, and a job that ends meanwhile waits only for
    what it has learned to be stored.

    Args:
        answers: File descriptor that answers are written to.
    """

    def __init__(self, answers: int) -> None:
        self._answers = answers
        self._advisor: StudyAdvisor | None = None
        self._failure_said = threading.Lock()
        self._thinking: threading.Thread | None = None

    def handle(self, message: dict[str, Any]) -> None:
        """Carry out one request."""
        kind = message["kind"]
        if kind == "setup":
            setup = wire.setup_from(message)
            self._advisor = StudyAdvisor(setup.space, setup.job, setup.options)
            # Full priority up to here, as the beginning of the training waits for this; low priority from here on.
            self._advisor.warm()
            with contextlib.suppress(OSError):
                os.nice(_NICE)
            if not self._advisor.failure:
                self._answer("ready")
        assert self._advisor is not None, f"{kind} before setup"
        if kind == "open":
            self._advisor.open(wire.workload_from(message))
            stored = self._advisor.stored()
            self._answer("stored", **wire.stored_fields(stored or Stored(None, 0)))
        elif kind == "ask":
            self._thinking = threading.Thread(target=self._suggest, args=(self._advisor,), daemon=True)
            self._thinking.start()
        elif kind == "tell":
            self._advisor.tell(wire.outcome_from(message))
        elif kind == "conclude":
            self._advisor.conclude(wire.result_from(message))
        self._say_failure(self._advisor)

    def finish(self) -> None:
        """All outcomes are stored: clean up after a suggestion that is not wanted any more, if it arrives in time."""
        if self._thinking is not None:
            self._thinking.join(_LAST_THOUGHT_S)
        if self._advisor is not None and not (self._thinking and self._thinking.is_alive()):
            self._advisor.close()

    def _suggest(self, advisor: StudyAdvisor) -> None:
        suggestion = advisor.ask()
        # The job may have ended while this was computed, so that no process reads the answer.
        with contextlib.suppress(BrokenPipeError):
            if suggestion is not None:
                self._answer("suggestion", **wire.suggestion_fields(suggestion))
            self._say_failure(advisor)

    def _say_failure(self, advisor: StudyAdvisor) -> None:
        """End once, in the thread that sees the end first; the lock is never released."""
        if advisor.failure and self._failure_said.acquire(blocking=False):
            self._answer("failed", why=advisor.failure)

    def _answer(self, kind: str, **fields: Any) -> None:
        os.write(self._answers, wire.encode(kind, **fields))


def serve(requests: int, answers: int) -> None:
    """Answer requests until the input ends or the parent process is gone.

    Args:
        requests: File descriptor to read from.
        answers: File descriptor to write to.
    """
    server, parent, unread = Server(answers), os.getppid(), b""
    while os.getppid() == parent:
        if not select.select([requests], [], [], _PARENT_CHECK_S)[0]:
            continue
        data = os.read(requests, 1 << 16)
        if not data:
            server.finish()
            return
        *lines, unread = (unread + data).split(b"\n")
        for line in lines:
            server.handle(wire.decode(line))


def main() -> None:
    """Entry point of the process."""
    # Ctrl-C and the launcher's SIGTERM reach the whole group; the parent ends this process when it has said all.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Output of libraries must not stand between the answers.
    answers = os.dup(1)
    os.dup2(2, 1)
    with contextlib.suppress(BrokenPipeError):
        serve(0, answers)
    # Everything is stored; the teardown of torch and SQLAlchemy would only keep the parent waiting.
    os._exit(0)


if __name__ == "__main__":
    main()
