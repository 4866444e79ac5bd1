"""Sorts the events of a trace by what they are: spans, rare instants, metadata.

Pairs are joined here: async ``b``/``e`` (merged files), ``B``/``E`` per track (Horovod and others). Horovod's own
timeline is recognised by its first event; its processes are tensors, all seen by rank 0.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any

from ringtune.layout import current_keys
from ringtune.timeline.reading.columns import SpanBuilder, nanoseconds, number
from ringtune.timeline.reading.groups import GroupReader
from ringtune.timeline.reading.kineto import thread_label, track_key, translated
from ringtune.timeline.spans import Instant
from ringtune.timeline.vocabulary import ARRIVAL, END_EVENT, KNOBS, PART_EVENT, TENSORS_EVENT, Stage

Event = Mapping[str, Any]

_INSTANT_PHASES = frozenset("iIRn")
_IGNORED_PHASES = frozenset("stfCNODPcvVSTF(),")
"""Flow arrows, counters of other tools, samples, clock syncs: they carry no span."""


_COUNTER = Stage.COUNTER.label

_BITS = re.compile(r"(?:8|16|32|64|bool)$")
_SHAPE = re.compile(r"\[(?:\d{1,12}(?:, ?\d{1,12})*)?\]")


class Collector:
    """Takes blocks of events, gives a table of spans, instants and the metadata of the file.

    Args:
        spans: Takes the spans; by default a builder of its own.

    Attributes:
        headers: Arguments of ``ringtune_part`` events by pid, ``ends`` those of ``ringtune_end``.
        process_names: Name of each pid.
        thread_names: Name of each thread of a profile, by `track_key`.
        horovod: Horovod wrote this file; ``horovod_start_ns`` is its moment 0 since 1970 (0: not said).
        kineto: PyTorch's profiler wrote this file; set by the reader.
        skipped: Events that made no sense (spans left out are counted by ``spans``).
    """

    def __init__(self, spans: SpanBuilder | None = None) -> None:
        self.spans = SpanBuilder() if spans is None else spans
        self.instants: list[Instant] = []
        self.headers: dict[Any, Mapping[str, Any]] = {}
        self.ends: dict[Any, Mapping[str, Any]] = {}
        self.process_names: dict[Any, str] = {}
        self.thread_names: dict[str, str] = {}
        self.horovod = False
        self.horovod_start_ns = 0
        self.kineto = False
        self.skipped = 0
        self._async: defaultdict[Any, list[Event]] = defaultdict(list)
        self._tracks: defaultdict[Any, list[Event]] = defaultdict(list)
        self._groups = GroupReader(self.spans)

    def add(self, events: Sequence[Any]) -> None:
        """Take one block, in the order of the file."""
        complete: list[Event] = []
        others: list[Event] = []
        for event in events:
            if isinstance(event, dict):
                (complete if event.get("ph") == "X" else others).append(event)
            else:
                self.skipped += 1
        if self.kineto:
            complete = [translated(event) for event in complete if isinstance(event.get("pid"), int)]
            others = [event for event in others if isinstance(event.get("pid"), int)]  # what is left is decoration
        pairs: list[tuple[Event, float]] = []
        for event in others:
            try:
                self._other(event, pairs)
            except (TypeError, ValueError, KeyError, AttributeError):
                self.skipped += 1
        batches = [GroupReader.is_group(event) for event in complete]
        if any(batches):
            self._groups.add(list(compress(complete, batches)))
            complete = [event for event, one in zip(complete, batches, strict=True) if not one]
        if self.horovod:
            complete = [event for event in complete if not self._arrival(event)]
        self.spans.add(complete)
        self.spans.add([begin for begin, _ in pairs], [end for _, end in pairs])

    def finish(self) -> None:
        """Count what was opened and never closed."""
        open_ends = sum(map(len, self._async.values())) + sum(map(len, self._tracks.values()))
        self.skipped += open_ends + self.spans.skipped

    def _other(self, event: Event, pairs: list[tuple[Event, float]]) -> None:
        phase = event["ph"]
        if phase == "b":
            self._async[_async_key(event)].append(event)
        elif phase == "e":
            pairs.append((self._close(self._async, _async_key(event)), event["ts"]))
        elif phase == "B":
            self._tracks[(event.get("pid"), event.get("tid"))].append(event)
        elif phase == "E":
            begin = self._close(self._tracks, (event.get("pid"), event.get("tid")))
            pairs.append((self._of_tensor(begin, event.get("args")) if self.horovod else begin, event["ts"]))
        elif phase in _INSTANT_PHASES:
            self._instant(event, pairs)
        elif phase == "M":
            self._metadata(event)
        elif phase == "C" and event.get("cat") == _COUNTER:
            pairs.append((_counted(event), event["ts"]))
        elif phase not in _IGNORED_PHASES:
            raise ValueError(phase)

    @staticmethod
    def _close(opened: dict[Any, list[Event]], key: Any) -> Event:
        """Take the innermost open event; Horovod's barrier and join leave ends without a beginning."""
        stack = opened.get(key)
        if not stack:
            raise ValueError("an end without a beginning")
        begin = stack.pop()
        if not stack:
            del opened[key]
        return begin

    def _instant(self, event: Event, pairs: list[tuple[Event, float]]) -> None:
        if event.get("cat") == Stage.CYCLE.label or event.get("name") == "CYCLE_START":
            pairs.append(({"pid": 0, **event, "cat": Stage.CYCLE.label}, event["ts"]))
            return
        moment, rank = number(event.get("ts")), event.get("pid", 0)
        if moment is None or not isinstance(rank, int) or abs(rank) >= 2**31:
            raise ValueError("an instant without moment or process")
        found = event.get("args")
        args = found if isinstance(found, dict) else {}
        at_ns = int(nanoseconds([moment])[0])
        name, category = str(event.get("name", "")), str(event.get("cat", ""))
        if name == KNOBS:
            args = current_keys(args)
        self.instants.append(Instant(name, category, rank, at_ns, args))

    def _metadata(self, event: Event) -> None:
        name, pid, args = event["name"], event.get("pid"), event.get("args")
        if not isinstance(args, dict):
            return
        if name == PART_EVENT:
            self.headers[pid] = args
        elif name == END_EVENT:
            self.ends[pid] = args
        elif name == TENSORS_EVENT:
            self._groups.learn(pid, args)
        elif name == "process_name":
            start = number(args.get("start_time_since_epoch_in_micros"))
            if start is not None:
                self.horovod, self.horovod_start_ns = True, int(nanoseconds([start])[0])
            if "name" in args:
                self.process_names[pid] = str(args["name"])
        elif name == "thread_name" and self.kineto and "name" in args:
            self.thread_names[track_key(pid, event.get("tid"))] = thread_label(str(args["name"]))

    def _of_tensor(self, begin: Event, about: Any) -> Event:
        """A span of Horovod: the process is the tensor, the observer rank 0; an operation's end has its shape."""
        tensor = self.process_names.get(begin.get("pid"), "")
        return {**begin, "pid": 0, "args": {"tensor": tensor, "bytes": _bytes_of(about)}}

    def _arrival(self, event: Event) -> bool:
        """Whether the event is Horovod's tick of a rank; it is kept as an instant."""
        name, moment = event.get("name"), number(event.get("ts"))
        if not isinstance(name, str) or not name.isdecimal() or len(name) > 9 or moment is None:
            return False
        tensor = self.process_names.get(event.get("pid"), "")
        at_ns = int(nanoseconds([moment])[0])
        self.instants.append(Instant(ARRIVAL, "arrival", int(name), at_ns, {"tensor": tensor}))
        return True


def _bytes_of(about: Any) -> int:
    """Bytes of a tensor such as `{"dtype": "float32", "shape": "[4, 3]"}`; 0 where the end does not say."""
    if not isinstance(about, dict):
        return 0
    kind, shape = _BITS.search(str(about.get("dtype", ""))), str(about.get("shape", ""))
    if kind is None or not _SHAPE.fullmatch(shape):
        return 0
    bits = 8 if kind[0] == "bool" else int(kind[0])
    return min(math.prod(map(int, re.findall(r"\d+", shape))) * bits // 8, 2**62)


def _counted(event: Event) -> Event:
    """A counter as a span without length: what it counts stands in the columns of bytes and batch."""
    args = event["args"]
    return {**event, "args": {"bytes": args.get("bytes", args.get("bytes_per_s")), "batch": args.get("operations", 0)}}


def _async_key(event: Event) -> Any:
    identity = event.get("id")
    if identity is None:
        identity = str(event["id2"])
    return (event.get("pid"), event.get("cat"), identity)
