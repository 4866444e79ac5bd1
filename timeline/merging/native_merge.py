"""Merging with native code: as `ringtune.timeline.merge`, for many millions of events in a small memory.

Spans become records of 64 bytes in a file without a name beside the output, block by sorted block. Once the clocks are
known the blocks are merged while their lines are written, on all cores.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from threading import Lock

import numpy as np

from ringtune.errors import RingtuneError
from ringtune.timeline.merging.clocks import HostOffset
from ringtune.timeline.merging.out_of_core import Joined, frame, load_all, on_one_clock, plain_target, with_first
from ringtune.timeline.merging.parts import joinable, missing_ranks
from ringtune.timeline.merging.report import MergeReport
from ringtune.timeline.reading import native_lines
from ringtune.timeline.reading.interpretation import read_events
from ringtune.timeline.reading.native_lines import BLOCK_RECORDS, RECORD, Records, Run, Texts
from ringtune.timeline.spans import Trace
from ringtune.timeline.vocabulary import STAGE_LIMIT, Stage


class _Spill:
    """Records that wait in a file without a name. Any number of threads."""

    def __init__(self, folder: Path) -> None:
        self._file = TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - closed by __exit__
        self._lock = Lock()
        self._count = 0

    def __enter__(self) -> _Spill:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def fileno(self) -> int:
        """Descriptor of the file."""
        return self._file.fileno()

    def append(self, records: Records) -> int:
        """Write records; return the first one's place in the file, counted in records."""
        with self._lock:
            place = self._count
            self._count += len(records)
        self.write(place, records)
        return place

    def write(self, place: int, records: Records) -> None:
        """Write records over those at a place."""
        data, at = records.view(np.uint8).data, place * RECORD.itemsize
        while data:
            written = os.pwrite(self.fileno(), data, at)
            data, at = data[written:], at + written

    def read(self, place: int, count: int) -> Records:
        """Return records as an array of their own."""
        records = np.empty(count, RECORD)
        data, at = records.view(np.uint8).data, place * RECORD.itemsize
        while data:
            got = os.preadv(self.fileno(), [data], at)
            if got == 0:
                raise OSError("the temporary file of records has been truncated")
            data, at = data[got:], at + got
        return records


@dataclass(frozen=True)
class _Block:
    """Sorted records in the file: the first one's place and moment, how many, and which row of the part was first."""

    place: int
    count: int
    first_row: int
    first_ns: int


@dataclass
class _Part:
    """A file whose spans are in the spill. ``about`` holds at most the first of them; ``tracks``: rank and stage."""

    spill: _Spill
    about: Trace | None = None
    texts: Texts = field(default_factory=lambda: Texts((), ("",), ("",)))
    blocks: list[_Block] = field(default_factory=list)
    count: int = 0
    first_ns: int | None = None
    last_ns: int | None = None
    tracks: set[int] = field(default_factory=set)

    def keep(self, records: Records) -> None:
        """Sort records and move them to the disk."""
        native_lines.sort(records)
        first, last = int(records["begin_ns"][0]), int(records["end_ns"].max())
        self.blocks.append(_Block(self.spill.append(records), len(records), self.count, first))
        self.count += len(records)
        self.first_ns = first if self.first_ns is None else min(first, self.first_ns)
        self.last_ns = last if self.last_ns is None else max(last, self.last_ns)
        codes = records["rank"].astype(np.int64) * STAGE_LIMIT + native_lines.stages_of(records)
        self.tracks.update(np.unique(codes).tolist())

    def end(self, about: Trace, texts: Texts) -> _Part:
        """Take what else is known of the file; spans in ``about`` are moved to the disk."""
        self.texts = texts.followed_by(about.spans)
        for start in range(0, len(about.spans), BLOCK_RECORDS):
            self.keep(native_lines.records_of(about.spans.take(slice(start, start + BLOCK_RECORDS)), texts))
        self.about = with_first(about, self.first_ns)
        return self


def merge_natively(paths: Sequence[Path], output: Path) -> MergeReport:
    """Merge part files natively; arguments, result and errors are those of `ringtune.timeline.merge`."""
    with plain_target(output) as target, _Spill(target.parent) as spill:
        parts, problems = _load(spill, paths)
        of_trace = {id(part.about): part for part in parts}
        joined = on_one_clock(
            [part.about for part in parts if part.about is not None], lambda trace: of_trace[id(trace)].last_ns
        )
        ordered = [of_trace[id(trace)] for trace in joined.ordered]
        _write(spill, joined, ordered, problems, target)
    count = sum(part.count for part in parts)
    return MergeReport(output, count, joined.trace.parts, missing_ranks(joined.trace), tuple(problems))


def _load(spill: _Spill, paths: Sequence[Path]) -> tuple[list[_Part], list[str]]:
    """Read all files; the sentences are about those that are left out.

    Raises:
        RingtuneError: As for `merge`.
    """
    parts, foreign, unread = load_all(paths, lambda _, path: _load_one(spill, path))
    usable, problems = joinable(foreign)
    problems = sorted([*unread.values(), *problems])
    if not parts and not usable:
        raise RingtuneError(f"nothing to merge: {problems[0]}")
    return parts + [_in_memory(spill, trace) for trace in usable], problems


def _load_one(spill: _Spill, path: Path) -> _Part | Trace:
    part = _Part(spill)
    parsed = native_lines.parse(path, part.keep)
    if parsed is not None and parsed.about.source == "part" and not parsed.pairs:
        return part.end(parsed.about, parsed.texts)
    trace = read_events(path)
    return trace if trace.source != "part" or len(trace.parts) != 1 else _in_memory(spill, trace)


def _in_memory(spill: _Spill, trace: Trace) -> _Part:
    return _Part(spill).end(trace, Texts((), (), ()))


def _write(spill: _Spill, joined: Joined, parts: Sequence[_Part], problems: Sequence[str], target: Path) -> None:
    used = sorted({track for part in parts for track in part.tracks})
    head, last = frame(joined.trace, problems, [(code // STAGE_LIMIT, Stage(code % STAGE_LIMIT)) for code in used])
    runs = list(_runs(spill, joined, parts))
    last_place = max(((part.count - 1) * len(parts) + at + 1 for at, part in enumerate(parts) if part.count), default=0)
    with open(target, "wb", buffering=0) as file:
        file.write(head)
        writer = native_lines.merge_writer(
            (spill.fileno(), file.fileno(), len(head)), runs, [part.texts for part in parts]
        )
        while writer.write_some(_threads()):
            pass  # Python looks for Ctrl-C here
        writer.write_arrows(last_place)
        file.seek(writer.target_end)
        file.write(last)


def _threads() -> int:
    return min(8, os.cpu_count() or 1)


def _runs(spill: _Spill, joined: Joined, parts: Sequence[_Part]) -> Iterator[Run]:
    """All blocks, as `native_lines.merge_writer` takes them."""
    for number, (part, offset) in enumerate(zip(parts, joined.offsets, strict=True)):
        for block in part.blocks:
            first_ns, shift_ns = block.first_ns, -joined.trace.origin_ns
            if len(offset.at_ns) == 1:
                shift_ns += int(offset.offset_ns[0])
            else:
                first_ns = _on_the_jobs_clock(spill, block, offset)
            yield block.place, block.count, block.first_row, first_ns + shift_ns, shift_ns, number


def _on_the_jobs_clock(spill: _Spill, block: _Block, offset: HostOffset) -> int:
    """Move a block by an offset that changes with time; return its first moment."""
    records = spill.read(block.place, block.count)
    for column in ("begin_ns", "end_ns"):
        records[column] += offset(np.ascontiguousarray(records[column]))
    native_lines.sort(records)
    spill.write(block.place, records)
    return int(records["begin_ns"][0])
