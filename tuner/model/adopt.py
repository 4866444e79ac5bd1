"""Traces of other tools as the cost model reads them: with steps, with submissions, with the bytes of every gradient.

PyTorch's profiler knows its collectives (DDP's buckets), Horovod's timeline the tensors as rank 0 reduced them; neither
says when callers waited. Here a step lasts from its first gradient to that of the next step, which needs no mark: where
the trace numbers no steps, the repeating order of gradients does (`rounds`). A rank waits from its last gradient until
the last one is reduced; where a device's work was recorded, while nothing but communication runs there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ringtune.errors import UsageError
from ringtune.knobs import Knobs
from ringtune.timeline.analysis.intervals import difference, union
from ringtune.timeline.spans import COLUMN_TYPES, UNKNOWN, Instant, Ints, Mask, PartInfo, SpanTable, Trace
from ringtune.timeline.vocabulary import ARRIVAL, Stage
from ringtune.tuner.model.rounds import by_name, by_size

HOROVOD_KNOBS = Knobs(fusion_bytes=128 << 20, cycle_time_ns=1_000_000, step_schedule=0)
"""Horovod's defaults; it negotiates every step."""

DDP_KNOBS = Knobs(fusion_bytes=0, step_schedule=1)
"""DDP cuts its buckets once, and each travels when it is full."""

_REDUCES = re.compile(r"all_?reduce|reduce_?scatter", re.IGNORECASE)
_CALLS = re.compile(r"^c10d::_?(?:all_?reduce|reduce_scatter)")
_SCHEDULED = '"step_schedule":1'


@dataclass(frozen=True)
class World:
    """Where the job ran, as far as its trace does not say; None: as the trace says."""

    ranks: int | None = None
    hosts: int | None = None


@dataclass(frozen=True)
class _Sent:
    """The gradients that one rank reduced, a row each, in the order of submission; times in ns."""

    submit: Ints
    begin: Ints
    end: Ints
    bytes: Ints
    step: Ints
    group: Ints
    """Rows of a group travelled together."""
    names: tuple[str, ...]


def foreign(trace: Trace) -> bool:
    """Whether other tools wrote it, also where several of their files were joined."""
    own = any(name.startswith("RING_") for name in trace.spans.names)
    return trace.source in ("horovod", "chrome") or (trace.source == "merged" and not own)


def adopt(trace: Trace, world: World = World(), sizes: Sequence[int] | None = None) -> Trace:
    """Return the trace with what the model needs.

    Args:
        trace: PyTorch's profiles or a Horovod timeline.
        world: What the user says about the job.
        sizes: Bytes of a step's gradients in the order of backward, for a trace without.

    Raises:
        UsageError: The trace holds too little; the message says what is missing, and what to do.
    """
    horovod = trace.source == "horovod"
    if not horovod and len(trace.spans.of_stage(Stage.NEGOTIATE)):
        raise UsageError("a timeline of Horovod is read alone: it is rank 0's view of all ranks")
    sent = {0: _of_horovod(trace)} if horovod else _of_profiles(trace)
    if not sent or not all(len(rows.submit) for rows in sent.values()):
        raise UsageError(
            "the trace holds no allreduce, so there is no communication to predict; record steps of a job of "
            "two ranks or more"
        )
    sent = {rank: _sized(_numbered(rows, horovod), sizes, horovod) for rank, rows in sent.items()}
    parts = _parts(trace, sorted(sent), world)
    width = max(len(rows.submit) for rows in sent.values()) + 1
    tables = [_table(trace, rank, rows, width, scheduled=not horovod) for rank, rows in sent.items()]
    spans = _joined(tables, scheduled=not horovod)
    knobs = HOROVOD_KNOBS if horovod else DDP_KNOBS
    mark = Instant("KNOBS", "knobs", 0, int(spans.begin_ns.min()), knobs.as_dict())
    clocks = tuple(instant for instant in trace.instants if instant.name != ARRIVAL)
    return replace(trace, spans=spans, instants=(*clocks, mark), parts=parts)


def _of_profiles(trace: Trace) -> dict[int, _Sent]:
    spans = trace.spans
    reduces = spans.take((spans.stage == Stage.COMMUNICATE) & _named(spans, _REDUCES))
    calls = spans.take((spans.stage == Stage.OTHER) & _named(spans, _CALLS))
    devices = np.unique(spans.of_stage(Stage.KERNEL).rank)
    found = {}
    for rank in np.unique(reduces.rank).tolist():
        mine = reduces.of_rank(rank)
        mine = mine.take(np.argsort(mine.begin_ns, kind="stable"))
        submit = np.sort(calls.of_rank(rank).begin_ns)
        # A host runs ahead of its device: there a kernel's begin is the best that is known, though it may have queued.
        if rank in devices or len(submit) != len(mine) or (submit > mine.begin_ns).any():
            submit = mine.begin_ns
        alone = np.arange(len(mine))
        found[rank] = _Sent(submit, mine.begin_ns, mine.end_ns, mine.bytes, mine.step, alone, ("",) * len(mine))
    return found


def _named(spans: SpanTable, pattern: re.Pattern[str]) -> Mask:
    hits = np.array([bool(pattern.search(name)) for name in spans.names] or [False], dtype=np.bool_)
    return np.asarray(hits[spans.name])


def _of_horovod(trace: Trace) -> _Sent:
    """Tensors from their `ALLREDUCE` spans; spans that begin before the first of a batch is reduced belong to it."""
    spans = trace.spans
    named = np.array([name == "ALLREDUCE" for name in spans.names] or [False])
    whole = spans.take(named[spans.name] & (spans.tensor > 0))
    whole = whole.take(np.argsort(whole.begin_ns, kind="stable"))
    works = _Starts(spans.take(np.isin(spans.stage, np.array([Stage.COPY_IN, Stage.COMMUNICATE], dtype=np.uint8))))
    submits = _Starts(spans.of_stage(Stage.NEGOTIATE))
    groups: list[int] = []
    submitted: list[int] = []
    previous: dict[int, int] = {}
    limit = -1
    for begin, end, tensor in zip(whole.begin_ns.tolist(), whole.end_ns.tolist(), whole.tensor.tolist(), strict=True):
        fresh = begin > limit
        if fresh:
            limit = works.first(tensor, begin, end)
        groups.append((groups[-1] + 1 if groups else 0) if fresh else groups[-1])
        submitted.append(submits.first(tensor, previous.get(tensor, 0), begin))
        previous[tensor] = end
    submit = np.array(submitted, dtype=np.int64)
    order = np.argsort(submit, kind="stable")
    rows = whole.take(order)
    step = np.full(len(rows), UNKNOWN, dtype=np.int64)
    group = np.array(groups, dtype=np.int64)[order]
    return _Sent(submit[order], rows.begin_ns, rows.end_ns, rows.bytes, step, group, tuple(rows.tensor_texts()))


class _Starts:
    """When the spans of each tensor begin."""

    def __init__(self, spans: SpanTable) -> None:
        order = np.lexsort((spans.begin_ns, spans.tensor))
        self.tensor, self.begin = spans.tensor[order], spans.begin_ns[order]

    def first(self, tensor: int, low: int, high: int) -> int:
        """The first one from `low` on and before `high`, else `high`."""
        left, right = np.searchsorted(self.tensor, (tensor, tensor + 1)).tolist()
        at = left + int(np.searchsorted(self.begin[left:right], low))
        return min(int(self.begin[at]), high) if at < right else high


def _numbered(rows: _Sent, horovod: bool) -> _Sent:
    """The rows of whole steps, with these numbered, and a last one's first row, which ends them."""
    if (rows.step >= 0).any():
        marked = rows.step >= 0
        return _taken(rows, np.flatnonzero(marked), rows.step[marked])
    step = by_name(rows.names, rows.submit) if horovod else by_size(rows.bytes, rows.begin, rows.end)
    return _taken(rows, np.flatnonzero(step >= 0), step[step >= 0])


def _taken(rows: _Sent, chosen: Ints, step: Ints) -> _Sent:
    if len(np.unique(step)) < 2:
        raise UsageError(
            "the trace holds no two steps: neither marks of the profiler nor a repeating order of gradients; "
            "record 20 steps or more"
        )
    return _Sent(
        rows.submit[chosen],
        rows.begin[chosen],
        rows.end[chosen],
        rows.bytes[chosen],
        step,
        rows.group[chosen],
        tuple(rows.names[index] for index in chosen.tolist()),
    )


def _sized(rows: _Sent, sizes: Sequence[int] | None, horovod: bool) -> _Sent:
    """The rows with bytes: their own, else the user's."""
    if rows.bytes.all():
        if sizes is not None:
            raise UsageError("the trace says how many bytes its gradients have; --profile is for one that does not")
        return rows
    if sizes is None:
        how = (
            "its spans end without dtype and shape" if horovod else "record it with torch.profiler's record_shapes=True"
        )
        raise UsageError(
            f"the trace does not say how many bytes its gradients have ({how}); "
            "give a backward profile of the same network with --profile"
        )
    _, turn, count = np.unique(rows.step, return_inverse=True, return_counts=True)
    usual = int(np.bincount(count).argmax())
    if len(sizes) != usual:
        raise UsageError(f"--profile has {len(sizes)} gradients, but a step of the trace has {usual}")
    own = np.zeros(len(rows.step), dtype=np.int64)
    for number in np.flatnonzero(count == usual).tolist():
        own[turn == number] = sizes
    kept = np.flatnonzero(own > 0)
    return _taken(replace(rows, bytes=own), kept, rows.step[kept])


def _parts(trace: Trace, seen: Sequence[int], world: World) -> tuple[PartInfo, ...]:
    """A part for each rank of the job, with its host."""
    ranks, declared = world.ranks or trace.size, max(part.size for part in trace.parts)
    if ranks < 2:
        raise UsageError("the trace does not say how many ranks the job had; give their number with --ran-ranks")
    if ranks < trace.size or 1 < declared < ranks:
        raise UsageError(f"the trace is of a job of {trace.size} ranks, not of --ran-ranks {ranks}")
    if world.hosts is not None and world.hosts > ranks:
        raise UsageError(f"--ran-hosts {world.hosts} is more than the job's {ranks} ranks")
    known = {part.rank: part for part in trace.parts}
    hosts = {rank: known[rank].host for rank in range(ranks) if rank in known and known[rank].host}
    if world.hosts is None and len(hosts) < ranks:
        raise UsageError(
            f"the trace does not say where the job's {ranks} ranks ran; give the number of hosts with --ran-hosts"
        )
    if world.hosts is not None:
        slots = -(-ranks // world.hosts)
        hosts = {rank: f"host-{rank // slots}" for rank in range(ranks)}
    common = known.get(seen[0], PartInfo(rank=0))
    return tuple(replace(known.get(rank, common), rank=rank, size=ranks, host=hosts[rank]) for rank in range(ranks))


def _table(trace: Trace, rank: int, rows: _Sent, width: int, *, scheduled: bool) -> dict[str, NDArray[np.generic]]:
    """A rank's steps, submissions, batches and waits as columns; names of gradients stay texts."""
    numbers, first = np.unique(rows.step, return_index=True)
    follow = np.diff(numbers) == 1
    begins, ends = rows.submit[first[:-1]][follow], rows.submit[first[1:]][follow]
    steps = _columns(Stage.STEP, begins, ends, numbers[:-1][follow])
    turn = np.arange(len(rows.step)) - np.repeat(first, np.diff(np.append(first, len(rows.step))))
    texts = np.array([name or f"bucket {at}" for name, at in zip(rows.names, turn.tolist(), strict=True)])
    _, lead, of_group = np.unique(rows.group, return_index=True, return_inverse=True)
    batch = (rows.step[lead] * width + turn[lead] + 1)[of_group]
    agreed = rows.submit if scheduled else np.maximum(rows.begin, rows.submit)
    submits = _columns(Stage.NEGOTIATE, rows.submit, agreed, rows.step, bytes=rows.bytes, batch=batch, text=texts)
    total = np.bincount(of_group, weights=rows.bytes).astype(np.int64)
    end = np.zeros(len(lead), dtype=np.int64)
    np.maximum.at(end, of_group, rows.end)
    moves = _columns(Stage.COMMUNICATE, rows.begin[lead], end, rows.step[lead], bytes=total, batch=batch[lead])
    waited = _waits(trace, rank, rows, first)
    waits = _columns(Stage.WAIT, waited[:, 0], waited[:, 1], np.full(len(waited), UNKNOWN, dtype=np.int64))
    parts = (steps, submits, moves, waits)
    table = {name: np.concatenate([part[name] for part in parts]) for name in steps}
    return {**table, "rank": np.full(len(table["begin_ns"]), rank, dtype=np.int32)}


def _waits(trace: Trace, rank: int, rows: _Sent, first: Ints) -> Ints:
    busy = trace.spans.of_rank(rank).of_stage(Stage.KERNEL)
    if len(busy):
        return difference(union(rows.begin, rows.end), union(busy.begin_ns, busy.end_ns))
    last = np.append(first[1:], len(rows.submit)) - 1
    return union(rows.submit[last], np.maximum(np.maximum.reduceat(rows.end, first), rows.submit[last]))


def _columns(
    stage: Stage, begin: Ints, end: Ints, step: Ints, **given: NDArray[np.generic]
) -> dict[str, NDArray[np.generic]]:
    none = np.zeros(len(begin), dtype=np.int64)
    plain = {"bytes": none, "batch": none, "text": np.full(len(begin), "")}
    return {"begin_ns": begin, "end_ns": end, "step": step, "stage": np.full(len(begin), stage), **plain, **given}


def _joined(tables: Sequence[dict[str, NDArray[np.generic]]], *, scheduled: bool) -> SpanTable:
    columns = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
    names, code = np.unique(columns.pop("text"), return_inverse=True)
    tensors = ("", *names.tolist())
    none = np.zeros(len(code), dtype=np.int64)
    filled = {"tensor": code + 1, "name": none, "knobs_version": none, "facts": none + int(scheduled), **columns}
    typed = {name: filled[name].astype(kind) for name, kind in COLUMN_TYPES.items()}
    return SpanTable(**typed, names=("",), tensors=tensors, fact_texts=("", _SCHEDULED))
