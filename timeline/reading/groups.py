"""Events of a batch as the recorder writes them: one for all tensors, whose names stand in a list.

Such an event has the argument ``tensors``: the number of a list given before by a ``ringtune_tensors`` event. Of a
negotiation it also has ``submitted`` (ns from one submission to the next, the first counted from ``ts``) and, when the
batch ran, ``queued_ns`` (from its agreement to its start): one `negotiate` and one `queue` span a tensor. Of copies
into or out of the fusion buffer it has ``copied`` (ns that each took, one right after another): one span a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringtune.timeline.reading.columns import ODD, SpanBuilder, nanoseconds
from ringtune.timeline.spans import Codes, Ints
from ringtune.timeline.vocabulary import QUEUE_NAME, Stage

Event = Mapping[str, Any]

_NUMBERS = {Stage.NEGOTIATE.label: "submitted", Stage.COPY_IN.label: "copied", Stage.COPY_OUT.label: "copied"}
"""The argument that holds a number a tensor, by category."""


@dataclass(frozen=True)
class _List:
    """Tensors as codes of the table's names, and their bytes."""

    tensors: Codes
    bytes: Ints


class GroupReader:
    """Turns the events of batches into spans.

    Args:
        spans: Takes the spans, and counts what makes no sense.
    """

    def __init__(self, spans: SpanBuilder) -> None:
        self._spans = spans
        self._lists: dict[tuple[Any, Any], _List] = {}

    @staticmethod
    def is_group(event: Event) -> bool:
        """Whether a complete event stands for the tensors of a batch."""
        category, args = event.get("cat"), event.get("args")
        return isinstance(category, str) and isinstance(args, dict) and _NUMBERS.get(category) in args

    def learn(self, pid: Any, args: Mapping[str, Any]) -> None:
        """Take a list of tensors.

        Raises:
            ValueError: It is none.
        """
        names, sizes = args["names"], np.array(args["bytes"], dtype=np.int64)
        if len(names) != len(sizes) or not all(isinstance(name, str) for name in names):
            raise ValueError("a list of tensors with names and sizes that do not match")
        self._lists[(pid, args["id"])] = _List(self._spans.tensor_codes(names), sizes)

    def add(self, events: Sequence[Event]) -> None:
        """Take the events of some batches; one that makes no sense is left out."""
        negotiated = [event for event in events if event["cat"] == Stage.NEGOTIATE.label]
        copied = [event for event in events if event["cat"] != Stage.NEGOTIATE.label]
        for some, take in ((negotiated, self._negotiated), (copied, self._copied)):
            try:
                take(some)
            except ODD:
                for event in some:
                    try:
                        take([event])
                    except ODD:
                        self._spans.skipped += 1

    def _negotiated(self, events: Sequence[Event]) -> None:
        if not events:
            return
        counts, rows, steps = self._rows(events, "submitted")
        first = nanoseconds([event["ts"] for event in events])
        agreed = first + nanoseconds([event["dur"] for event in events])
        steps, begins = np.cumsum(steps), np.cumsum(counts) - counts
        submitted = np.repeat(first - steps[begins], counts) + steps
        # A tensor may be submitted after the agreement in damaged files, or where a clock went backwards.
        ends = np.maximum(np.repeat(agreed, counts), submitted)
        queued = np.array([event["args"].get("queued_ns", -1) for event in events], dtype=np.int64)
        self._spans.keep(rows | {"begin_ns": submitted, "end_ns": ends})
        ran = np.repeat(queued >= 0, counts)
        if ran.any():
            started = ends + np.repeat(queued, counts)
            queue = {"stage": np.full(len(ends), Stage.QUEUE, np.uint8), "begin_ns": ends, "end_ns": started}
            queue["name"] = np.full(len(ends), self._spans.name_code(QUEUE_NAME), np.int32)
            self._spans.keep({column: values[ran] for column, values in (rows | queue).items()})

    def _copied(self, events: Sequence[Event]) -> None:
        if not events:
            return
        counts, rows, lengths = self._rows(events, "copied")
        if (lengths < 0).any():
            raise ValueError("a copy that ended before it began")
        ends, begins = np.cumsum(lengths), np.cumsum(counts) - counts
        first = nanoseconds([event["ts"] for event in events])
        ends += np.repeat(first - (ends[begins] - lengths[begins]), counts)
        self._spans.keep(rows | {"begin_ns": ends - lengths, "end_ns": ends})

    def _rows(self, events: Sequence[Event], argument: str) -> tuple[Ints, dict[str, NDArray[Any]], Ints]:
        """How many tensors each event has, its columns for each of them, and the numbers that it gives for them.

        Raises:
            ValueError: Not one number a tensor.
        """
        args = [event["args"] for event in events]
        lists = [self._lists[(event["pid"], arg["tensors"])] for event, arg in zip(events, args, strict=True)]
        counts = np.array([len(one.bytes) for one in lists], dtype=np.int64)
        if [len(arg[argument]) for arg in args] != counts.tolist() or not counts.all():
            raise ValueError("a batch with other tensors than its list")
        numbers = np.array(list(chain.from_iterable(arg[argument] for arg in args)), dtype=np.int64)
        tensors, sizes = (np.concatenate([getattr(one, name) for one in lists]) for name in ("tensors", "bytes"))
        return counts, self._spans.rows_of(events, counts) | {"tensor": tensors, "bytes": sizes}, numbers
