"""Dumps of torch.distributed's flight recorder: the last collectives that a rank called, and how far each has come.

``TORCH_NCCL_DUMP_ON_TIMEOUT`` leaves one pickled file a rank, ``nccl_trace_rank_N``;
``torch._C._distributed_c10d._dump_fr_trace_json()`` gives the same as JSON, without the Python stacks.
"""

from __future__ import annotations

import io
import math
import pickle
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from ringtune.errors import TraceIoError
from ringtune.timeline.reading.columns import SpanBuilder
from ringtune.timeline.reading.kineto import ITEM_BYTES, batch_code
from ringtune.timeline.reading.stream import EventStream
from ringtune.timeline.spans import Instant, PartInfo, Trace
from ringtune.timeline.vocabulary import Stage

PICKLE = b"\x80"
"""How a pickled dump begins."""

_RANK = re.compile(r"(\d{1,9})(?:\.json)?(?:\.gz)?$")
_PAIR = re.compile(r"(\d+)\s*(->|<-)\s*(\d+)")

_PROGRESS = ("state", "time_discovered_started_ns", "time_discovered_completed_ns", "retired")

Channel = tuple[str, tuple[int, int] | None]
"""A group's name, and for sends and receives the two ranks: within it calls come in the same order on all its ranks."""


@dataclass(frozen=True)
class Call:
    """One collective (or send, receive) that a rank called; times in ns since 1970, None where not known.

    ``number`` is torch's: collectives of a group have equal ones on all ranks, while each rank counts its own messages.
    """

    channel: Channel
    number: int
    name: str
    sizes: str
    bytes: int
    done: bool
    state: str
    created_ns: int
    started_ns: int | None
    completed_ns: int | None
    frames: tuple[str, ...]
    """Python stack, the call first: ``function (file:line)``."""


@dataclass(frozen=True)
class Dump:
    """What one rank's flight recorder held.

    By a group's name: its ranks as far as the dump says them, its description, the number of the last collective that
    the rank called. ``whole``: it holds all that the rank called, not the last calls only.
    """

    path: Path
    rank: int
    calls: tuple[Call, ...]
    groups: Mapping[str, tuple[int, ...]]
    descriptions: Mapping[str, str]
    enqueued: Mapping[str, int]
    whole: bool

    @property
    def last_ns(self) -> int:
        """Last moment that the dump knows."""
        return max((call.completed_ns or call.started_ns or call.created_ns for call in self.calls), default=0)


def is_dump(file: Path, head: bytes) -> bool:
    """Whether a flight recorder wrote a file that begins so."""
    pickled = head.startswith(PICKLE) and b"pg_config" in head
    named = b'"traceEvents"' not in head and b'"pg_config"' in head + _tail(file)
    return pickled or (head.lstrip().startswith(b"{") and named and b'"entries"' in head)


def _tail(file: Path) -> bytes:
    """The end of a plain file: the groups stand behind the calls."""
    with open(file, "rb") as opened:
        opened.seek(max(0, file.stat().st_size - (1 << 20)))
        return opened.read()


def read_dump(file: Path, *, allow_pickle: bool) -> Dump:
    """Read one rank's dump.

    Args:
        file: JSON, plain or gzip, or pickled.
        allow_pickle: Whether pickled files may be read.

    Raises:
        TraceIoError: It is pickled and may not be read, it is damaged, or its name does not say the rank.
    """
    content = b"".join(EventStream(file).chunks())
    named = _RANK.search(file.name)
    if named is None:
        raise TraceIoError(f"{file}: which rank's dump is it? Its name ends in no number; name it nccl_trace_rank_N")
    try:
        document = _unpickled(file, content, allow_pickle) if content[:1] == PICKLE else orjson.loads(content)
        return dump_of(file, int(named.group(1)), document)
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        IndexError,
        OverflowError,
        EOFError,
        pickle.UnpicklingError,
    ) as error:
        raise TraceIoError(f"{file}: a damaged dump of the flight recorder ({error}); left out") from None


class _DataOnly(pickle.Unpickler):
    """Takes numbers, texts and their lists and tables, and nothing that would run code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no dump does")


def _unpickled(file: Path, content: bytes, allowed: bool) -> Any:
    if not allowed:
        raise TraceIoError(
            f"{file}: a pickled dump, and to unpickle a file of unknown origin may run code that is in it; if you "
            "trust it, say --allow-pickle, or write JSON with torch._C._distributed_c10d._dump_fr_trace_json()"
        )
    return _DataOnly(io.BytesIO(content)).load()


def dump_of(file: Path, rank: int, document: Mapping[str, Any]) -> Dump:
    """Return what a dump's document says.

    Raises:
        ValueError, TypeError, KeyError, AttributeError, IndexError: It is none.
    """
    config = {str(name): about for name, about in document["pg_config"].items() if name != ""}
    groups = {name: _ranks(about.get("ranks")) for name, about in config.items()}
    status = document.get("pg_status") or {}
    done, called = (
        {str(name): int(about[f"last_{which}_collective"]) for name, about in status.items()}
        for which in ("completed", "enqueued")
    )
    entries = document.get("entries") or []
    whole = not entries or int(entries[0]["record_id"]) == 0
    entries = _with_progress(entries)
    calls = tuple(_call(entry, groups, done) for entry in entries)
    said = {str(entry["process_group"][0]): str(entry["process_group"][1]) for entry in entries}
    return Dump(file, rank, calls, {name: ranks for name, ranks in groups.items() if ranks}, said, called, whole)


def _with_progress(entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Give messages of a batch its progress: torch records each of them, and how far all are in one entry behind."""
    ends: dict[tuple[str, int], Mapping[str, Any]] = {}
    messages = [bool(entry.get("is_p2p")) for entry in entries]
    batches = [(str(entry["process_group"][0]), int(entry["p2p_seq_id"])) for entry in entries]
    for entry, message, batch in zip(entries, messages, batches, strict=True):
        if message and _PAIR.search(entry["profiling_name"]) is None:
            ends[batch] = entry
    found: list[Mapping[str, Any]] = []
    for entry, message, batch in zip(entries, messages, batches, strict=True):
        end = ends.get(batch) if message else None
        if end is not entry:
            found.append(entry if end is None else {**entry, **{name: end.get(name) for name in _PROGRESS}})
    return found


def _ranks(said: Any) -> tuple[int, ...]:
    """Ranks of a group, which JSON has as a text such as ``[0, 1]``."""
    return tuple(int(rank) for rank in (re.findall(r"\d+", said) if isinstance(said, str) else said or ()))


def _call(entry: Mapping[str, Any], groups: Mapping[str, tuple[int, ...]], done: Mapping[str, int]) -> Call:
    group, name = str(entry["process_group"][0]), str(entry["profiling_name"])
    pair = _PAIR.search(name)
    number = int(entry["p2p_seq_id"] if pair else entry["collective_seq_id"])
    ends = None
    if pair:
        members = groups.get(group, ())
        first, second = sorted(
            members[local] if local < len(members) else local for local in (int(pair[1]), int(pair[3]))
        )
        ends = first, second
    retired = bool(entry.get("retired")) and (pair is not None or number <= done.get(group, number))
    state, completed = str(entry.get("state", "")), _moment(entry.get("time_discovered_completed_ns"))
    sizes, created = entry.get("input_sizes") or [], _moment(entry["time_created_ns"])
    if created is None:
        raise ValueError(f"{name} number {number} was called at no known time")
    return Call(
        channel=(group, ends),
        number=number,
        name=name,
        sizes=" ".join(str(size).replace(" ", "") for size in sizes),
        bytes=max(_bytes(entry, "input"), _bytes(entry, "output")),
        done=state == "completed" or completed is not None or retired,
        state=state,
        created_ns=created,
        started_ns=_moment(entry.get("time_discovered_started_ns")),
        completed_ns=completed,
        frames=tuple(f"{frame['name']} ({frame['filename']}:{frame['line']})" for frame in entry.get("frames") or ()),
    )


def _moment(value: Any) -> int | None:
    """A moment in ns since 1970; None for 0 and for none."""
    moment = int(value or 0)
    if not 0 <= moment < 2**62:
        raise ValueError(f"{value} is no moment")
    return moment or None


def _bytes(entry: Mapping[str, Any], side: str) -> int:
    sizes, kinds = entry.get(f"{side}_sizes") or [], entry.get(f"{side}_dtypes") or []
    items = [ITEM_BYTES.get(str(kind), 0) for kind in kinds]
    return sum(math.prod(size) * item for size, item in zip(sizes, items, strict=False))


def trace_of(dump: Dump, last_ns: int, instants: Sequence[Instant] = ()) -> Trace:
    """Return a dump as a trace: a span a call, from when it was called until it was seen to be done.

    A call that is done at a moment the dump does not know has no length; one that is not done lasts until ``last_ns``.
    Moments count from the first call, instants from 1970.
    """
    base = min((call.created_ns for call in dump.calls), default=last_ns)
    events = []
    for call in dump.calls:
        end = call.completed_ns or (call.created_ns if call.done else max(last_ns, call.created_ns))
        group, pair = call.channel
        args: dict[str, Any] = {"bytes": call.bytes}
        if group.isdecimal() and len(group) < 10:
            args["process_set"] = int(group)
        if pair is None:
            args["batch"] = batch_code(f"{group} {dump.descriptions.get(group, '')}", call.number)
        at = {"ts": (call.created_ns - base) / 1000, "dur": (max(end, call.created_ns) - call.created_ns) / 1000}
        events.append({"name": call.name, "cat": Stage.COMMUNICATE.label, "pid": dump.rank, **at, "args": args})
    spans = SpanBuilder()
    spans.add(events)
    size = max((len(ranks) for ranks in dump.groups.values()), default=1)
    part = PartInfo(dump.rank, size=size, path=dump.path, unix_ns=base, monotonic_ns=0)
    moved = tuple(Instant(found.name, found.category, found.rank, found.at_ns - base, found.args) for found in instants)
    return Trace(spans.table(), moved, (part,), "chrome", path=dump.path)
