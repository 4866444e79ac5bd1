"""How parts of remote hosts reach rank 0 when a job ends: through the job's store, bounded in time.

Under ``<job>/part/<rank>`` every rank but 0 says ``none`` (recorded nothing), ``file`` (its part lies in the run
folder on rank 0's host) or ``upload``. An upload follows: the names of its files, one a line, under ``.../names``, and
each file as gzip members ``.../0/0``, ``.../0/1``, …; an empty one ends it. Rank 0 empties each member it has taken and
sets ``.../0/0/taken``. While it is there to take them, an upload runs ahead of it by so much only that the store, which
has a limit for each client and one for all, never holds whole traces.
"""

from __future__ import annotations

import os
import time
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ringtune import layout
from ringtune.output_file import open_private

SEGMENT_BYTES = 8 << 20
"""Bytes of a part that travel under one key, before packing."""


class Store(Protocol):
    """The part of ``_native.StoreClient`` that is needed here; waiting raises when the time is up."""

    def set(self, key: str, value: bytes) -> None:
        """Set a key."""

    def get(self, key: str, timeout_ns: int) -> bytes:
        """Wait for a key and return its value."""


@dataclass(frozen=True)
class Limits:
    """How long rank 0 waits for the ranks' reports of what they have, and for all uploads together."""

    report_ns: int = 5_000_000_000
    upload_ns: int = 60_000_000_000


@dataclass(frozen=True)
class Pace:
    """How far an upload runs ahead of rank 0.

    Attributes:
        ahead_bytes: Packed bytes that it has not taken yet; one member may always be there.
        wait_ns: How long it is waited for in all.
    """

    ahead_bytes: int
    wait_ns: int


_ALL_AHEAD_BYTES = 1 << 30


def pace_of(ranks: int, limits: Limits) -> Pace:
    """Return the pace of a job with so many ranks, which send at the same time."""
    return Pace(_ALL_AHEAD_BYTES // max(16, ranks), limits.report_ns + limits.upload_ns)


def report_state(store: Store, job: str, rank: int, state: str) -> None:
    """Report what this rank has: ``none``, ``file`` or ``upload``."""
    store.set(_key(job, rank), state.encode())


def upload(store: Store, job: str, rank: int, files: Sequence[Path], pace: Pace | None = None) -> None:
    """Send the files of a part, segment by segment.

    Args:
        store: Client of the job's store.
        job: Key of the job.
        rank: This rank.
        files: Its files.
        pace: How far to run ahead of rank 0; None where that takes nothing before all is sent.
    """
    deadline = time.monotonic_ns() + (pace.wait_ns if pace is not None else 0)
    ahead: deque[tuple[str, int]] = deque()

    def put(key: str, packed: bytes) -> None:
        while pace is not None and ahead and len(packed) + sum(size for _, size in ahead) > pace.ahead_bytes:
            store.get(f"{ahead[0][0]}/taken", _left(deadline))
            ahead.popleft()
        store.set(key, packed)
        ahead.append((key, len(packed)))

    store.set(f"{_key(job, rank)}/names", "\n".join(file.name for file in files).encode())
    for place, file in enumerate(files):
        number = 0
        for number, packed in enumerate(_packed_segments(file)):  # the end needs the last number
            put(f"{_key(job, rank)}/{place}/{number}", packed)
        put(f"{_key(job, rank)}/{place}/{number + 1}", b"")


def _packed_segments(part: Path) -> Iterator[bytes]:
    with open(part, "rb") as file:
        while True:
            segment = file.read(SEGMENT_BYTES)
            yield zlib.compress(segment, 1)
            if len(segment) < SEGMENT_BYTES:
                return


class Collection:
    """Rank 0's side: gathers what the other ranks have.

    Attributes:
        problems: Ranks whose part did not come, one sentence each.
    """

    def __init__(self, store: Store, job: str, limits: Limits) -> None:
        self.problems: list[str] = []
        self._store = store
        self._job = job
        self._limits = limits

    def states(self, ranks: Iterable[int]) -> dict[int, str]:
        """Wait until these ranks have reported what they have; silent ones are missing from the answer."""
        deadline = time.monotonic_ns() + self._limits.report_ns
        states = {}
        for rank in ranks:
            # A rank that died says nothing: whatever the store raises then, its part may still lie on the disk.
            with suppress(Exception):
                states[rank] = self._store.get(_key(self._job, rank), _left(deadline)).decode("ascii", "replace")
        return states

    def fetch(self, ranks: Sequence[int], folder: Path) -> None:
        """Take the uploads of these ranks and write their files into this folder, each whole or not at all."""
        deadline = time.monotonic_ns() + self._limits.upload_ns
        for rank in ranks:
            try:
                named = f"{_key(self._job, rank)}/names"
                names = self._store.get(named, _left(deadline)).decode().splitlines()
                self._store.set(named, b"")
                for place, name in enumerate(names):
                    if Path(name).name != name or layout.rank_of(Path(name)) != rank:
                        raise ValueError(f"it calls a file {name!r}")
                    self._fetch_one(f"{_key(self._job, rank)}/{place}", folder / name, deadline)
            except Exception as error:  # the store's own classes are not known in this room
                self.problems.append(f"the part of rank {rank} did not arrive: {error}")

    def _fetch_one(self, prefix: str, path: Path, deadline: int) -> None:
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            with open_private(temporary, "wb") as file:
                number = 0
                while packed := self._store.get(key := f"{prefix}/{number}", _left(deadline)):
                    file.write(zlib.decompress(packed))
                    self._store.set(key, b"")
                    self._store.set(f"{key}/taken", b"")
                    number += 1
            os.replace(temporary, path)
        finally:
            with suppress(OSError):
                temporary.unlink()


def _key(job: str, rank: int) -> str:
    return f"{job}/part/{rank}"


def _left(deadline_ns: int) -> int:
    """Time left, at least a millisecond so that what is there already is still found."""
    return max(1_000_000, deadline_ns - time.monotonic_ns())
