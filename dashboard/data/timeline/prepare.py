"""Preparing the index of a large timeline in a process of its own: pages answer meanwhile, and see how far it is.

``python -m ringtune.dashboard.data.timeline.prepare RUN FOLDER`` prints a line ``SHARE WORDS`` at every step, and what
is wrong as a last line ``! SENTENCE``. It ends when its standard input does, that is, with the dashboard.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ringtune.dashboard.data import analysis
from ringtune.dashboard.data.files import Unreadable
from ringtune.dashboard.data.timeline import store, trace
from ringtune.dashboard.units import plain

_READ_SHARE = 0.6
"""Share of the whole time that reading takes."""
_INDEX_SHARE = 0.85
"""Share after which the index is there; the rest is for the analyses."""


@dataclass(frozen=True)
class Preparing:
    """An index that is not there yet: what share of the work is done, and what is being done."""

    share: float
    words: str


@dataclass
class _Job:
    """A preparation under way; ``ended_with`` holds a sentence when it failed, an empty one when it did not."""

    share: float = 0.0
    words: str = "starting"
    ended_with: str | None = None
    begun: float = field(default_factory=time.monotonic)
    seconds: float = 0.0


@dataclass
class Preparations:
    """Starts preparations, one at a time for each folder. Safe to use from several threads."""

    _jobs: dict[Path, _Job] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, run: Path, folder: Path) -> Preparing | None:
        """Return how far the preparation of a folder is, starting it if need be; None when it has ended well.

        Raises:
            Unreadable: It failed; the message says why.
        """
        with self._lock:
            job = self._jobs.get(folder)
            if job is None or (job.ended_with == "" and not folder.exists()):  # removed since, to make room
                job = self._jobs[folder] = _Job()
                threading.Thread(target=_follow, args=(job, run, folder), daemon=True).start()
        if job.ended_with:
            raise Unreadable(job.ended_with)
        return Preparing(job.share, job.words) if job.ended_with is None else None

    def share(self, folder: Path) -> float:
        """Return what share of the preparation of a folder is done; above 1 once it has ended, 0 when none ran here."""
        job = self._jobs.get(folder)
        return 0.0 if job is None else job.share if job.ended_with is None else 2.0

    def seconds(self, folder: Path) -> float:
        """Return how long the preparation of a folder took; 0 when none ran here."""
        job = self._jobs.get(folder)
        return job.seconds if job is not None else 0.0


def _follow(job: _Job, run: Path, folder: Path) -> None:
    """Run a preparation and take in what it says."""
    command = [sys.executable, "-m", __name__, str(run), str(folder)]
    problem = "preparing the timeline failed; there may be too little memory or disk"
    try:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                word, _, rest = line.strip().partition(" ")
                if word == "!":
                    problem = rest
                else:
                    job.share, job.words = float(word), rest
    finally:
        job.seconds = time.monotonic() - job.begun
        job.ended_with = "" if process.returncode == 0 else problem


def prepare(run: Path, folder: Path, on_progress: store.OnProgress) -> None:
    """Make the index of a run's timeline in a folder, and beside it the analyses of that timeline.

    Raises:
        Unreadable: The timeline cannot be read, or the index not be written.
    """
    files = trace.sources(run)
    with _reporting_read_bytes(files, on_progress):
        found, problems = trace.read_all(run, files)
    try:
        between = _INDEX_SHARE - _READ_SHARE
        store.save(folder, found, problems, lambda share, words: on_progress(_READ_SHARE + between * share, words))
        on_progress(_INDEX_SHARE, "comparing the ranks")
        analysis.save(folder, analysis.analyse(found, problems))
    except OSError as error:
        reason = error.strerror or "the disk did not take it"
        raise Unreadable(f"The timeline's index cannot be written to {store.cache_folder()}: {reason}") from error


@contextmanager
def _reporting_read_bytes(files: list[Path], on_progress: store.OnProgress) -> Iterator[None]:
    """Report twice a second how much of the files this process has read."""
    total, before, ended = sum(path.stat().st_size for path in files), _bytes_read(), threading.Event()

    def tell() -> None:
        while True:
            on_progress(_READ_SHARE * min(1.0, (_bytes_read() - before) / max(1, total)), "reading the trace")
            if ended.wait(0.5):
                return

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()


def _bytes_read() -> int:
    """What this process has read so far; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/io").read_text().split(None, 2)[1])
    except (OSError, IndexError, ValueError):
        return 0


def _end_with_the_parent() -> None:
    sys.stdin.read()
    os._exit(1)


def main(arguments: list[str], say: Callable[[str], None]) -> int:
    """Prepare what the arguments name; see the module."""
    run, folder = map(Path, arguments)
    try:
        prepare(run, folder, lambda share, words: say(f"{share:.3f} {words}"))
    except Unreadable as error:
        say(f"! {plain(error, 500)}")
        return 1
    return 0


if __name__ == "__main__":
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    sys.exit(main(sys.argv[1:], lambda line: print(line, flush=True)))
