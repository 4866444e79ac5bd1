"""Blocks of a growing part, read by native code because every poll of a running job's page reads some."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import orjson

from ringtune.timeline.reading.columns import SpanBuilder
from ringtune.timeline.reading.native_lines import RECORD, new_reader, stages_of, unquoted
from ringtune.timeline.reading.stream import parse_inside
from ringtune.timeline.spans import COLUMN_TYPES, Codes
from ringtune.timeline.vocabulary import TENSORS_EVENT, Stage

MOST_OTHER_BYTES = 1 << 20
"""A reader that keeps more lines than this (those that are no usual spans) is replaced by a new one."""
MOST_FAILURES = 8
"""After so many blocks that could not be read no other is tried: the file is not as the recorder writes it."""


class BlockReader:
    """Reads blocks of whole lines of one part.

    Args:
        spans: Takes the spans.
    """

    def __init__(self, spans: SpanBuilder) -> None:
        self._spans = spans
        self._lists: dict[tuple[Any, Any], bytes] = {}
        self._failures = 0
        self._reader = new_reader()
        self._taken = 0
        self._fresh()

    def read(self, text: bytes) -> list[Any] | None:
        """Hand over the spans of whole lines but for counters, and return all other events.

        Args:
            text: Events, one a line, as they stand in the file; commas at the ends do not matter.

        Returns:
            None where it cannot be read in this way; then nothing was handed over.
        """
        if self._reader is None:
            return None
        self._reader.feed(text.lstrip(b" \t\r\n,") + b"\n")
        rest = self._reader.rest
        events = None if self._reader.odd else parse_inside(rest[self._taken :])
        if events is None:
            self._failures += 1
            self._fresh()
            return None
        self._taken = len(rest)
        self._keep()
        self._know(events)
        if len(rest) > MOST_OTHER_BYTES:
            self._fresh()
        return events

    def learn(self, events: Sequence[Any]) -> None:
        """Take lists of tensors that were not in the blocks, and on which events of blocks to come may rest."""
        lines = self._know(events)
        if self._reader is not None and lines:
            self._reader.feed(b"".join(lines))
            self._taken = len(self._reader.rest)

    def _know(self, events: Sequence[Any]) -> list[bytes]:
        """Note lists of tensors, and return those that were not known, as lines of the recorder's."""
        fresh = []
        for event in events:
            if isinstance(event, dict) and event.get("name") == TENSORS_EVENT and isinstance(event.get("args"), dict):
                key = (str(event.get("pid")), str(event["args"].get("id")))
                if key not in self._lists:
                    self._lists[key] = orjson.dumps(event) + b"\n"
                    fresh.append(self._lists[key])
        return fresh

    def _fresh(self) -> None:
        """Go on with a reader that knows the lists and nothing else."""
        self._reader = new_reader() if self._failures < MOST_FAILURES else None
        self._taken = 0
        if self._reader is not None:
            self._reader.feed(b"".join(self._lists.values()))
            self._taken = len(self._reader.rest)
        empty = np.empty(0, dtype=np.int32)
        self._codes: dict[str, Codes] = {"name": empty, "tensor": empty, "facts": empty}

    def _keep(self) -> None:
        reader = self._reader
        if reader is None or not reader.pending:
            return
        records = reader.records().view(RECORD)
        stages = stages_of(records)
        kept = stages != int(Stage.COUNTER)
        columns = {name: records[name][kept] for name in COLUMN_TYPES if name != "stage"}
        reader.clear()
        self._extend("name", unquoted(reader.names), self._spans.name_codes)
        self._extend("tensor", unquoted(reader.tensors), self._spans.tensor_codes)
        self._extend("facts", reader.facts, self._fact_codes)
        for name, codes in self._codes.items():
            columns[name] = codes[columns[name]]
        self._spans.keep({**columns, "stage": stages[kept]})

    def _extend(self, name: str, texts: Sequence[Any], codes_of: Callable[[Sequence[Any]], Codes]) -> None:
        """Find the table's codes of texts that the reader has met since the last time."""
        known = self._codes[name]
        if len(texts) > len(known):
            self._codes[name] = np.concatenate((known, codes_of(texts[len(known) :])))

    def _fact_codes(self, texts: Sequence[bytes]) -> Codes:
        return self._spans.fact_codes([orjson.loads(b"{" + text + b"}") for text in texts])
