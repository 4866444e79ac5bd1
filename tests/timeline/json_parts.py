"""Parts as versions before 2 wrote them: JSON arrays of events, which are read once more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ringtune import layout
from ringtune.timeline.merging.writer import (
    Event,
    argument_rows,
    atomic_file,
    counter_args,
    cycle_args,
    event_lines,
    instant_event,
    metadata,
    process_events,
    span_args,
)
from ringtune.timeline.spans import Instant, PartInfo, SpanTable
from ringtune.timeline.synthetic.generate import GeneratedJob
from ringtune.timeline.vocabulary import END_EVENT, FOREIGN_STAGES, FORMAT, PART_EVENT, Stage

BLOCK_EVENTS = 16384


def write_json_parts(job: GeneratedJob, folder: Path) -> list[Path]:
    """Write ``rank-NNNNN.json`` for every rank into the folder and return the paths."""
    paths = []
    for rank, (spans, instants) in job.on_own_clocks().items():
        paths.append(folder / f"{layout.rank_stem(rank)}.json")
        write_json_part(paths[-1], job.part_info(rank), spans, instants)
    return paths


def _write_events(file: Any, blocks: Iterator[Sequence[Event]]) -> None:
    first = True
    for block in blocks:
        if block:
            file.write(b"" if first else b",\n")
            file.write(event_lines(block))
            first = False


def write_json_part(path: Path, info: PartInfo, spans: SpanTable, instants: Sequence[Instant]) -> None:
    """Write one rank's part.

    Raises:
        TraceIoError: The file cannot be written.
    """
    header = process_events(
        info.rank, f"rank {info.rank}", {int(stage): stage.label for stage in Stage if stage not in FOREIGN_STAGES}
    )
    about = {"format": FORMAT, "rank": info.rank, "size": info.size, "host": info.host, "job": info.job}
    header.append(metadata(PART_EVENT, info.rank, 0, **about, unix_ns=info.unix_ns, monotonic_ns=info.monotonic_ns))
    recorded = len(spans) if info.recorded is None else info.recorded
    end = [] if info.truncated else [metadata(END_EVENT, info.rank, 0, recorded=recorded, dropped=info.dropped)]
    with atomic_file(path) as file:
        file.write(b"[\n")
        rare = [instant_event(instant, "p") for instant in instants]
        _write_events(file, iter([header, rare, *_part_blocks(spans), end]))
        file.write(b"\n]\n")


def _part_blocks(spans: SpanTable) -> Iterator[list[Event]]:
    for start in range(0, len(spans), BLOCK_EVENTS):
        block = spans.take(slice(start, start + BLOCK_EVENTS))
        columns = (block.name, block.stage, block.rank, block.begin_ns, block.end_ns)
        rows = zip(*(column.tolist() for column in columns), argument_rows(block), strict=True)
        yield [_part_event(row, spans) for row in rows]


def _part_event(row: tuple[Any, ...], spans: SpanTable) -> Event:
    name, stage, rank, begin, end, arguments = row
    event: Event = {"name": spans.names[name], "cat": Stage(stage).label, "pid": rank, "tid": stage, "ts": begin / 1000}
    if stage == Stage.CYCLE:
        return {**event, "ph": "i", "s": "p", "args": cycle_args(arguments)}
    if stage == Stage.COUNTER:
        return {**event, "ph": "C", "args": counter_args(spans.names[name], arguments)}
    return {**event, "ph": "X", "dur": (end - begin) / 1000, "args": span_args(arguments, spans)}
