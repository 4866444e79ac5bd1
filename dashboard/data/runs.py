"""The runs below a folder, and the state of each of them."""

from __future__ import annotations

import os
import re
import socket
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from ringtune import layout
from ringtune.dashboard.data.cache import Cache
from ringtune.dashboard.data.files import (
    Unreadable,
    integer,
    listing,
    mapping,
    read_document,
    read_tail,
    sequence,
    signature,
    text,
)
from ringtune.dashboard.units import long_duration, plain
from ringtune.errors import RingtuneError

RUN_LIMIT = 5000
SILENT_AFTER_NS = 10 * 60 * 10**9
LOOK_AGAIN_S = 2.0
"""How long it is believed that a run of other machines goes on, and that one of this machine writes."""
_TAIL_BYTES = 96 * 2**10
_NOTES = ("note", "notes")
"""Tags that are sentences (``ringtune run --tag note="..."``); they stand in a column of their own."""
_SIGNALS = {6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 13: "SIGPIPE", 15: "SIGTERM"}


class UnknownRun(RingtuneError):
    """The address names a run that is not below the served folder."""


@dataclass(frozen=True)
class RunInfo:
    """What ``run.json`` and the machine files say about a run, checked and bounded.

    Attributes:
        id: The run's path below the served folder; names it in addresses.
        path: Its folder.
        name: What the user called it.
        status: ``live``, ``finished``, ``failed``, ``lost`` (it says it runs, but nothing does) or ``unreadable``.
        ending: How it ended, in words; empty while it runs.
        ranks: Number of ranks.
        created_unix_ns, ended_unix_ns: Moments, 0 where unknown.
        tags: ``key=value`` of its labels.
        notes: What its label ``note`` says.
        step_samples: What the whole job works off in a step, by its tags ``batch`` (of a rank) or ``global-batch``; 0
            where it does not say.
        problems: Sentences about what could not be read.
    """

    id: str
    path: Path
    name: str
    status: str
    ending: str = ""
    ranks: int = 0
    created_unix_ns: int = 0
    ended_unix_ns: int = 0
    command: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    config: dict[str, str] = field(default_factory=dict)
    knobs: dict[str, int] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    notes: str = ""
    step_samples: int = 0
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunRow:
    """A line of the table of runs: the run, its newest step and median step time (NaN where it has no steps)."""

    info: RunInfo
    steps: int
    step_ns: float


class RunsFolder:
    """The folder that is served, or one run of its own. Only finds and reads; nothing is ever written.

    Raises:
        UnknownRun: From `find`, when no run has that id.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._known: dict[str, Path] = {}
        self._described = Cache(capacity=RUN_LIMIT)
        self._watches: dict[Path, _Watch] = {}
        self._rows = Cache(capacity=RUN_LIMIT)

    def paths(self) -> dict[str, Path]:
        """Return the runs' folders by id: the folder itself, its children, and theirs. Links are not followed."""
        found: dict[str, Path] = {}
        if layout.is_run(self.root):
            found[self.root.name] = self.root
        for child in _folders(self.root):
            if layout.is_run(child):
                found[child.name] = child
            for grandchild in _folders(child):
                if layout.is_run(grandchild):
                    found[f"{child.name}/{grandchild.name}"] = grandchild
            if len(found) >= RUN_LIMIT:
                break
        return found

    def find(self, run_id: str) -> RunInfo:
        """Return a run by its id; the id is only looked up, never joined to a path.

        The folder is searched only for an id that was not found before: a watched page asks again and again.
        """
        path = self._known.get(run_id)
        if path is None or not layout.is_run(path) or path.is_symlink() or path.parent.is_symlink():
            self._known = self.paths()
            path = self._known.get(run_id)
        if path is None:
            raise UnknownRun(f"There is no run {plain(run_id)!r} below {self.root}")
        return self._info(run_id, path)

    def rows(self) -> list[RunRow]:
        """Return all runs, the newest first."""
        rows = [self._row(run_id, path) for run_id, path in self.paths().items()]
        return sorted(rows, key=lambda row: (-row.info.created_unix_ns, row.info.id))

    def stamp(self) -> tuple[object, ...]:
        """Return what changes when a run comes, goes, or writes something that the table shows."""
        return tuple(
            (run_id, signature([layout.run_file(path), layout.step_log(path, 0)]))
            for run_id, path in self.paths().items()
        )

    def _row(self, run_id: str, path: Path) -> RunRow:
        info = self._info(run_id, path)
        log = layout.step_log(path, 0)
        steps, step_ns = self._rows.get(run_id, signature([log]), lambda: newest_steps(path, log))
        return RunRow(info, steps, step_ns)

    def _info(self, run_id: str, path: Path) -> RunInfo:
        """Return what `read_run` does, with ``run.json`` read only when it changed."""
        state = signature([layout.run_file(path)])
        described = self._described.get((run_id, path), state, lambda: _described(run_id, path))
        if described.status != "live":
            return described
        if path not in self._watches and len(self._watches) >= RUN_LIMIT:
            self._watches.clear()
        return _watched(described, self._watches.setdefault(path, _Watch(path)))


def _folders(parent: Path) -> list[Path]:
    try:
        with os.scandir(parent) as entries:
            found = [e for e in entries if not e.name.startswith(".") and e.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [Path(entry.path) for entry in sorted(found, key=lambda entry: entry.name)[:RUN_LIMIT]]


def read_run(run_id: str, path: Path) -> RunInfo:
    """Return what a run's folder says about it; a broken ``run.json`` gives a run with status ``unreadable``."""
    return _watched(_described(run_id, path), _Watch(path))


def _watched(info: RunInfo, watch: _Watch) -> RunInfo:
    """Return a run, as lost when it says that it runs and nothing does."""
    gone = watch.gone() if info.status == "live" else ""
    return replace(info, status="lost", ending=gone) if gone else info


def _described(run_id: str, path: Path) -> RunInfo:
    """Return what ``run.json`` says."""
    try:
        document = read_document(path, layout.run_file(path))
    except Unreadable as error:
        return RunInfo(run_id, path, plain(path.name), "unreadable", str(error), problems=(str(error),))
    status, ending = _status(document)
    labels = {key: value for key, value in mapping(document.get("labels")).items() if key != "timeline"}
    notes = " ".join(text(labels.pop(key)) for key in _NOTES if key in labels)
    known = integer(document.get("format"), layout.FORMAT) <= layout.FORMAT
    newer = f"{layout.RUN_FILE} has a newer format than this ringtune knows; some values may be missing"
    return RunInfo(
        id=run_id,
        path=path,
        name=text(document.get("name")) or plain(path.name),
        status=status,
        ending=ending,
        ranks=max(0, integer(document.get("size"))),
        created_unix_ns=integer(document.get("created_unix_ns")),
        ended_unix_ns=integer(document.get("ended_unix_ns")),
        command=tuple(text(part) for part in sequence(document.get("command"))[:200]),
        hosts=tuple(text(host) for host in sequence(document.get("hosts"))[:10000]),
        config=_words(document.get("config")),
        knobs={
            plain(key): integer(value) for key, value in layout.current_keys(mapping(document.get("knobs"))).items()
        },
        versions=_words(document.get("versions")),
        notes=notes,
        tags=tuple(_tag(key, value) for key, value in list(labels.items())[:20]),
        step_samples=_samples(labels, max(0, integer(document.get("size")))),
        problems=() if known else (newer,),
    )


def _words(value: object) -> dict[str, str]:
    return {plain(key): plain(inner, 300) for key, inner in list(mapping(value).items())[:300]}


def _tag(key: str, value: object) -> str:
    return plain(key, 40) if value in (True, "", None) else f"{plain(key, 40)}={plain(value, 40)}"


def _samples(labels: Mapping[str, object], ranks: int) -> int:
    """Return the samples of a step of the whole job; 0 where the tags do not say."""
    for name, times in (("global-batch", 1), ("global_batch", 1), ("batch", ranks)):
        said = str(labels.get(name, ""))
        if said.isascii() and said.isdecimal() and len(said) < 12:
            return int(said) * times
    return 0


def _status(document: dict[str, Any]) -> tuple[str, str]:
    """Return the status of a run and how it ended, in words."""
    said = document.get("status")
    code = document.get("exit_code")
    lasted = integer(document.get("ended_unix_ns")) - integer(document.get("created_unix_ns"))
    after = f" after {long_duration(lasted)}" if 0 < lasted < 10**18 else ""
    if said == "finished":
        return "finished", f"finished{after}"
    if said == "failed":
        return "failed", f"{_exit_words(code)}{after}"
    if said == "running":
        return "live", ""
    return "unreadable", "ringtune does not know its status"


def _exit_words(code: object) -> str:
    number = integer(code, -(10**9))
    if number == -(10**9):
        return "failed"
    signal = -number if number < 0 else number - 128
    if signal in _SIGNALS:
        return f"ended by {_SIGNALS[signal]}"
    return f"failed with exit code {number}"


class _Watch:
    """Checks whether a run that claims to be running is alive: usually one check of one process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._processes: list[Path] = []
        self._looked = -LOOK_AGAIN_S

    def gone(self) -> str:
        """Return why the run does not go on, or an empty text when it may well do."""
        if self._processes and not _any_there(self._processes):
            self._looked = -LOOK_AGAIN_S  # it may have been started again
        if time.monotonic() < self._looked + LOOK_AGAIN_S:
            return ""
        machines = _machines(self._path)
        here = [one for one in machines if one.get("host") == socket.gethostname() and integer(one.get("pid")) > 0]
        self._processes = [Path(f"/proc/{integer(one.get('pid'))}") for one in here]
        if here and not _any_there(self._processes):
            return "lost: its processes are gone, it was killed"
        silent_ns = time.time_ns() - _last_written_ns(self._path)
        if silent_ns > SILENT_AFTER_NS:
            return f"lost: wrote nothing for {long_duration(silent_ns)}"
        self._looked = time.monotonic()
        return ""


def _any_there(paths: list[Path]) -> bool:
    return any(path.exists() for path in paths)


def _last_written_ns(path: Path) -> int:
    files = [layout.run_file(path), layout.tuning_journal(path), *listing(path, layout.step_logs(path), ".jsonl")]
    files += listing(path, layout.timeline_parts(path), layout.PART_SUFFIXES)
    return max((entry[1] for entry in signature(files)), default=0)


def _machines(path: Path) -> list[dict[str, Any]]:
    found = []
    for file in listing(path, path / layout.MACHINE_FOLDER, ".json")[:64]:
        try:
            found.append(read_document(path, file))
        except Unreadable:
            continue
    return found


def newest_steps(run: Path, log: Path) -> tuple[int, float]:
    """Return the number of steps of a step log and the median duration of the newest ones in nanoseconds."""
    steps, walls = newest_walls(run, log)
    return steps, statistics.median(walls) if walls else float("nan")


def newest_walls(run: Path, log: Path) -> tuple[int, list[int]]:
    """Return the number of steps of a step log and the durations of the newest ones in nanoseconds.

    Only the end of the file is read: the table of runs must stay quick with hundreds of long runs.
    """
    walls, newest = [], -1
    for row in newest_rows(run, log, _TAIL_BYTES):
        newest = max(newest, integer(row.get("step"), -1))
        # The first step counts from init: it holds the start of the job, not a step's work.
        if integer(row.get("step")) > 0:
            walls.append(integer(row.get("end_ns")) - integer(row.get("begin_ns")))
    return newest + 1, walls


def newest_rows(run: Path, log: Path, limit_bytes: int) -> list[dict[str, Any]]:
    """Return the objects of the whole lines at the end of a log; none of one that cannot be read."""
    try:
        content, _ = read_tail(run, log, limit_bytes)
    except Unreadable:
        return []
    rows = []
    for line in content[: content.rfind(b"\n") + 1].splitlines():
        try:
            row = orjson.loads(line)
        except (orjson.JSONDecodeError, RecursionError):
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def rank_files(run: Path, folder: Path, suffix: str) -> dict[int, Path]:
    """Return the per-rank files of a folder by rank; other names are passed over."""
    name = re.compile(rf"rank-(\d{{5,7}}){re.escape(suffix)}")
    found = ((name.fullmatch(path.name), path) for path in listing(run, folder, suffix))
    return {int(match.group(1)): path for match, path in found if match}
