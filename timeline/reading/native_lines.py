"""Files of ringtune's own, read by its native code: the quickest way, where `ringtune._native` is built.

A line that is not of the recorder's shape goes to `Collector`, as always; a damaged file is left to
`ringtune.timeline.reading.interpretation`, which tolerates damage. No other module of this package imports native code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
from numpy.typing import NDArray

from ringtune.errors import TraceIoError
from ringtune.timeline.reading.interpretation import interpret_lines
from ringtune.timeline.reading.stream import GZIP, EventStream
from ringtune.timeline.spans import SpanTable, Trace
from ringtune.timeline.vocabulary import OVERLAPPING_STAGES, stage_labels

if TYPE_CHECKING:
    from ringtune._native import MergeWriter, PartReader

RECORD = np.dtype(
    [(name, np.int64) for name in ("begin_ns", "end_ns", "bytes", "batch", "step")]
    + [(name, np.int32) for name in ("rank", "knobs_version", "name", "tensor", "facts")]
    + [("stage_and_row", np.uint32)]
)
"""`SpanRecord` of ``native/merging/span_record.h``: the stage in the lowest eight bits, the row above."""

BLOCK_RECORDS = 1 << 14
"""Records that are sorted at once: 1 MiB, so that they stay in a core's cache."""

PIECE_BYTES = 1 << 18

Records = NDArray[np.void]
Run = tuple[int, int, int, int, int, int]


@dataclass(frozen=True)
class Texts:
    """What the codes of a file's records stand for; the first tensor and the first facts are ""."""

    names: tuple[str, ...]
    tensors: tuple[str, ...]
    facts: tuple[str, ...]

    def as_json(self) -> tuple[list[str], list[str], list[str]]:
        """Return them as they stand in a file: strings in quotes, facts as they are."""
        return _quoted(self.names), _quoted(self.tensors), list(self.facts)

    def followed_by(self, spans: SpanTable) -> Texts:
        """Return these and behind them those of a table."""
        return Texts(self.names + spans.names, self.tensors + spans.tensors, self.facts + spans.fact_texts)


@dataclass(frozen=True)
class Parsed:
    """A file whose records were handed on: ``about`` is the trace with only the spans of lines that are not usual."""

    about: Trace
    texts: Texts
    pairs: int


def available() -> bool:
    """Whether this installation has the native code."""
    try:
        from ringtune._native import PartReader  # noqa: F401
    except ImportError:
        return False
    return True


def new_reader() -> PartReader | None:
    """Return a reader of lines that are fed to it; None where there is no native code."""
    if not available():
        return None
    from ringtune._native import PartReader

    return PartReader(stage_labels())


def parse(path: Path, keep: Callable[[Records], None]) -> Parsed | None:
    """Read a part or a merged file; None when anything in it is not as ringtune writes it.

    Args:
        path: The file, plain or gzip.
        keep: Takes blocks of records, in the file's order, which are its own until it returns. When the answer is None
            they are of no use.

    Raises:
        OSError: From ``keep``.
        TraceIoError: The file cannot be read.
    """
    from ringtune._native import PartReader

    reader = PartReader(stage_labels())

    def hand_on() -> None:
        keep(reader.records().view(RECORD))
        reader.clear()

    for piece in _pieces(path):
        reader.feed(piece)
        if reader.odd:
            return None
        if reader.pending >= BLOCK_RECORDS:
            hand_on()
    reader.finish()
    if reader.odd:
        return None
    if reader.pending:
        hand_on()
    with suppress(orjson.JSONDecodeError, TraceIoError):
        about = interpret_lines(path, reader.rest.splitlines())
        names, tensors = (unquoted(texts) for texts in (reader.names, reader.tensors))
        if about is not None:
            return Parsed(about, Texts(names, tensors, _facts(reader.facts)), reader.pairs)
    return None


def _pieces(path: Path) -> Iterator[bytes | NDArray[np.uint8]]:
    """The file's bytes; each piece is gone when the next one is asked for.

    Raises:
        TraceIoError: The file cannot be read.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            if file.read(len(GZIP)) != GZIP:
                file.seek(0)
                place = np.empty(PIECE_BYTES, np.uint8)  # one for all: fresh memory costs more than parsing it
                while size := file.readinto(place.data):
                    yield place[:size]
                return
    except OSError as error:
        raise TraceIoError(f"{path}: cannot be read ({error.strerror or error}); check the path") from error
    yield from EventStream(path).chunks()


def unquoted(texts: Sequence[bytes]) -> tuple[str, ...]:
    """Return texts as they stand in a file between quotes."""
    return tuple(orjson.loads(b'["' + b'","'.join(texts) + b'"]')) if texts else ()


def _quoted(texts: Sequence[str]) -> list[str]:
    return [orjson.dumps(text).decode() for text in texts]


def _facts(texts: Sequence[bytes]) -> tuple[str, ...]:
    known = orjson.loads(b"[{" + b"},{".join(texts) + b"}]")
    return tuple(orjson.dumps(facts)[1:-1].decode() for facts in known)


def stages_of(records: Records) -> NDArray[np.uint8]:
    """The stages of records."""
    return records["stage_and_row"].astype(np.uint8)  # the lowest byte


def records_of(spans: SpanTable, texts: Texts) -> Records:
    """Return spans that are in memory as one block of records, their codes going on behind the texts'."""
    records = np.zeros(len(spans), RECORD)
    for column in (name for name in RECORD.names or () if name != "stage_and_row"):
        records[column] = getattr(spans, column)
    records["stage_and_row"] = spans.stage | np.arange(len(spans), dtype=np.uint32) << 8
    for column, known in (("name", texts.names), ("tensor", texts.tensors), ("facts", texts.facts)):
        records[column] += len(known)
    return records


def sort(records: Records) -> None:
    """Put a block of records into the order of a merged file, in place."""
    from ringtune._native import sort_records

    assert records.flags.writeable and records.flags.c_contiguous
    sort_records(records.ctypes.data, len(records))


def merge_writer(files: tuple[int, int, int], runs: Sequence[Run], texts: Sequence[Texts]) -> MergeWriter:
    """Return what turns sorted blocks of records into lines.

    Args:
        files: Descriptors of the file of records and of the output, and where in that to go on.
        runs: Blocks: offset within the file of records, count, row of its first record within the part, first moment
            when moved, by how much it is to be moved, number of the part.
        texts: Of each part.
    """
    from ringtune._native import MergeWriter

    always_paired = sum(1 << stage for stage in OVERLAPPING_STAGES)
    parts: list[Any] = [one.as_json() for one in texts]
    return MergeWriter(files, list(runs), parts, stage_labels(), always_paired)
