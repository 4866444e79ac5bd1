"""Starts `ringtune run` as a user does, with small Python programs as ranks."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

HANG_S = 150.0  # a bound on hangs, not a measure: a starved machine may take any time up to it
DRIVER = Path(__file__).with_name("driver.py")
_SCRIPT_HEAD = """import os, signal, sys, time
rank, size = int(os.environ["RINGTUNE_RANK"]), int(os.environ["RINGTUNE_SIZE"])
"""


@dataclass
class Jobs:
    """Runs `ringtune run` in a folder of its own."""

    folder: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def script(self, text: str) -> str:
        """Write a Python program for the ranks; `rank` and `size` are there already."""
        path = self.folder / f"script{len(list(self.folder.glob('script*.py')))}.py"
        path.write_text(_SCRIPT_HEAD + textwrap.dedent(text), encoding="utf-8")
        return str(path)

    def start(
        self, *arguments: str, environ: Mapping[str, str] | None = None, command: str = "run"
    ) -> subprocess.Popen[bytes]:
        """Start `ringtune run`, or another command, with these arguments."""
        process = subprocess.Popen(
            [sys.executable, str(DRIVER), command, *arguments],
            cwd=self.folder,
            env={**os.environ, **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.started.append(process)
        return process

    def run(self, *arguments: str, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run `ringtune run` to its end."""
        process = self.start(*arguments, environ=environ)
        stdout, stderr = process.communicate(timeout=HANG_S)
        return subprocess.CompletedProcess(
            process.args, process.returncode, stdout.decode("utf-8", "replace"), stderr.decode("utf-8", "replace")
        )

    def run_script(self, num_proc: int, text: str, *flags: str) -> subprocess.CompletedProcess[str]:
        """Run a program on several ranks without a run folder."""
        return self.run("-np", str(num_proc), "--no-run-dir", *flags, sys.executable, self.script(text))


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    """Jobs in a temporary folder; a launcher that still runs at the end is killed."""
    jobs = Jobs(tmp_path)
    yield jobs
    for process in jobs.started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def wait_for(what: Callable[[], object], seconds: float = HANG_S) -> None:
    """Wait until `what` returns something true; a bound on a hang, not a measure."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, f"not true within {seconds} s: {what}"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
