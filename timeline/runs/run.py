"""Run folders: everything one job left behind, read tolerantly.

``list_runs("runs")`` gives one `Run` per folder, newest first. A broken file never raises and never hides another
run: what could not be read stands in `Run.problems` (path, what is wrong) and the field keeps its empty value.
Light things (run.json) are read at once; the rest is read when first asked for and then kept.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import orjson

from ringtune import layout
from ringtune.errors import RingtuneError
from ringtune.timeline.runs.records import (
    ScalingRecord,
    StepTable,
    Trial,
    TuningHistory,
    TuningResult,
    scaling_record,
    step_table,
    trial,
    tuning_result,
)

Result = TypeVar("Result")


class Run:
    """One run folder.

    Attributes:
        path: The folder.
        problems: What could not be read, one sentence each; grows as more of the run is looked at.
        document: ``run.json`` as written ({} when unreadable).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: list[str] = []
        self.document: Mapping[str, Any] = self._read_document()

    @property
    def name(self) -> str:
        """The run's name; the folder's name when run.json has none."""
        return str(self.document.get("name") or self.path.name)

    @property
    def status(self) -> str:
        """``running``, ``finished`` or ``failed``; ``unknown`` when run.json does not say."""
        return str(self.document.get("status") or "unknown")

    @property
    def size(self) -> int:
        """Number of ranks; 0 when not known."""
        return self._integer("size") or 0

    @property
    def created_unix_ns(self) -> int | None:
        """When the run began."""
        return self._integer("created_unix_ns")

    @property
    def ended_unix_ns(self) -> int | None:
        """When the run ended; None while it runs."""
        return self._integer("ended_unix_ns")

    @property
    def exit_code(self) -> int | None:
        """Exit code of the job; None while it runs."""
        return self._integer("exit_code")

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host of every rank, by rank."""
        return tuple(str(host) for host in self._list("hosts"))

    @property
    def command(self) -> tuple[str, ...]:
        """The command of the job."""
        return tuple(str(word) for word in self._list("command"))

    @property
    def config(self) -> Mapping[str, Any]:
        """Variables in force, by name."""
        return self._object("config")

    @property
    def knobs(self) -> Mapping[str, Any]:
        """Knobs the job started with."""
        return layout.current_keys(self._object("knobs"))

    @property
    def versions(self) -> Mapping[str, Any]:
        """Versions of ringtune, Python, torch."""
        return self._object("versions")

    @property
    def labels(self) -> Mapping[str, Any]:
        """Free labels; ``timeline`` holds the merged file's path when the user named one."""
        return self._object("labels")

    @cached_property
    def machines(self) -> Mapping[int, Mapping[str, Any]]:
        """Machine description of every rank that left one."""
        found = {}
        for rank, path in self._rank_files(self.path / layout.MACHINE_FOLDER, ".json"):
            description = self._try(path, _object_in, path)
            if description is not None:
                found[rank] = description
        return found

    @cached_property
    def steps(self) -> Mapping[int, StepTable]:
        """Step statistics of every rank that left some; a torn last line is left out silently."""
        found = {}
        for rank, path in self._rank_files(layout.step_logs(self.path), ".jsonl"):
            table = self._try(path, self._step_table, rank, path)
            if table is not None:
                found[rank] = table
        return found

    @cached_property
    def tuning(self) -> TuningHistory:
        """The tuning journal; empty (false) when the run was not tuned."""
        path = layout.tuning_journal(self.path)
        if not path.is_file():
            return TuningHistory()
        events = self._try(path, self._events, path) or ()
        return TuningHistory(events, tuple(self._trials(path, events)), tuple(self._results(path, events)))

    @cached_property
    def scaling(self) -> tuple[ScalingRecord, ...]:
        """Scaling records, by name."""
        records = []
        for path in sorted(layout.scaling_folder(self.path).glob("*.json")):
            record = self._try(path, _scaling_record, path)
            if record is not None:
                records.append(record)
        return tuple(records)

    @property
    def timeline(self) -> Path | None:
        """The merged timeline if there is one: run.json's label first, then ``timeline.json[.gz]``."""
        named = self.labels.get("timeline")
        usual = layout.timeline_file(self.path)
        candidates = [Path(named)] if isinstance(named, str) and named else []
        candidates += [usual, usual.with_name(usual.name + ".gz")]
        return next((path for path in candidates if path.is_file() and not self._is_part(path)), None)

    def _is_part(self, path: Path) -> bool:
        """Whether a file is what rank 0 shows while the job runs."""
        with suppress(OSError):
            return any(path.samefile(part) for part in layout.timeline_parts(self.path).glob("*.json"))
        return False

    @property
    def parts(self) -> Mapping[int, Path]:
        """The ranks' own parts of the timeline; of several files of a rank the last one."""
        found: dict[int, Path] = {}
        for suffix in layout.PART_SUFFIXES:
            found |= dict(self._rank_files(layout.timeline_parts(self.path), suffix))
        return found

    @property
    def logs(self) -> Mapping[int, Path]:
        """What the ranks printed, where the launcher kept it."""
        return dict(self._rank_files(self.path / layout.LOGS_FOLDER, ".log"))

    @property
    def stacks(self) -> Mapping[int, Path]:
        """Where ranks stand in Python that do not get on, or stood when they ended too early."""
        return dict(self._rank_files(self.path / layout.STACKS_FOLDER, ".txt"))

    @property
    def stalls(self) -> Mapping[int, Path]:
        """What waits for which ranks, as ranks reported it."""
        return dict(self._rank_files(self.path / layout.STACKS_FOLDER, ".json"))

    def _read_document(self) -> Mapping[str, Any]:
        path = layout.run_file(self.path)
        document = self._try(path, _object_in, path) or {}
        version = document.get("format", layout.FORMAT)
        if version != layout.FORMAT:
            self.problems.append(f"{path}: format {version!r}, this ringtune reads {layout.FORMAT}; update ringtune")
        return document

    def _try(self, path: Path, read: Callable[..., Result], *arguments: object) -> Result | None:
        try:
            return read(*arguments)
        except OSError as error:
            self.problems.append(f"{path}: cannot be read ({error.strerror or error})")
        except (ValueError, TypeError, OverflowError) as error:
            self.problems.append(f"{path}: {error}")
        return None

    def _step_table(self, rank: int, path: Path) -> StepTable:
        return step_table(rank, self._lines(path))

    def _events(self, path: Path) -> tuple[Mapping[str, Any], ...]:
        return tuple(layout.current_keys(line) for line in self._lines(path))

    def _lines(self, path: Path) -> Iterator[Mapping[str, Any]]:
        """Objects of a JSON-lines file. A writer may be at work: a torn last line is no problem, others are."""
        lines = path.read_bytes().split(b"\n")
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                if number < len(lines):
                    self.problems.append(f"{path}: line {number} is not JSON ({error}); left out")
                continue
            if isinstance(row, dict):
                yield row
            else:
                self.problems.append(f"{path}: line {number} is no JSON object; left out")

    def _trials(self, path: Path, events: tuple[Mapping[str, Any], ...]) -> Iterator[Trial]:
        for event in events:
            if event.get("event") == "trial":
                row = self._try(path, trial, event)
                if row is not None:
                    yield row

    def _results(self, path: Path, events: tuple[Mapping[str, Any], ...]) -> Iterator[TuningResult]:
        for event in events:
            if event.get("event") == "result":
                row = self._try(path, tuning_result, event)
                if row is not None:
                    yield row

    def _rank_files(self, folder: Path, suffix: str) -> list[tuple[int, Path]]:
        found = []
        for path in folder.glob(f"rank-*{suffix}"):
            try:
                found.append((layout.rank_of(path), path))
            except ValueError as error:
                message = str(error)
                if message not in self.problems:
                    self.problems.append(message)
        return sorted(found)

    def _integer(self, key: str) -> int | None:
        value = self.document.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def _list(self, key: str) -> list[Any]:
        value = self.document.get(key)
        return value if isinstance(value, list) else []

    def _object(self, key: str) -> Mapping[str, Any]:
        value = self.document.get(key)
        return value if isinstance(value, dict) else {}


def open_run(folder: str | os.PathLike[str]) -> Run:
    """Open one run folder.

    Raises:
        RingtuneError: There is no such folder (a broken one opens, with problems).
    """
    path = Path(folder)
    if not path.is_dir():
        raise RingtuneError(f"{path}: no such folder; name a run folder, for example one under {layout.RUNS_FOLDER}/")
    return Run(path)


def list_runs(root: str | os.PathLike[str]) -> list[Run]:
    """Return the runs under a folder, newest first; the folder may also be a run itself.

    Subfolders that hold none of a run's files are left out; an unreadable or missing root gives an empty list.
    """
    base = Path(root)
    if _looks_like_run(base):
        return [Run(base)]
    try:
        folders = [entry for entry in base.iterdir() if entry.is_dir()]
    except OSError:
        return []
    runs = [Run(folder) for folder in folders if _looks_like_run(folder)]
    return sorted(runs, key=lambda run: (-(run.created_unix_ns or 0), run.path.name))


def _looks_like_run(folder: Path) -> bool:
    """A folder that lost its run.json still counts when it holds parts, steps, tuning or scaling records."""
    inside = (layout.TIMELINE_FOLDER, layout.STEPS_FOLDER, layout.TUNING_FOLDER, layout.SCALING_FOLDER)
    if folder.name in inside:
        return False
    return layout.run_file(folder).exists() or any((folder / name).is_dir() for name in inside)


def _scaling_record(path: Path) -> ScalingRecord:
    return scaling_record(path.stem, _json(path))


def _json(path: Path) -> Any:
    try:
        return orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error})") from None


def _object_in(path: Path) -> Mapping[str, Any]:
    document = _json(path)
    if not isinstance(document, dict):
        raise ValueError(f"expected a JSON object, got {type(document).__name__}")
    return document
