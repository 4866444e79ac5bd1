"""Writing the run folder: its description, the machines, and how it ended.

Documents are replaced in one piece, so a reader never sees half of one. Names come from `ringtune.layout`.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import orjson

from ringtune import layout
from ringtune.errors import RingtuneError
from ringtune.output_file import make_private, output_file
from ringtune.variable import without_password


@dataclass
class RunRecord:
    """Content of ``run.json``; see ``timeline/README.md`` for its fields.

    Attributes:
        name: Name of the run, usually the script's.
        command: Command line of a rank.
        created_unix_ns: When the run began, nanoseconds since 1970.
        ended_unix_ns: When it ended; None while it runs.
        status: ``running``, ``finished`` or ``failed``.
        exit_code: Exit code of the job; None while it runs or when unknown.
        size: Number of ranks.
        hosts: Host of each rank, by rank.
        config: Variables that were set, by name.
        knobs: First setting of the runtime.
        versions: Versions of ``ringtune``, ``python`` and ``torch``.
        labels: Free text by name; ``timeline`` holds the merged timeline's path when the user named one.
        failure: Of a failed job the first rank that did not end with 0: ``rank``, ``host``, ``exit_code``, ``after_s``
            (seconds since the start), ``lost`` (what it had lost of another rank), ``error`` (the exception that
            ended it), ``last_lines`` (of its standard error). None where no launcher saw it.
        failed_starts: Of a job that was started again (``ringtune run --restarts``): the failure of every start before
            the last, with ``ended_unix_ns``.
        generations: Of an elastic job each set of ranks: ``generation``, ``began_unix_ns``, ``ranks`` (numbers of their
            workers, under which all per-rank files of the run and its timeline stand) and ``first_step``.
    """

    name: str
    command: Sequence[str] = ()
    created_unix_ns: int = field(default_factory=time.time_ns)
    ended_unix_ns: int | None = None
    status: str = "running"
    exit_code: int | None = None
    size: int = 1
    hosts: Sequence[str] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    knobs: Mapping[str, int] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=lambda: versions())
    labels: Mapping[str, str] = field(default_factory=dict)
    failure: Mapping[str, Any] | None = None
    failed_starts: Sequence[Mapping[str, Any]] = ()
    generations: Sequence[Mapping[str, Any]] = ()


def planned_folder(name: str, base: Path | None = None) -> Path:
    """Return the absolute path a new run of that name would get; nothing is created.

    Args:
        name: Name of the run; characters unfit for a file name are replaced.
        base: Folder of all runs; default: ``runs`` in the working directory.
    """
    base = Path(layout.RUNS_FOLDER) if base is None else base
    wanted = base.absolute() / layout.run_name(name, time.time_ns())
    folder, count = wanted, 1
    while folder.exists():
        count += 1
        folder = wanted.with_name(f"{wanted.name}-{count}")
    return folder


def script_name() -> str:
    """Return the stem of the running script, ``python`` for an interactive interpreter or ``-c``."""
    program = sys.argv[0] if sys.argv else ""
    return Path(program).stem if program not in ("", "-c", "-m") else "python"


def create(run: Path, record: RunRecord) -> None:
    """Make the folder and describe the run.

    Raises:
        RingtuneError: The folder cannot be written.
    """
    command = [str(without_password(word)) for word in record.command]
    write_json(layout.run_file(run), {"format": layout.FORMAT, **asdict(replace(record, command=command))})


def begin(run: Path, record: RunRecord) -> None:
    """Like `create`, for a folder that an earlier job may have used: its per-rank files and its merged trace go.

    A rank that the new job does not have would otherwise seem to belong to it, and step logs would run on. Tuning and
    scaling stay: they hold histories. Call it before any rank has started.

    Raises:
        RingtuneError: The folder cannot be written.
    """
    clear_ranks(run)
    create(run, record)


def clear_ranks(run: Path, *, keep_logs: bool = False) -> None:
    """Remove the files of all ranks and the merged trace.

    Args:
        run: The run folder.
        keep_logs: Whether what the ranks printed stays.

    Raises:
        RingtuneError: A file cannot be removed.
    """
    old = [layout.timeline_file(run)]
    for folder in layout.RANK_FOLDERS:
        old += () if keep_logs and folder == layout.LOGS_FOLDER else (run / folder).glob(layout.RANK_FILES)
    for path in old:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise RingtuneError(f"{path}: cannot be replaced: {error.strerror or error}") from None


def read(run: Path) -> dict[str, Any] | None:
    """Return the description of the run, or None if there is none that can be read."""
    try:
        found = orjson.loads(layout.run_file(run).read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def update(run: Path, **changes: Any) -> None:
    """Change fields of the description, keeping the others; ``labels`` and ``config`` are merged.

    Raises:
        RingtuneError: The folder cannot be written.
    """
    document = read(run) or {"format": layout.FORMAT, **asdict(RunRecord(run.name))}
    for key, value in changes.items():
        merged = key in ("labels", "config") and isinstance(document.get(key), dict)
        document[key] = {**document[key], **value} if merged else value
    write_json(layout.run_file(run), document)


def finish(run: Path, exit_code: int | None, failure: Mapping[str, Any] | None = None) -> None:
    """Write how and when the run ended; an unknown exit code counts as success.

    Args:
        run: The run folder.
        exit_code: Of the job.
        failure: The rank that failed first; see `RunRecord`.
    """
    status = "failed" if exit_code else "finished"
    update(run, ended_unix_ns=time.time_ns(), status=status, exit_code=exit_code, failure=failure)


def write_machine(run: Path, rank: int, host: str) -> None:
    """Describe the machine of a rank.

    Raises:
        RingtuneError: The folder cannot be written.
    """
    document = {
        "format": layout.FORMAT,
        "rank": rank,
        "host": host,
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "pid": os.getpid(),
    }
    write_json(layout.machine_file(run, rank), document)


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Replace a JSON file in one piece, making its folder if needed.

    Raises:
        RingtuneError: It cannot be written.
    """
    hint = "choose another --run-dir"
    try:
        make_private(path.parent)
    except OSError as error:
        raise RingtuneError(f"{path}: cannot be written: {error.strerror or error}; {hint}") from error
    with output_file(path, hint=hint) as part:
        part.touch(mode=0o600)
        part.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def versions() -> dict[str, str]:
    """Return the versions that matter for reading the run's figures; packages are not imported for it."""
    found = {"python": platform.python_version()}
    for package in ("ringtune", "torch"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = ""
    return found


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
            return next(names, platform.machine())
    except OSError:
        return platform.machine()


def describe(run: Path, **facts: Any) -> None:
    """Write what a session knows of its run; a launcher may have described the run already.

    Args:
        run: The run folder.
        **facts: Fields of `RunRecord`.

    Raises:
        RingtuneError: The folder cannot be written.
    """
    if read(run) is None:
        create(run, replace(RunRecord(script_name(), command=[sys.executable, *sys.argv]), **facts))
    else:
        update(run, **facts)
