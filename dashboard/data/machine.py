"""The machines of the ranks, and the last lines that they printed."""

from __future__ import annotations

from dataclasses import dataclass

from ringtune import layout
from ringtune.dashboard.data.files import Unreadable, integer, read_document, read_tail, text
from ringtune.dashboard.data.runs import RunInfo, rank_files
from ringtune.timeline.doctor.failure import LOG_BYTES, LOG_LINES

RANK_LIMIT = 4096


@dataclass(frozen=True)
class Machine:
    """What one rank recorded about its machine; 0 and empty texts where it recorded nothing."""

    rank: int
    host: str
    cpu: str
    cores: int
    memory_bytes: int
    kernel: str
    python: str


@dataclass(frozen=True)
class MachineTable:
    """The machines by rank, and sentences about what could not be read."""

    machines: tuple[Machine, ...]
    problems: tuple[str, ...] = ()


def data(run: RunInfo) -> MachineTable:
    """Return the machines of a run."""
    machines, problems = [], []
    files = rank_files(run.path, run.path / layout.MACHINE_FOLDER, ".json")
    for rank, path in sorted(files.items())[:RANK_LIMIT]:
        try:
            document = read_document(run.path, path)
        except Unreadable as error:
            problems.append(str(error))
            continue
        machines.append(
            Machine(
                rank=rank,
                host=text(document.get("host")),
                cpu=text(document.get("cpu")),
                cores=integer(document.get("cores")),
                memory_bytes=integer(document.get("memory_bytes")),
                kernel=text(document.get("kernel")),
                python=text(document.get("python")),
            )
        )
    return MachineTable(tuple(machines), tuple(problems))


def last_words(run: RunInfo) -> dict[int, list[str]]:
    """Return the last lines that ranks printed, for runs that kept their output."""
    found = {}
    for rank, path in sorted(rank_files(run.path, run.path / layout.LOGS_FOLDER, ".log").items())[:64]:
        try:
            content, _ = read_tail(run.path, path, LOG_BYTES)
        except Unreadable:
            continue
        lines = [text(line) for line in content.decode("utf-8", "replace").splitlines() if line.strip()]
        if lines:
            found[rank] = lines[-LOG_LINES:]
    return found
