"""Writing a file that the user named: whole or not at all, so that an earlier file survives a failure.

A regular file appears, or is replaced, in one piece. A symbolic link stays, and the file it points to is replaced.
What is no regular file (a device, a pipe, ``/dev/stdout``) is written through, and so is a file that cannot be
replaced: one in a folder that is read-only, or one that is mounted by itself into a container.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from ringtune.errors import RingtuneError

_DESCRIPTORS = re.compile(r"/proc/(\d+)(?:/task/\d+)?/fd")
_LINKS = 40
"""Links followed at most, as in the kernel."""
_READER_S = 5.0
"""How long the writer of a named pipe waits for its reader."""


@contextmanager
def output_file(
    path: str | os.PathLike[str], error: type[RingtuneError] = RingtuneError, hint: str = "choose another output"
) -> Iterator[Path]:
    """Yield a path to write to; its content becomes that of `path` when the block ends without an error.

    Folders that are missing are made, and ``~`` is the home folder.

    Args:
        path: What the user named.
        error: Class of the error that says why it cannot be written.
        hint: What the user can do then.

    Raises:
        RingtuneError: It cannot be written (of class `error`); nothing is left behind.
        BrokenPipeError: It is a pipe whose reader has gone.
    """
    target = expanded(path)
    try:
        with _through(target) if _stays(target) else _replaced(target) as part:
            yield part
    except BrokenPipeError:
        raise
    except OSError as reason:
        raise error(f"{path}: cannot be written: {reason.strerror or reason}; {hint}") from reason


def write_output(path: str | os.PathLike[str], content: bytes, error: type[RingtuneError] = RingtuneError) -> None:
    """Write a file as `output_file` does.

    Raises:
        RingtuneError: It cannot be written.
    """
    with output_file(path, error) as part:
        part.write_bytes(content)


def make_private(folder: Path) -> Path:
    """Make a folder and those above it that are missing, for this user alone whatever the umask; return it.

    Run folders are such: traces and logs of a job concern nobody else until its user opens them (``chmod``).

    Raises:
        OSError: It cannot be made.
    """
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(mode=0o700, exist_ok=True)
    return folder


def open_private(path: Path, mode: str) -> FileIO:
    """Open a file of a run folder without a buffer, for this user alone whatever the umask; folders are made.

    Args:
        path: The file.
        mode: As for `open`: ``ab`` or ``wb``.

    Raises:
        OSError: It cannot be written.
    """
    make_private(path.parent)
    return FileIO(path, mode, opener=lambda name, flags: os.open(name, flags, 0o600))


def expanded(path: str | os.PathLike[str]) -> Path:
    """Return a path with ``~`` replaced by the home folder, where there is one."""
    found = Path(path)
    with suppress(RuntimeError):
        return found.expanduser()
    return found


def is_stdout(path: str | os.PathLike[str]) -> bool:
    """Whether a path leads to this process's standard output, which must then hold nothing else."""
    try:
        return os.path.samestat(os.stat(expanded(path)), os.fstat(1))
    except OSError:
        return False


def is_stream(path: Path) -> bool:
    """Whether a path leads to what is no regular file and no folder, or to an open descriptor."""
    if _descriptor(path) is not None:
        return True
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _stays(path: Path) -> bool:
    """Whether the file at a path must be written through, since it cannot or must not be replaced."""
    if is_stream(path):
        return True
    real = Path(os.path.realpath(path))
    return real.is_file() and (os.path.ismount(real) or not os.access(real.parent, os.W_OK))


@contextmanager
def _replaced(path: Path) -> Iterator[Path]:
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder, name a file in it")
    target.parent.mkdir(parents=True, exist_ok=True)
    # A name that is short enough however long the target's is, and that no other thread or process uses.
    part = target.with_name(f".{target.name[:48]}.{os.getpid()}.{threading.get_native_id()}.part")
    try:
        yield part
        if target.exists():
            part.chmod(stat.S_IMODE(target.stat().st_mode))
        elif not target.parent.stat().st_mode & 0o077:
            part.chmod(0o600)  # what nobody else may enter holds nothing that others may read
        os.replace(part, target)
    finally:
        with suppress(OSError):
            part.unlink()


@contextmanager
def _through(path: Path) -> Iterator[Path]:
    """Collect the content in a temporary file, since a pipe or a device takes it only from start to end."""
    with tempfile.TemporaryDirectory(prefix="ringtune-") as folder:
        part = Path(folder) / "part"
        yield part
        with suppress(AttributeError, ValueError):  # no standard output, or a closed one
            sys.stdout.flush()
        with open(part, "rb") as whole, open(_open(path), "wb") as stream:
            shutil.copyfileobj(whole, stream, 1 << 20)


def _open(path: Path) -> int:
    found = _descriptor(path)
    if found is not None and found[0] == os.getpid():
        return os.dup(
            found[1]
        )  # a duplicate shares the position, so a file that the shell opened for appending is appended to
    mode = path.stat().st_mode
    if stat.S_ISFIFO(mode):
        return _open_pipe(path)
    regular = (os.O_TRUNC if found is None else os.O_APPEND) if stat.S_ISREG(mode) else 0
    return os.open(path, os.O_WRONLY | os.O_CLOEXEC | regular)


def _open_pipe(path: Path) -> int:
    """Open a named pipe; waits a moment for its reader and fails without one."""
    give_up_at = time.monotonic() + _READER_S
    while True:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            break
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if time.monotonic() >= give_up_at:
                raise OSError(errno.ENXIO, "nobody reads this pipe") from None
            time.sleep(0.05)
    os.set_blocking(descriptor, True)
    return descriptor


def _descriptor(path: Path) -> tuple[int, int] | None:
    """Return process and number of the open descriptor that a path names (``/dev/stdout``, ``/dev/fd/5``)."""
    for _ in range(_LINKS):
        folder = _DESCRIPTORS.fullmatch(os.path.realpath(path.parent))
        if folder and path.name.isdigit():
            return int(folder[1]), int(path.name)
        if not path.is_symlink():
            return None
        path = path.parent / os.readlink(path)
    return None
