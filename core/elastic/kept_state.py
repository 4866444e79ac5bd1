"""The committed state on the hosts' own disks, to go on from when all processes of a job were started anew.

Under torchrun, ``ringtune run --restarts`` and a batch system's requeue no process outlives a failure, and what a
commit has copied in memory is gone with them. With ``RINGTUNE_ELASTIC_STATE`` one rank of each host writes it into that
folder as well; at the next start the newest one found on any host is given to all ranks.
"""

from __future__ import annotations

import os
import pickle
import stat
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ringtune import session
from ringtune.errors import InvalidArgument
from ringtune.output_file import make_private

if TYPE_CHECKING:
    from ringtune.common.elastic import State

_FILE = "state"
_PART = "state.{}.part"
"""What a rank is writing; hosts may share a folder."""
_HEADER = struct.Struct("<8sQ")
"""Magic word and number of the commit; a pickled `State.saved` follows."""
_MAGIC = b"RTSTATE1"


class KeptState:
    """The state of one training loop as it lies on disks.

    Args:
        state: The state.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._live = False

    def sync(self) -> None:
        """Let all ranks have one state: that of a rank which trained already, else the newest kept one, else rank 0's.

        Raises:
            InvalidArgument: What is kept is of another training, or may have been written by another user.
        """
        folder = _folder()
        if folder is not None:
            self._find(folder)
        self._state.sync()
        self._live = True

    def done(self) -> None:
        """Training has ended well: a later one in this folder begins anew."""
        folder = _folder()
        if folder is not None and _writes():
            try:
                for one in (folder / _FILE, *folder.glob(_PART.format("*"))):
                    one.unlink(missing_ok=True)
            except OSError as error:
                session.warn(f"{one} is left, remove it before a new training in {folder}: {error.strerror}")

    def _find(self, folder: Path) -> None:
        from ringtune.numpy.objects import allgather_object, broadcast_object

        state = self._state
        number = state._commits if self._live else _number_of(folder / _FILE)
        told = allgather_object((self._live, number), "elastic.kept")
        newest = max(one for _, one in told)
        if any(live for live, _ in told) or not newest:
            state._commits = max(state._commits, *(one for live, one in told if live), 0)
            return
        owner = next(rank for rank, (_, one) in enumerate(told) if one == newest)
        here = session.require().rank == owner
        saved = broadcast_object(_read(folder / _FILE) if here else None, owner, "elastic.kept.state")
        state.take_saved(saved)
        state._commits = newest
        if here:
            print(f"ringtune: training goes on from commit {newest}, kept in {folder}", file=sys.stderr, flush=True)


def keep(state: State) -> None:
    """Write what a commit has saved, on one rank of each host; what cannot be written is said, and training goes on."""
    folder = _folder()
    if folder is None or not _writes():
        return
    import cloudpickle  # type: ignore[import-untyped]

    part = _PART.format(session.require().rank)
    try:
        # By its descriptor all is done in one folder, whatever its path leads to by then.
        at = os.open(make_private(folder), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with open(_made(part, at), "wb") as file:
                file.write(_HEADER.pack(_MAGIC, state._commits))
                cloudpickle.dump(state.saved(), file)
            os.replace(part, _FILE, src_dir_fd=at, dst_dir_fd=at)
        finally:
            with suppress(OSError):
                os.unlink(part, dir_fd=at)
            os.close(at)
    except OSError as error:
        session.warn(f"commit {state._commits} is not kept in {folder}: {error.strerror or error}")


def _made(name: str, at: int) -> int:
    """Make a new file in a folder: who may write there could have put a link of this name to a file of this user."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=at)
    return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=at)


def _folder() -> Path | None:
    now = session.state.current
    return now.config.elastic_state if now is not None else None


def _writes() -> bool:
    return session.require().local_rank == 0


def _number_of(file: Path) -> int:
    """Return the commit that a file holds; 0 where there is none."""
    try:
        with _open(file) as (number, _):
            return number
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise InvalidArgument(
            f"{file}: cannot be read: {error.strerror}; remove it, or name another folder in RINGTUNE_ELASTIC_STATE"
        ) from None


def _read(file: Path) -> Any:
    """Return the state in a file. Who may replace the file in its folder could have done so since it was looked at."""
    with _open(file) as (_, rest):
        return pickle.load(rest)


@contextmanager
def _open(file: Path) -> Iterator[tuple[int, BinaryIO]]:
    """Give the commit that a file of this user holds, and the file where the pickled state begins."""
    # A named pipe would keep this rank waiting, and a link could lead to the state of another training.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(file, flags), "rb") as opened:
        about = os.fstat(opened.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o022:
            raise InvalidArgument(f"{file} may have been written by another user: it is not read; name another folder")
        head = opened.read(_HEADER.size)
        magic, number = _HEADER.unpack(head) if len(head) == _HEADER.size else (b"", 0)
        if magic != _MAGIC:
            raise InvalidArgument(f"{file} is no state that ringtune kept: remove it, or name another folder")
        yield int(number), opened
