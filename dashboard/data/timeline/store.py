"""Indexes of large timelines on the disk: one folder each, of columns that are mapped into memory and read as needed.

They lie in the user's cache (``$XDG_CACHE_HOME/ringtune/timelines``), never in the run, which is only read. A folder's
name says which run and which state of its files it belongs to; it appears whole or not at all. numpy's own format, one
file a column: opening costs nothing, and a view reads only the pages it shows. It can hold no objects, so reading one
executes nothing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from ringtune.dashboard.data.files import Signature
from ringtune.dashboard.data.timeline.index import About, TimelineIndex, kept_instants
from ringtune.dashboard.data.timeline.levels import ITEM_TYPES, LANE_TYPES, LaneTable, build_lanes
from ringtune.dashboard.data.timeline.path import PATH_TYPES, PathTable, path_of
from ringtune.timeline.spans import Instant, Trace

FORMAT = 9
KEPT_BYTES = 12 * 2**30
"""Indexes beyond this size are removed, the least recently used first."""

_ABOUT = "about.json"
OnProgress = Callable[[float, str], None]
"""A callback that receives the share of the work that is done, and the name of the next phase."""


def cache_folder() -> Path:
    """Return the folder of all indexes."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "ringtune" / "timelines"


def place_of(run: Path, state: Signature) -> Path:
    """Return the folder of the index of a run in a state."""
    key = hashlib.sha256(repr((FORMAT, str(run.resolve()), state)).encode()).hexdigest()[:32]
    return cache_folder() / key


def save(folder: Path, trace: Trace, problems: tuple[str, ...], on_progress: OnProgress) -> None:
    """Make the index of a trace, on the disk from the start, and put it into a folder; older ones make room.

    Raises:
        OSError: It cannot be written.
    """
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    make_room(folder.parent)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    temporary.mkdir(mode=0o700)
    try:

        def allocate(name: str, kind: Any, length: int) -> NDArray[Any]:
            if not length:
                return np.empty(0, dtype=kind)
            column: NDArray[Any] = np.lib.format.open_memmap(temporary / f"span.{name}.npy", "w+", kind, (length,))
            return column

        on_progress(0.0, "sorting into lanes")
        table = build_lanes(trace.spans, allocate, lambda share: on_progress(0.8 * share, "sorting into lanes"))
        spans = trace.spans
        about = About(spans.names, spans.tensors, kept_instants(trace), trace.ranks, problems, spans.fact_texts)
        on_progress(0.8, "finding the critical path")
        _put(temporary, "item", table.items)
        _put(temporary, "path", path_of(trace).columns())
        (temporary / _ABOUT).write_bytes(orjson.dumps(_document(table, about), default=str))
        with suppress(OSError):
            shutil.rmtree(folder)
        os.replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _put(folder: Path, kind: str, columns: Mapping[str, NDArray[Any]]) -> None:
    for name, column in columns.items():
        np.save(folder / f"{kind}.{name}.npy", column, allow_pickle=False)


def _document(table: LaneTable, about: About) -> dict[str, Any]:
    instants = [(one.name, one.category, one.rank, one.at_ns, dict(one.args)) for one in about.instants]
    return {
        "format": FORMAT,
        "names": about.names,
        "tensors": about.tensors,
        "facts": about.facts,
        "instants": instants,
        "ranks": about.ranks,
        "problems": about.problems,
        "lanes": table.places,
    }


def open_index(folder: Path) -> TimelineIndex | None:
    """Return the index in a folder; None when there is none, or none that can be read."""
    try:
        document = orjson.loads((folder / _ABOUT).read_bytes())
        spans = {name: _column(folder, "span", name, kind) for name, kind in LANE_TYPES.items()}
        items = {name: _column(folder, "item", name, kind) for name, kind in ITEM_TYPES.items()}
        path = PathTable(**{name: _column(folder, "path", name, kind) for name, kind in PATH_TYPES.items()})
        os.utime(folder)  # marks it as used
    except (OSError, ValueError):
        return None
    instants = tuple(Instant(name, kind, rank, at, args) for name, kind, rank, at, args in document["instants"])
    names, tensors, ranks, problems = (tuple(document[name]) for name in ("names", "tensors", "ranks", "problems"))
    about = About(names, tensors, instants, ranks, problems, tuple(document["facts"]))
    return TimelineIndex.of(LaneTable(spans, items, document["lanes"]), about, path)


def _column(folder: Path, kind: str, name: str, dtype: Any) -> NDArray[Any]:
    file = folder / f"{kind}.{name}.npy"
    if kind == "span" and not file.exists():
        return np.empty(0, dtype=dtype)
    column: NDArray[Any] = np.load(file, mmap_mode=None if file.stat().st_size < 1 << 16 else "r", allow_pickle=False)
    if column.dtype != dtype:
        raise ValueError(f"{file}: not of this version")
    return column


def make_room(root: Path, kept_bytes: int = KEPT_BYTES) -> None:
    """Remove indexes beyond the limit, and the remains of interrupted preparations."""
    found = []
    for folder in root.iterdir():
        with suppress(OSError):
            used = folder.stat().st_mtime
            if folder.name.startswith(".") and time.time() - used > 3600:
                shutil.rmtree(folder, ignore_errors=True)
            elif not folder.name.startswith("."):
                found.append((used, sum(file.stat().st_size for file in folder.iterdir()), folder))
    total = 0
    for _, size, folder in sorted(found, reverse=True):
        total += size
        if total > kept_bytes:
            shutil.rmtree(folder, ignore_errors=True)
