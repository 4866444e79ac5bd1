"""From events to columns, a block at a time.

The quick path takes a block of well-formed events with a few list comprehensions. A block in which anything is odd
is cleaned event by event first; what cannot be understood is counted and left out.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from ringtune.layout import current_keys
from ringtune.timeline.spans import COLUMN_TYPES, UNKNOWN, Codes, Columns, Ints, SpanTable
from ringtune.timeline.vocabulary import FACTS, STAGE_OF_LABEL, Stage

Event = Mapping[str, Any]

LARGEST_US = 2.2e15
"""Moments beyond this many microseconds (70 years) are nonsense; sums of four of them still fit into int64 ns."""

_NO_ARGS: Mapping[str, Any] = {}
ODD = (KeyError, TypeError, ValueError, AttributeError, OverflowError)


class SpanBuilder:
    """Collects spans into columns.

    Args:
        room: Columns to write to as far as they reach, where it is known how many spans come; `take` gives these.

    Attributes:
        skipped: Spans left out because they made no sense.
    """

    def __init__(self, room: Columns | None = None) -> None:
        self.skipped = 0
        self._room, self._end = room, 0
        self._names: defaultdict[str, int] = defaultdict()
        self._names.default_factory = self._names.__len__
        self._tensors: defaultdict[str, int] = defaultdict()
        self._tensors.default_factory = self._tensors.__len__
        self._tensors[""]
        self._facts: defaultdict[tuple[Any, ...], int] = defaultdict()
        self._facts.default_factory = self._facts.__len__
        self._facts[_NO_FACTS]
        self._blocks: list[dict[str, NDArray[Any]]] = []
        self._known_texts: dict[str, tuple[str, ...]] = {}

    def add(self, events: Sequence[Event], ends: Sequence[float] | None = None) -> None:
        """Add spans given as events with ``ts`` and ``dur``; ``ends`` (same length, µs) stands in for ``dur``."""
        if not events:
            return
        try:
            block = self._columns(events, ends)
        except ODD:
            kept = [pair for event, end in _with_ends(events, ends) if (pair := _clean(event, end)) is not None]
            self.skipped += len(events) - len(kept)
            if not kept:
                return
            block = self._columns([event for event, _ in kept], [end for _, end in kept])
        self.keep(block)

    def take(self) -> SpanTable:
        """Return what was collected since the last time; texts keep their codes, and there may be more of them."""
        written = [] if self._room is None else [{column: values[: self._end] for column, values in self._room.items()}]
        blocks, self._blocks, self._room = written + self._blocks, [], None
        # Column by column out of the blocks: all of them twice would be too much memory.
        return self._joined(lambda column: [block.pop(column) for block in blocks])

    def table(self) -> SpanTable:
        """Return everything collected, in the order of the file."""
        return self._joined(lambda column: [block[column] for block in self._blocks])

    def _joined(self, parts_of: Callable[[str], list[NDArray[Any]]]) -> SpanTable:
        joined = {name: _one_array(parts_of(name), kind) for name, kind in COLUMN_TYPES.items()}
        return SpanTable(
            **joined,
            names=self._texts("names", self._names, str),
            tensors=self._texts("tensors", self._tensors, str),
            fact_texts=self._texts("facts", self._facts, _fact_text),
        )

    def _texts(self, which: str, codes: Mapping[Any, int], text_of: Callable[[Any], str]) -> tuple[str, ...]:
        """The texts of codes; those that were asked for before are not made again."""
        known = self._known_texts.get(which, ())
        if len(codes) > len(known):
            known = self._known_texts[which] = (*known, *map(text_of, islice(codes, len(known), None)))
        return known

    def _columns(self, events: Sequence[Event], ends: Sequence[float] | None) -> dict[str, NDArray[Any]]:
        args = [_current(event.get("args") or _NO_ARGS) for event in events]
        begin = nanoseconds([event["ts"] for event in events])
        end = begin + nanoseconds([event["dur"] for event in events]) if ends is None else nanoseconds(ends)
        stages = [STAGE_OF_LABEL.get(event.get("cat"), Stage.OTHER) for event in events]  # type: ignore[arg-type]
        columns = {
            "begin_ns": begin,
            "end_ns": end,
            "rank": _integers([event["pid"] for event in events]),
            "stage": np.array(stages, dtype=np.uint8),
            "name": np.array([self._names[event["name"]] for event in events], dtype=np.int32),
            "tensor": np.array([self._tensors[arg.get("tensor", "")] for arg in args], dtype=np.int32),
            "bytes": _integers([arg.get("bytes", 0) for arg in args]),
            "batch": _integers([arg.get("batch", 0) for arg in args]),
            "step": _integers([arg.get("step", UNKNOWN) for arg in args]),
            "knobs_version": _integers([arg.get("knobs_version", 0) for arg in args]),
            "facts": np.array([self._facts[tuple(map(arg.get, FACTS))] for arg in args], dtype=np.int32),
        }
        for column in ("rank", "knobs_version"):
            if np.any(np.abs(columns[column]) > np.iinfo(np.int32).max):
                raise OverflowError(column)
            columns[column] = columns[column].astype(np.int32)
        return columns

    def tensor_codes(self, names: Sequence[str]) -> Codes:
        """Codes of these tensors."""
        return np.array([self._tensors[name] for name in names], dtype=np.int32)

    def tensor_code(self, name: str) -> int:
        """Code of a tensor's name."""
        return self._tensors[name]

    def name_code(self, name: str) -> int:
        """Code of an event's name."""
        return self._names[name]

    def fact_code(self, facts: Mapping[str, Any]) -> int:
        """Code of what a span is known to be: the arguments of `FACTS` that it has."""
        return self._facts[tuple(map(facts.get, FACTS))]

    def rows_of(self, events: Sequence[Event], counts: Ints) -> dict[str, NDArray[Any]]:
        """Columns in which each event stands ``counts`` times; its times, tensor and bytes are others'."""
        columns = self._columns([{**event, "args": {**event["args"], "bytes": 0}} for event in events], None)
        return {column: np.repeat(values, counts) for column, values in columns.items()}

    def keep(self, block: dict[str, NDArray[Any]]) -> None:
        """Take columns as they are; spans that end before they begin are left out."""
        backwards = block["end_ns"] < block["begin_ns"]
        if backwards.any():
            self.skipped += int(backwards.sum())
            block = {column: values[~backwards] for column, values in block.items()}
        begin, end = self._end, self._end + len(block["begin_ns"])
        if self._room is None or self._blocks or end > len(self._room["begin_ns"]):
            self._blocks.append(block)
            return
        self._end = end
        for column, place in self._room.items():
            place[begin:end] = block[column]


def _one_array(parts: Sequence[NDArray[Any]], kind: type[np.generic]) -> NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, kind), *parts])


_NO_FACTS = (None,) * len(FACTS)


def _fact_text(values: tuple[Any, ...]) -> str:
    """Facts as the inside of a JSON object."""
    known = {name: value for name, value in zip(FACTS, values, strict=True) if isinstance(value, (str, int))}
    return orjson.dumps(known)[1:-1].decode()


def _current(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Arguments without the names of earlier versions (`ringtune.layout.OLD_KEYS`)."""
    return current_keys(args) if "epoch" in args or "plan" in args else args


def nanoseconds(microseconds: Sequence[float]) -> Ints:
    """Turn microseconds with three decimals into whole nanoseconds, exactly (up to 100 days).

    Raises:
        ValueError: One is not finite or too large.
    """
    values = np.array(microseconds, dtype=np.float64)
    # `not all(<=)` also catches NaN.
    if not np.all(np.abs(values) <= LARGEST_US):
        raise ValueError("a time is not finite or too large")
    # Whole and fraction apart: one multiplication by 1000 would round away the last digit of large values.
    whole = np.floor(values)
    return whole.astype(np.int64) * 1000 + np.rint((values - whole) * 1000).astype(np.int64)


def _integers(values: Sequence[Any]) -> Ints:
    return np.array(values, dtype=np.int64)


def _with_ends(events: Sequence[Event], ends: Sequence[float] | None) -> list[tuple[Any, Any]]:
    if ends is not None:
        return list(zip(events, ends, strict=True))
    return [(event, _end_of(event)) for event in events]


def _end_of(event: Any) -> Any:
    """End of a complete event in µs; None when it has none."""
    ts, dur = number(event.get("ts")), number(event.get("dur", 0))
    return None if ts is None or dur is None else ts + dur


def _clean(event: Event, end: object) -> tuple[Event, float] | None:
    """Return the event with every field of the right type and its end; None when time or process are unusable."""
    ts, finish, pid = number(event.get("ts")), number(end), event.get("pid", 0)
    if ts is None or finish is None or not isinstance(pid, int) or abs(pid) > np.iinfo(np.int32).max:
        return None
    args = event.get("args")
    clean_args: dict[str, Any] = {}
    if isinstance(args, dict):
        args = _current(args)
        limits = {"bytes": 2**60, "batch": 2**60, "step": 2**60, "knobs_version": 2**31}
        found = {key: _whole(args.get(key), limit) for key, limit in limits.items()}
        clean_args = {key: value for key, value in found.items() if value is not None}
        if isinstance(args.get("tensor"), str):
            clean_args["tensor"] = args["tensor"]
        clean_args |= {name: args[name] for name in FACTS if isinstance(args.get(name), (str, int))}
    category, name = event.get("cat"), event.get("name")
    category = category if isinstance(category, str) else ""
    return {
        "ts": ts,
        "pid": pid,
        "cat": category,
        "name": "" if name is None else str(name),
        "args": clean_args,
    }, finish


def number(value: object) -> float | None:
    """The value as a finite moment or duration in µs; None when it is none."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if not isinstance(value, (int, float)) or not math.isfinite(value) or abs(value) > LARGEST_US:
        return None
    return float(value)


def _whole(value: object, limit: int) -> int | None:
    return int(value) if isinstance(value, (int, float)) and math.isfinite(value) and abs(value) < limit else None
