"""Reading parts: the files of records that ranks write, whole or while they still grow.

`PartReader` remembers where it ended and goes on from there: a page that follows a running job uses the same reader as
an analysis of one that has ended. Records are read by blocks, so that memory holds little beside the columns.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ringtune.errors import TraceIoError
from ringtune.timeline.reading.columns import SpanBuilder
from ringtune.timeline.reading.decoding import RecordDecoder
from ringtune.timeline.reading.part_layout import END, HEADER, MAGIC, PART_FORMAT, RECORD, WORD_BYTES
from ringtune.timeline.reading.stream import GZIP
from ringtune.timeline.spans import Columns, Instant, PartInfo, SpanTable, Trace

SUFFIXES = (".spans", ".spans.gz")

BLOCK_RECORDS = 1 << 15
"""Records that are read at once: few enough for the cache of a processor, and for malloc to use memory again."""
_UNPACK_GZIP = 31
_MOST_SPANS_A_RECORD = 2 * WORD_BYTES // 4
"""Of a batch: a word of numbers says when each of so many tensors was negotiated and queued."""


def is_part(path: Path) -> bool:
    """Whether a file is a part, by its name or by how it begins.

    Raises:
        OSError: It cannot be read.
    """
    return path.name.endswith(SUFFIXES) or _start(path).startswith(MAGIC)


def declared_size(path: Path) -> int:
    """Return the number of ranks of the job by a part's header; 0 where there is none.

    Raises:
        OSError: It cannot be read.
    """
    start = _start(path)
    if not start.startswith(MAGIC) or len(start) < HEADER.itemsize:
        return 0
    return int(np.frombuffer(start, HEADER, 1)["size"][0])


def recorded_spans(path: Path) -> int:
    """Return how many spans a part that is not packed says at its end; 0 where that cannot be true, or be read."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END) - HEADER.itemsize
            if size < RECORD.itemsize or size % RECORD.itemsize or not is_part(path):
                return 0
            file.seek(-RECORD.itemsize, os.SEEK_END)
            last = np.frombuffer(file.read(RECORD.itemsize), RECORD)[0]
    except (OSError, ValueError):  # reading all of it says why
        return 0
    count = int(last["begin_ns"]) if last["stage"] == END else 0
    return count if 0 < count <= _MOST_SPANS_A_RECORD * (size // RECORD.itemsize) else 0


def _start(path: Path) -> bytes:
    """The first bytes of a file, unpacked."""
    with open(path, "rb") as file:
        start = file.read(4096)
    if not start.startswith(GZIP):
        return start
    try:
        return zlib.decompressobj(_UNPACK_GZIP).decompress(start, HEADER.itemsize)
    except zlib.error:
        return b""


def read_part(path: Path, room: Columns | None = None) -> Trace:
    """Read a part, into these columns as far as they reach; what is torn at its end is left out.

    Raises:
        TraceIoError: It cannot be read, or its begin makes no sense.
    """
    reader = PartReader(path, SpanBuilder(room))
    try:
        reader.read(last=True)
    except OSError as error:
        raise TraceIoError(f"{path}: cannot be read: {error.strerror or error}") from error
    part = reader.part()
    if part is None:
        raise TraceIoError(
            f"{path}: this rank's part is torn inside its header (the rank was killed, or the disk was full), so "
            "nothing of it can be read"
        )
    part = replace(part, truncated=reader.torn)
    return Trace(reader.take(), reader.instants, (part,), "part", skipped=reader.skipped, path=path)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


class PartReader:
    """Reads one file of a rank's part from where it ended the last time.

    Args:
        path: The file, plain or packed with gzip.
        spans: Takes the spans; readers that share it give their texts the same codes.
        opened: Opens the file for reading and returns its descriptor, which is closed here.
    """

    def __init__(self, path: Path, spans: SpanBuilder, opened: Callable[[Path], int] = _open) -> None:
        self.path = path
        self._spans = spans
        self._opened = opened
        self._offset = 0
        self._inode: int | None = None
        self._unpacker: Any = zlib.decompressobj(_UNPACK_GZIP) if path.suffix == ".gz" else None
        self._rest = b""
        self._torn = False
        self._header: np.void | None = None
        self._decoder: RecordDecoder | None = None

    @property
    def instants(self) -> tuple[Instant, ...]:
        """Rare events read so far, on the part's own clock."""
        return () if self._decoder is None else tuple(self._decoder.instants)

    @property
    def instant_count(self) -> int:
        """How many there are."""
        return 0 if self._decoder is None else len(self._decoder.instants)

    @property
    def skipped(self) -> int:
        """How many records and spans made no sense and were left out."""
        return 0 if self._decoder is None else self._decoder.skipped + self._spans.skipped

    @property
    def torn(self) -> bool:
        """Whether the file has no end, or something that is not whole stands behind what was read."""
        return self._decoder is None or self._decoder.end is None or self._torn

    def take(self) -> SpanTable:
        """Return the spans read since the last time."""
        return self._spans.take()

    def read(self, *, last: bool = False) -> None:
        """Read everything that has come since the last time; `take` has the spans then.

        Args:
            last: Nothing more will come: a batch that is not whole is left out.

        Raises:
            TraceIoError: The file is another one than before or shorter, so that what was read of it is void; or its
                begin makes no sense.
            OSError: It cannot be read.
        """
        with self._file() as file:
            file.seek(self._offset)
            block = RECORD.itemsize * BLOCK_RECORDS
            while data := file.read(block):
                self._offset += len(data)
                self._rest += data if self._unpacker is None else self._unpacked(data)
                # A batch, or a text, that is longer than a block is read together with the next one.
                self._decode(last=False)
        if last:
            self._decode(last=True)
        self._torn = bool(self._rest)
        if self._unpacker is None:
            # Read again the next time: a full disk may have taken it back.
            self._offset -= len(self._rest)
            self._rest = b""

    def _file(self) -> BinaryIO:
        file = os.fdopen(self._opened(self.path), "rb")
        status = os.fstat(file.fileno())
        if self._inode not in (None, status.st_ino) or status.st_size < self._offset:
            file.close()
            raise TraceIoError(f"{self.path}: was replaced while it was followed; read it from its start")
        self._inode = status.st_ino
        return file

    def _unpacked(self, packed: bytes) -> bytes:
        """Unpack; what follows damage is left out."""
        found = b""
        try:
            while packed:
                found += self._unpacker.decompress(packed)
                packed = self._unpacker.unused_data
                if self._unpacker.eof:
                    self._unpacker = zlib.decompressobj(_UNPACK_GZIP)  # files may be several gzip members
        except zlib.error:
            return found
        return found

    def _decode(self, *, last: bool) -> None:
        if self._decoder is None:
            self._decoder = self._begun()
        if self._decoder is None:
            return
        count = len(self._rest) // RECORD.itemsize
        if count:
            taken = self._decoder.decode(np.frombuffer(self._rest, RECORD, count), last=last)
            self._rest = self._rest[taken * RECORD.itemsize :]

    def _begun(self) -> RecordDecoder | None:
        """Take the header off the begin; None before it has come."""
        start = self._rest[: len(MAGIC)]
        if not MAGIC.startswith(start):
            raise TraceIoError(f"{self.path}: no part: at offset 0 stands {start!r} in place of {MAGIC!r}")
        if len(self._rest) < HEADER.itemsize:
            return None
        header = np.frombuffer(self._rest, HEADER, 1)[0]
        version, record_bytes, rank = (int(header[name]) for name in ("format", "record_bytes", "rank"))
        if version != PART_FORMAT:
            raise TraceIoError(
                f"{self.path}: at offset 8 stands format {version}, this ringtune reads {PART_FORMAT}; update ringtune"
            )
        if record_bytes != RECORD.itemsize:
            raise TraceIoError(f"{self.path}: at offset 12 stands {record_bytes} in place of {RECORD.itemsize}; this "
                               "part is damaged, leave it out")  # fmt: skip
        if rank < 0:
            raise TraceIoError(
                f"{self.path}: its header names rank {rank} at offset 32; this part is damaged, leave it out"
            )
        self._header, self._rest = header, self._rest[HEADER.itemsize :]
        return RecordDecoder(self._spans, rank)

    def part(self) -> PartInfo | None:
        """Return what the file says about itself; None before its header has come."""
        if self._header is None or self._decoder is None:
            return None
        if not all(self._decoder.knows(int(self._header[text])) for text in ("host", "job")):
            return None
        header = self._header
        end = self._decoder.end
        return PartInfo(
            rank=int(header["rank"]),
            size=int(header["size"]),
            host=self._decoder.text(int(header["host"])),
            job=self._decoder.text(int(header["job"])),
            recorded=None if end is None else end[0],
            dropped=0 if end is None else end[1],
            truncated=end is None,
            unix_ns=int(header["unix_ns"]),
            monotonic_ns=int(header["monotonic_ns"]),
            path=self.path,
            file=int(header["file"]),
        )
