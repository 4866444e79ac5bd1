"""JobRunner: runs the user's command with variables, watches its steps, and ends it when it has shown enough."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import orjson

from ringtune import layout
from ringtune.autoload import BACKEND, STEPS
from ringtune.errors import RingtuneError
from ringtune.launch import LaunchOptions, launch
from ringtune.tuner.restarts.choices import AS_IT_IS, Setting
from ringtune.tuner.restarts.session import Leave, Run
from ringtune.tuner.restarts.steps import StepTimes

Why = Literal["enough", "late", "ended"]
"""Why a run is over: its steps sufficed, its time was up, or it ended by itself."""

_POLL_S = 0.05
_LEAST_STEPS = 3
_END_GRACE_S, _FAILURE_GRACE_S = 5.0, 0.5


@dataclass(frozen=True)
class RunnerOptions:
    """How long a run is.

    Attributes:
        ranks: The ranks whose step logs lie in the run folder here: those of this machine, else rank 0.
        warmup_steps: First steps that do not count.
        steps: Steps counted; the run is ended after them.
        limit_s: A run that has not shown its steps by then has failed.
    """

    ranks: tuple[int, ...]
    warmup_steps: int = 10
    steps: int = 30
    limit_s: float = 600.0


class JobRunner:
    """A `Runner` of real jobs; each run has a folder of its own with its logs.

    Args:
        job: The command, without the variables that are tried.
        options: How long a run is.
    """

    def __init__(self, job: LaunchOptions, options: RunnerOptions) -> None:
        assert job.run_dir is not None
        self._job, self._options = job, options
        self._folder = job.run_dir
        self._count = 0

    def run(self, setting: Setting, leave: Leave) -> Run:
        """Run the command. An interrupt ends the job first.

        Raises:
            RingtuneError: The job cannot be started at all as it is.
        """
        folder = self._folder / layout.TUNING_FOLDER / f"run-{self._count:03}"
        self._count += 1
        job = _Job(self._options_of(folder, setting))
        steps = StepTimes(folder, self._options.ranks, self._options.warmup_steps)
        try:
            why = self._watch(job, steps, leave)
        finally:
            job.end()
        if job.error is not None and setting == AS_IT_IS:
            raise job.error
        times = steps.read()[: self._options.steps]
        failure = self._failure(job, len(times), why)
        return Run(tuple(times), job.wall_s, failure, steps.workload, *_shown(folder))

    def _options_of(self, folder: Path, setting: Setting) -> LaunchOptions:
        variables = {"RINGTUNE_AUTOTUNE": "0", STEPS: "1", **self._job.settings, **dict(setting)}
        return replace(self._job, run_dir=folder, settings=variables, keep_logs=True)

    def _watch(self, job: _Job, steps: StepTimes, leave: Leave) -> Why:
        """Wait until the run has ended or may be ended; returns the reason."""
        seen = 0
        while not job.ended.wait(_POLL_S):
            times = steps.read()
            if len(times) >= self._options.steps:
                return "enough"
            while seen < len(times):
                seen += 1
                if leave(times[:seen]):
                    return "enough"
            if job.wall_s > self._options.limit_s:
                return "late"
        return "ended"

    def _failure(self, job: _Job, made: int, why: Why) -> str:
        if job.error is not None:
            return str(job.error)
        if why == "late":
            return f"no end after {self._options.limit_s:.0f} s, {made} steps counted"
        if job.exit_code:
            return job.last_words()
        if why == "ended" and made < _LEAST_STEPS:
            return (
                f"{made} training steps were counted after {self._options.warmup_steps} steps of warm-up, at least "
                f"{_LEAST_STEPS} are needed (a step is a step() of a DistributedOptimizer, or of any optimizer after "
                "collectives of torch.distributed)"
            )
        return ""


def _shown(run: Path) -> tuple[str, dict[str, str]]:
    """Return the job's backend of torch.distributed, and what torch's parts were made with, by variable."""
    try:
        document = orjson.loads(layout.torch_file(run).read_bytes())
    except FileNotFoundError:  # no job of torch.distributed
        return BACKEND, {}
    return document["backend"] or BACKEND, document["made"]


class _Job:
    """A job in a thread, so that an interrupt reaches the session and not the launcher."""

    def __init__(self, options: LaunchOptions) -> None:
        self.ended = threading.Event()
        self.error: RingtuneError | None = None
        self.exit_code = 0
        self._said: list[str] = []
        self._lines: dict[int, str] = {}
        self._stop, self._stop_write = os.pipe()
        self._stopped = False
        self._begin = time.monotonic()
        self._took_s: float | None = None
        quiet = replace(
            options,
            echo=False,
            on_line=self._line,
            on_say=self._said.append,
            stop_fd=self._stop,
            failure_grace_s=_FAILURE_GRACE_S,
            interrupt_grace_s=_END_GRACE_S,
        )
        self._thread = threading.Thread(target=self._run, args=(quiet,), name="tuning-run", daemon=True)
        self._thread.start()

    @property
    def wall_s(self) -> float:
        """Time since the start, or up to the end."""
        return time.monotonic() - self._begin if self._took_s is None else self._took_s

    def end(self) -> None:
        """End the job if it still runs, and wait for it."""
        self._stopped = not self.ended.is_set()
        os.close(self._stop_write)
        self._thread.join()
        os.close(self._stop)

    def last_words(self) -> str:
        """Say how the job failed: what the launcher said of the first rank that did, and that rank's last line."""
        ends = [words for words in self._said if words.startswith("rank ")]
        said = ends[0].partition(", ending")[0] if ends else f"it exited with code {self.exit_code}"
        number = said.split()[1] if ends else ""
        line = self._lines.get(int(number), "") if number.isdigit() else next(iter(self._lines.values()), "")
        return f"{said}: {line}" if line and not said.endswith(line) else said

    def _run(self, options: LaunchOptions) -> None:
        try:
            code = launch(options)
            self.exit_code = 0 if self._stopped else code
        except RingtuneError as error:
            self.error = error
        finally:
            self._took_s = time.monotonic() - self._begin
            self.ended.set()

    def _line(self, rank: int, stream: str, text: str) -> None:
        if stream == "stderr" and text.strip():
            self._lines[rank] = text.strip()
