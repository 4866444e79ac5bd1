"""Reading a large file of ringtune's into a `Trace` with native code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringtune.timeline.reading.native_lines import Records, parse, stages_of
from ringtune.timeline.spans import COLUMN_TYPES, SpanTable, Trace, concatenate


def read_natively(path: Path) -> Trace | None:
    """Read a part or a merged file; None when it is not as ringtune writes it (`reader.read` then parses it by event).

    Raises:
        TraceIoError: The file cannot be read.
    """
    collected = _Columns(path.stat().st_size // _USUAL_BYTES if path.is_file() else 0)
    parsed = parse(path, collected.keep)
    if parsed is None:
        return None
    texts = parsed.texts
    columns: dict[str, Any] = collected.columns()
    for name, known in (("name", texts.names), ("tensor", texts.tensors), ("facts", texts.facts)):
        columns[name] = _merged_codes(known)[columns[name]]
    spans = SpanTable(
        **columns,
        names=tuple(dict.fromkeys(texts.names)),
        tensors=tuple(dict.fromkeys(texts.tensors)),
        fact_texts=tuple(dict.fromkeys(texts.facts)),
    )
    unusual = parsed.about.spans
    return replace(parsed.about, spans=concatenate([spans, unusual]) if len(unusual) else spans)


_USUAL_BYTES = 120
"""The fewest bytes that a span usually takes in a file."""


class _Columns:
    """Collects records column by column, in arrays that were made at once: what is not filled costs no memory."""

    def __init__(self, expected: int) -> None:
        self._count = 0
        self._arrays: dict[str, NDArray[Any]] = {name: np.empty(expected, kind) for name, kind in COLUMN_TYPES.items()}

    def keep(self, records: Records) -> None:
        """Copy a block."""
        begin, self._count = self._count, self._count + len(records)
        for name, values in self._arrays.items():
            if self._count > len(values):
                longer = np.empty(2 * self._count, values.dtype)
                longer[:begin] = values[:begin]
                values = self._arrays[name] = longer
            values[begin : self._count] = stages_of(records) if name == "stage" else records[name]

    def columns(self) -> dict[str, NDArray[Any]]:
        """All that was collected."""
        return {name: values[: self._count] for name, values in self._arrays.items()}


def _merged_codes(texts: Sequence[str]) -> NDArray[np.int32]:
    """One code for a text that stood in the file in several ways (escaped and not)."""
    first: dict[str, int] = {}
    return np.array([first.setdefault(text, len(first)) for text in texts], dtype=np.int32)
