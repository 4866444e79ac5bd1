"""Reading files of an untrusted run: bounded, without following links out, never executing anything.

A run folder may come from anywhere (a colleague, a mail, a cluster). So a file is only read when it is a regular file
inside the run's folder and not larger than a limit; an error in it becomes a sentence for the page.
"""

from __future__ import annotations

import itertools
import math
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from ringtune.dashboard.units import plain, size
from ringtune.errors import RingtuneError

DOCUMENT_LIMIT_BYTES = 16 * 2**20
"""Largest JSON document (run.json, machine, scaling) that is read."""

Signature = tuple[tuple[str, int, int, int], ...]
"""Names, times of change in nanoseconds, sizes in bytes and inodes of files: changes when any of them does."""


class Unreadable(RingtuneError):
    """A file of a run cannot be shown; the message says which and why, without its content."""


def signature(paths: Iterable[Path]) -> Signature:
    """Return what changes when one of the files does; a missing file counts as empty."""
    found = []
    for path in paths:
        try:
            status = path.stat(follow_symlinks=False)
            found.append((path.name, status.st_mtime_ns, status.st_size, status.st_ino))
        except OSError:
            found.append((path.name, 0, 0, 0))
    return tuple(found)


def open_inside(run: Path, path: Path) -> int:
    """Open a regular file that really lies in the run's folder and return its descriptor.

    Raises:
        Unreadable: The file is missing, not a regular file, or a link that leads out of the folder.
    """
    try:
        inside = _is_inside(path, run)
        # O_NONBLOCK: opening a pipe in the folder must not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC) if inside else -1
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "its path makes no sense"
        raise Unreadable(f"{_shown(run, path)} cannot be read: {reason.lower()}") from error
    if not inside:
        raise Unreadable(f"{_shown(run, path)} is a link out of the run's folder; it is not followed")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Unreadable(f"{_shown(run, path)} is not a regular file; it is not read")
    return descriptor


def read_bytes(run: Path, path: Path, limit_bytes: int = DOCUMENT_LIMIT_BYTES) -> bytes:
    """Return the content of a file of the run.

    Raises:
        Unreadable: See `open_inside`; or the file is larger than ``limit_bytes``.
    """
    with os.fdopen(open_inside(run, path), "rb") as stream:
        content = stream.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise Unreadable(f"{plain(path.name)} is larger than {size(limit_bytes)}; it is not read")
    return content


def read_document(run: Path, path: Path) -> dict[str, Any]:
    """Return a JSON document that is an object.

    Raises:
        Unreadable: See `read_bytes`; or it is not JSON, or not an object.
    """
    content = read_bytes(run, path)
    try:
        document = orjson.loads(content)
    except (orjson.JSONDecodeError, RecursionError) as error:
        raise Unreadable(f"{plain(path.name)} is not valid JSON ({plain(error, 80)})") from error
    if not isinstance(document, dict):
        raise Unreadable(f"{plain(path.name)} holds no JSON object")
    return document


def read_tail(run: Path, path: Path, limit_bytes: int) -> tuple[bytes, bool]:
    """Return the last ``limit_bytes`` of a file from a line's start, and whether something before was left out.

    Raises:
        Unreadable: See `open_inside`.
    """
    with os.fdopen(open_inside(run, path), "rb") as stream:
        length = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, length - limit_bytes))
        content = stream.read(limit_bytes)
    if length <= limit_bytes:
        return content, False
    return content[content.find(b"\n") + 1 :], True


def listing(run: Path, folder: Path, suffix: str | tuple[str, ...]) -> list[Path]:
    """Return the files of a folder of the run with a suffix, by name; empty when there is no such folder."""
    try:
        if not _is_inside(folder, run):
            return []
        names = [name for name in os.listdir(folder) if name.endswith(suffix) and not name.startswith(".")]
    except (OSError, ValueError):
        return []
    return [folder / name for name in sorted(names)]


def _shown(run: Path, path: Path) -> str:
    return plain(path.relative_to(run) if path.is_relative_to(run) else path.name)


def _is_inside(path: Path, run: Path) -> bool:
    """Whether a path, all links followed, lies in a folder. Asked at every poll: `Path.resolve` takes longer."""
    inside, root = str(path), str(run)
    below = inside.removeprefix(f"{root}/").split("/")
    if inside != root and inside.startswith(f"{root}/") and ".." not in below:
        steps = itertools.accumulate(below, lambda place, part: f"{place}/{part}", initial=root)
        if not any(map(os.path.islink, itertools.islice(steps, 1, None))):
            return True  # of the folder's own path both have the same links
    return f"{os.path.realpath(path)}/".startswith(f"{os.path.realpath(run).rstrip('/')}/")


def integer(value: object, default: int = 0) -> int:
    """Return a whole number of a document; the default for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return default
    return int(value)


def real(value: object) -> float:
    """Return a number of a document; NaN for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return math.nan
    return float(value)


def text(value: object, default: str = "") -> str:
    """Return a text of a document, on one line and of bounded length; the default for anything else."""
    return plain(value, 500) if isinstance(value, str) else default


def mapping(value: object) -> dict[str, Any]:
    """Return an object of a document; an empty one for anything else."""
    return {str(key): inner for key, inner in value.items()} if isinstance(value, dict) else {}


def sequence(value: object) -> list[Any]:
    """Return a list of a document; an empty one for anything else."""
    return value if isinstance(value, list) else []
