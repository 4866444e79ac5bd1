"""The merged file: one process a rank, one track a stage or thread, arrows between the ranks of a batch or message.

Spans that overlap others of their rank and stage become async pairs (``b``/``e``): complete events (``X``) on one
track must nest, or viewers draw them wrongly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from ringtune.timeline.analysis.messages import messages
from ringtune.timeline.merging import native_writer
from ringtune.timeline.merging.writer import (
    BLOCK_EVENTS,
    Event,
    argument_rows,
    atomic_file,
    counter_args,
    cycle_args,
    event_lines,
    instant_event,
    process_events,
    span_args,
)
from ringtune.timeline.spans import Ints, Mask, PartInfo, SpanTable, Trace
from ringtune.timeline.vocabulary import (
    FLOW_CATEGORY,
    FORMAT,
    KNOBS,
    MESSAGE_CATEGORY,
    OVERLAPPING_STAGES,
    STAGE_LIMIT,
    STEP_NAME,
    STEP_PREFIX,
    Stage,
)


def write_merged(path: Path, trace: Trace, *, problems: Sequence[str] = (), missing: Sequence[int] = ()) -> None:
    """Write a joined trace.

    Raises:
        TraceIoError: The file cannot be written; nothing is left behind.
    """
    head = head_events(trace, track_names(trace.spans))
    about = about_document(trace, problems, missing)
    first = [*head, *instant_events(trace)]
    with atomic_file(path) as file:
        file.write(b'{"displayTimeUnit":"ms","traceEvents":[\n' + event_lines(first[1:]))
        file.write(b",\n" if len(first) > 1 else b"")
        if native_writer.available():
            native_writer.write_spans(file, trace.spans, path)
        else:
            for block in _all_blocks(in_file_order(trace.spans)):
                file.write(event_lines(block) + b",\n" if block else b"")
        for block in _message_blocks(trace.spans):
            file.write(event_lines(block) + b",\n")
        # The last event, which has no comma behind it, is one that there always is.
        file.write(event_lines(first[:1]) + b'\n],"otherData":' + orjson.dumps({"ringtune": about}) + b"}\n")


def about_document(trace: Trace, problems: Sequence[str], missing: Sequence[int]) -> Event:
    """Return what the file says about itself."""
    return {
        "format": FORMAT,
        "job": trace.parts[0].job if trace.parts else "",
        "size": trace.size,
        "origin_ns": trace.origin_ns,
        "parts": [_part_entry(part) for part in trace.parts],
        "missing": list(missing),
        "problems": list(problems),
        "skipped": trace.skipped,
    }


def tracks_of(spans: SpanTable) -> Ints | NDArray[np.uint8]:
    """Return the track of each span: its stage, and ``n * STAGE_LIMIT`` more for those of the n-th thread."""
    thread, names = spans.threads
    return thread[spans.facts] * STAGE_LIMIT + spans.stage if len(names) > 1 else spans.stage


def track_names(spans: SpanTable) -> dict[int, dict[int, str]]:
    """Return the names of the tracks on which a rank has spans, by rank and track."""
    track, names = tracks_of(spans), spans.threads[1]
    limit = len(names) * STAGE_LIMIT
    found: dict[int, dict[int, str]] = {}
    for code in np.unique(spans.rank * np.int64(limit) + track).tolist():
        rank, number = divmod(code, limit)
        thread, stage = divmod(number, STAGE_LIMIT)
        found.setdefault(rank, {})[number] = names[thread] or Stage(stage).label
    return found


def in_file_order(spans: SpanTable) -> SpanTable:
    """Sort by begin, rank, stage, longest first; equal spans keep their order."""
    return spans.take(np.lexsort((-spans.end_ns, spans.stage, spans.rank, spans.begin_ns)))


def written_async(spans: SpanTable) -> Mask:
    """Which spans must be async pairs; the table is in file order."""
    chosen = spans.in_stage(*sorted(OVERLAPPING_STAGES))
    groups = spans.rank * np.int64(len(spans.threads[1]) * STAGE_LIMIT) + tracks_of(spans)
    order = np.argsort(groups, kind="stable")
    bounds = np.flatnonzero(np.diff(groups[order])) + 1
    for members in np.split(order, bounds):
        if len(members) and not chosen[members[0]]:
            chosen[members] = badly_nested(spans.begin_ns[members], spans.end_ns[members])
    return chosen


def badly_nested(begin: np.ndarray[Any, Any], end: np.ndarray[Any, Any]) -> Mask:
    """Which intervals of one track (sorted by begin, longest first) reach out of one they begin in."""
    bad = np.zeros(len(begin), dtype=np.bool_)
    if np.all(begin[1:] >= end[:-1]):
        return bad  # the usual case: one after another
    enclosing: list[int] = []
    for index, (start, stop) in enumerate(zip(begin.tolist(), end.tolist(), strict=True)):
        while enclosing and enclosing[-1] <= start:
            enclosing.pop()
        if enclosing and stop > enclosing[-1]:
            bad[index] = True
        else:
            enclosing.append(stop)
    return bad


def _all_blocks(spans: SpanTable) -> Iterator[list[Event]]:
    pairs = written_async(spans)
    # Ids count the pairs in file order; flow ids follow, so that no two things share one.
    identities = np.cumsum(pairs)
    for start in range(0, len(spans), BLOCK_EVENTS):
        chosen = slice(start, start + BLOCK_EVENTS)
        yield _span_events(spans.take(chosen), pairs[chosen].tolist(), identities[chosen].tolist())
    yield from _flow_blocks(spans, first_id=int(identities[-1]) + 1 if len(spans) else 1)


def _span_events(block: SpanTable, pairs: list[bool], identities: list[int]) -> list[Event]:
    events: list[Event] = []
    columns = (block.name, block.stage, tracks_of(block), block.rank, block.begin_ns, block.end_ns)
    rows = zip(*(column.tolist() for column in columns), argument_rows(block), pairs, identities, strict=True)
    names = block.names
    labels = {int(stage): stage.label for stage in Stage}
    for name, stage, track, rank, begin, end, arguments, is_pair, identity in rows:
        event: Event = {"name": names[name], "cat": labels[stage], "pid": rank, "tid": track, "ts": begin / 1000}
        if is_pair:
            own = {"local": identity}  # of the process: with a global one, Perfetto draws it under no rank
            events.append({**event, "ph": "b", "id2": own, "args": span_args(arguments, block)})
            events.append({**event, "ph": "e", "id2": own, "ts": end / 1000})
        elif stage == Stage.COUNTER:
            events.append({**event, "ph": "C", "args": counter_args(names[name], arguments)})
        elif stage == Stage.CYCLE and begin == end:
            events.append({**event, "ph": "i", "s": "p", "args": cycle_args(arguments)})
        else:
            if stage == Stage.STEP and names[name] == STEP_NAME and (number := arguments[3]) >= 0:
                # Not of pairs: Perfetto draws a track for each name of these.
                event["name"] = f"{STEP_PREFIX}{number}"
            events.append({**event, "ph": "X", "dur": (end - begin) / 1000, "args": span_args(arguments, block)})
    return events


def _flow_blocks(spans: SpanTable, first_id: int) -> Iterator[list[Event]]:
    """Arrows from the rank whose batch began first to the one whose began last."""
    batches = spans.take(spans.in_stage(Stage.COMMUNICATE) & (spans.batch > 0))
    order = np.lexsort((np.arange(len(batches)), batches.batch))
    rows = batches.take(order)
    events: list[Event] = []
    identity = first_id
    for members in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(rows.batch)) + 1):
        ends = _one_a_rank(rows.rank[members].tolist(), rows.begin_ns[members].tolist())
        if len(ends) < 2:
            continue
        for place, (rank, begin) in enumerate(ends):
            event = _flow_event(identity, rank, begin)
            if place == 0:
                event["ph"] = "s"
            elif place == len(ends) - 1:
                event |= {"ph": "f", "bp": "e"}
            events.append(event)
        identity += 1
        if len(events) >= BLOCK_EVENTS:
            yield events
            events = []
    yield events


def _message_blocks(spans: SpanTable) -> Iterator[list[Event]]:
    """Arrows from a send to its receive, to the moment from which on both had been called."""
    found = messages(spans)
    sent, begun = spans.begin_ns[found.send], spans.begin_ns[found.receive]
    taken = np.maximum(sent, begun)
    drawn = taken < spans.end_ns[found.receive]  # else the clocks say that it came before it was sent
    columns = (spans.rank[found.send], sent, spans.rank[found.receive], taken)
    rows = list(zip(*(column[drawn].tolist() for column in columns), strict=True))
    for start in range(0, len(rows), BLOCK_EVENTS):
        block = rows[start : start + BLOCK_EVENTS]
        yield [
            event
            for identity, (source, from_ns, rank, to_ns) in enumerate(block, start + 1)
            for event in (
                {**_flow_event(identity, source, from_ns, MESSAGE_CATEGORY), "ph": "s"},
                {**_flow_event(identity, rank, to_ns, MESSAGE_CATEGORY), "ph": "f", "bp": "e"},
            )
        ]


def _one_a_rank(ranks: list[int], begins: list[int]) -> list[tuple[int, int]]:
    """The first span of each rank, in order of time (the rows are)."""
    first: dict[int, int] = {}
    for rank, begin in zip(ranks, begins, strict=True):
        first.setdefault(rank, begin)
    return list(first.items())


def _flow_event(identity: int, rank: int, begin_ns: int, category: str = FLOW_CATEGORY) -> Event:
    return {
        "name": category,
        "cat": category,
        "ph": "t",
        "id": identity,
        "pid": rank,
        "tid": int(Stage.COMMUNICATE),
        "ts": begin_ns / 1000,
    }


def head_events(trace: Trace, used: Mapping[int, Mapping[int, str]]) -> list[Event]:
    """Return the metadata that names processes and tracks; ``used``: the tracks on which a rank has spans."""
    hosts = {part.rank: part.host for part in trace.parts}
    ranks = sorted({*trace.ranks, *used})
    events: list[Event] = []
    for rank in ranks:
        label = f"rank {rank} ({hosts[rank]})" if hosts.get(rank) else f"rank {rank}"
        # Instants stand on the cycle track.
        events += process_events(rank, label, {int(Stage.CYCLE): Stage.CYCLE.label, **used.get(rank, {})})
    return events


def instant_events(trace: Trace) -> list[Event]:
    """Return the rare instants; rank 0 decides the knobs for all: its change is drawn over the whole trace."""
    return [instant_event(found, "g" if found.name == KNOBS and found.rank == 0 else "p") for found in trace.instants]


def _part_entry(part: PartInfo) -> dict[str, Any]:
    return {
        "rank": part.rank,
        "host": part.host,
        "recorded": part.recorded,
        "dropped": part.dropped,
        "offset_ns": part.offset_ns,
        "error_ns": part.error_ns,
        "drift_ppb": part.drift_ppb,
        "truncated": part.truncated,
    }
