"""Folders for what a benchmark needs while it runs: removed at its end, or by the next benchmark if it was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ringtune.errors import UsageError

PREFIX = "ringtune-bench-"
YOUNG_S = 60.0
"""Age from which on a folder that no process holds counts as left behind; a younger one may not be held yet."""


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Hold a fresh folder; before that, remove those that killed benchmarks of this user left."""
    remove_left_behind(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name:
        held = os.open(name, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)  # the lock ends with this process, however it ends
            yield Path(name)
        finally:
            os.close(held)


@contextmanager
def kept_or_scratch(folder: Path | None) -> Iterator[Path]:
    """Use a folder, made where it is missing, that stays; or else a scratch one.

    Raises:
        UsageError: There can be no such folder.
    """
    if folder is None:
        with scratch_folder() as found:
            yield found
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--folder {folder}: cannot be made ({error.strerror}): name one that can") from error
    yield folder


def remove_left_behind(where: Path, young_s: float = YOUNG_S) -> list[Path]:
    """Remove folders of benchmarks that are not running any more.

    Args:
        where: The folder of temporary files.
        young_s: Folders changed less than so many seconds ago stay.

    Returns:
        What was removed.
    """
    return [path for path in sorted(where.glob(f"{PREFIX}*")) if _is_left(path, young_s) and _removed(path)]


def _is_left(path: Path, young_s: float) -> bool:
    """Whether a path is a folder of this user's that no living process holds."""
    try:
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or time.time() - found.st_mtime < young_s:
            return False
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # another benchmark has just removed it
        return False
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(folder)
    return True


def _removed(path: Path) -> bool:
    with suppress(OSError):
        shutil.rmtree(path)
        return True
    return False
