"""Jobs of real processes for tests: N ranks on this host that run functions sent to them.

Ranks are forked from a server that has imported torch already, or what there is of other frameworks, so a rank starts
in some milliseconds. A test sends a function of a module to all ranks and gets their results; one that does not answer
in time fails the test, and every process is killed when its job ends, whatever happened.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.ports import free_port

CONTEXT = multiprocessing.get_context("forkserver")
# torch._dynamo: the first optimizer of a process imports it, which takes a second. What is absent is left out.
CONTEXT.set_forkserver_preload(
    [
        "torch",
        "torch._dynamo",
        "ringtune.torch",
        "tests.jobs.cases.common",
        "tests.jobs.cases.training",
        "tests.jobs.cases.group",
        "optax",
        "ringtune.jax",
        "tensorflow",
        "tests.frameworks.cases",
    ]
)

# A bound on hangs alone: a starved machine may take any time up to it.
TIMEOUT_S = 120.0

# How long a process of a starved machine may lie without a processor between two of its instructions. A limit that the
# product promises gets this on top; both together are less than the ten seconds after which a leaving rank gives up
# on its peers, the next thing by which a rank could learn of a loss.
STARVED_S = 6.0
LOST_WITHIN_S = 2.0 + STARVED_S


@dataclass
class Failure:
    """An exception in a rank.

    Attributes:
        kind: Names of its class and of the bases, nearest first.
        message: Its text.
        trace: Where it happened.
        at_s: When, on the monotonic clock, in seconds.
    """

    kind: list[str]
    message: str
    trace: str
    at_s: float


class Rank:
    """One process of a job."""

    def __init__(self, environ: Mapping[str, str], output: Path) -> None:
        ours, theirs = CONTEXT.Pipe()
        self.pipe = ours
        self.output = output
        self.process = CONTEXT.Process(target=_serve, args=(theirs, dict(environ), str(output)), daemon=True)
        self.process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def send(self, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
        self.pipe.send((function, dict(options)))

    def receive(self, deadline: float) -> Any:
        """Return the result of the function sent last, or what went wrong; None from a dead process."""
        # A machine, or this process, may have stood still meanwhile: it looks once more.
        if not self.pipe.poll(max(0.0, deadline - time.monotonic())) and not self.pipe.poll(STARVED_S):
            raise TimeoutError(f"no answer; stderr:\n{self.stderr()}")
        try:
            return self.pipe.recv()
        except (EOFError, ConnectionResetError):  # the latter if it died before it had read what was sent to it
            return None

    def answer(self) -> Any:
        """Return the result of the function sent last; one that hangs fails the test."""
        return self.receive(time.monotonic() + TIMEOUT_S)

    def line_with(self, pattern: str) -> str:
        """Wait for a line on this rank's stderr that matches a pattern, and return it."""
        found: list[str] = []

        def look() -> bool:
            whole = self.stderr().rpartition("\n")[0]  # the last line may be half written
            found[:] = [line for line in whole.splitlines() if re.search(pattern, line)]
            return bool(found)

        wait_until(look, lambda: f"no line with {pattern} on stderr: {self.stderr()!r}")
        return found[0]

    def stderr(self) -> str:
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def death(self) -> str:
        """Say how the process died, with what it wrote."""
        self.process.join(TIMEOUT_S)
        return f"died with exit code {self.process.exitcode}; stderr:\n{self.stderr()}"

    def end(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.join(10)


class Job:
    """Ranks 0 to size-1, without a session until a function opens one.

    Args:
        size: Number of processes.
        folder: Where their output goes.
        environ: Variables of all ranks; ``{rank}`` in a value is replaced.
    """

    def __init__(self, size: int, folder: Path, environ: Mapping[str, str] | None = None) -> None:
        self.size = size
        base = {"OMP_NUM_THREADS": "1", **(environ or {})}
        self.ranks = [
            Rank(
                {name: value.replace("{rank}", str(rank)) for name, value in base.items()}, folder / f"rank-{rank}.err"
            )
            for rank in range(size)
        ]

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self.ranks:
            rank.end()

    def attempt(self, function: Callable[..., Any], /, timeout_s: float = TIMEOUT_S, **options: Any) -> list[Any]:
        """Run a function on all ranks; return results and `Failure` objects, by rank."""
        self.start(function, **options)
        return self.collect(timeout_s)

    def run(self, function: Callable[..., Any], /, timeout_s: float = TIMEOUT_S, **options: Any) -> list[Any]:
        """Run a function on all ranks and return its results; a failure of one is raised here."""
        self.start(function, **options)
        return self.results(timeout_s=timeout_s)

    def start(self, function: Callable[..., Any], /, **options: Any) -> None:
        """Send a function to all ranks without waiting."""
        for rank in self.ranks:
            rank.send(function, options)

    def results(self, ranks: Sequence[Rank] | None = None, timeout_s: float = TIMEOUT_S) -> list[Any]:
        """Return the results of functions that were sent to these ranks, by default all; a failure is raised here."""
        members = self.ranks if ranks is None else ranks
        found = self.collect(timeout_s, members)
        for number, result in enumerate(found):
            if isinstance(result, Failure):
                failure = f"{result.kind[0]}: {result.message}\n{result.trace}"
                raise AssertionError(f"rank {number} of {len(members)}: {failure}")
            assert result is not None, f"rank {number} of {len(members)} {members[number].death()}"
        return [result[0] for result in found]

    def collect(self, timeout_s: float = TIMEOUT_S, ranks: Sequence[Rank] | None = None) -> list[Any]:
        """Return what `start` began: for each rank a tuple with the result, a `Failure`, or None from the dead."""
        deadline = time.monotonic() + timeout_s
        found = []
        for number, rank in enumerate(self.ranks if ranks is None else ranks):
            try:
                found.append(rank.receive(deadline))
            except TimeoutError as error:
                raise AssertionError(f"rank {number} of {self.size} hangs: {error}") from None
        return found


def variables(size: int, **more: Any) -> dict[str, str]:
    """Return the environment of a job by hand, as ``{rank}`` templates, with a store on a free port."""
    given = {f"RINGTUNE_{name.upper()}": str(value) for name, value in more.items()}
    return {
        "RINGTUNE_RANK": "{rank}",
        "RINGTUNE_SIZE": str(size),
        "RINGTUNE_STORE": f"127.0.0.1:{free_port()}",
        "RINGTUNE_START_TIMEOUT": "60",
        **given,
    }


def wait_until(what: Callable[[], object], otherwise: Callable[[], str] = lambda: "this never came") -> None:
    """Wait until `what` returns something true; if it never does the test fails with the words of `otherwise`."""
    deadline = time.monotonic() + TIMEOUT_S
    while not what():
        assert time.monotonic() < deadline, otherwise()
        time.sleep(0.02)


def stop_server() -> None:
    """End the process that ranks are forked from."""
    from multiprocessing import forkserver

    forkserver._forkserver._stop()  # type: ignore[attr-defined]


def _serve(pipe: Connection, environ: dict[str, str], output: str) -> None:
    """Run functions until the pipe closes; the body of a rank."""
    with contextlib.suppress(ImportError):
        import torch

        torch.set_num_threads(1)
    os.environ.update(environ)
    os.chdir(Path(output).parent)  # a run folder without a name of its own is made in the working directory
    sys.argv = ["job"]
    target = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(target, 2)
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115 - the process's own
    signal.signal(signal.SIGINT, signal.default_int_handler)
    while True:
        try:
            function, options = pipe.recv()
        except EOFError:
            os._exit(0)
        try:
            answer: Any = (function(**options),)
        except (Exception, KeyboardInterrupt) as error:
            kinds = [kind.__name__ for kind in type(error).__mro__]
            answer = Failure(kinds, str(error), traceback.format_exc(), time.monotonic())
        pipe.send(answer)
