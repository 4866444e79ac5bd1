"""Starting a benchmark's worker on several ranks and reading its output."""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringtune.benchmarks.harness import marks
from ringtune.errors import RingtuneError, UsageError
from ringtune.launch import LaunchOptions, launch

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_PACKAGE = "ringtune.benchmarks"
_KEPT_LINES = 25
_INTERRUPTED = 130
# Numeric libraries read these when they are imported, before a script can set the number of threads.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class WorkerJob:
    """A job of one worker program.

    Args:
        worker: module under `ringtune.benchmarks`, for example ``comm.hook_worker``.
        config: dataclass that the worker reads back from its only argument.
        ranks: number of ranks.
        hosts: as for `ringtune run -H`; None for this host.
        threads: compute threads per rank.
        run_dir: run folder, absolute; None for none.
    """

    worker: str
    config: DataclassInstance
    ranks: int
    hosts: str | None
    threads: int
    run_dir: Path | None = None


def run_worker(job: WorkerJob, on_event: Callable[[dict[str, Any]], None]) -> None:
    """Runs `job` to its end and hands every marked line of its ranks to `on_event`.

    Raises:
        RingtuneError: a rank failed; the message ends with what the job printed last.
        KeyboardInterrupt: the user ended the job.
    """
    printed: deque[str] = deque(maxlen=_KEPT_LINES)

    def on_line(rank: int, stream: str, line: str) -> None:
        event = marks.receive(line)
        if event is None:
            printed.append(f"[{rank}] {line}".rstrip())
        else:
            on_event(event)

    code = launch(
        LaunchOptions(
            command=[sys.executable, "-m", f"{_PACKAGE}.{job.worker}", json.dumps(asdict(job.config))],
            num_proc=job.ranks,
            hosts=job.hosts,
            environ={**os.environ, **thread_variables(job.threads)},
            run_dir=job.run_dir,
            echo=False,
            on_line=on_line,
        )
    )
    if code == _INTERRUPTED:
        raise KeyboardInterrupt
    if code != 0:
        tail = "\n".join(printed) or "(it printed nothing)"
        raise RingtuneError(f"{job.worker} on {job.ranks} ranks failed with exit code {code}:\n{tail}")


def thread_variables(threads: int) -> Mapping[str, str]:
    """Returns the variables that make numeric libraries use `threads` threads per rank."""
    return dict.fromkeys(_THREAD_VARIABLES, str(threads))


def parse_ranks(text: str) -> list[int]:
    """Returns the rank counts in ``1,2,4``, ascending.

    Raises:
        UsageError: empty, not numbers, or not positive.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(word.isdigit() and int(word) > 0 for word in words):
        raise UsageError(f"-np {text!r}: expected rank counts such as 1,2,4")
    return sorted({int(word) for word in words})
