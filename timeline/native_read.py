"""Reading a large file of ringtune's into a `Trace` with native code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringtune.timeline.native_lines import Records, parse, stages_of
from ringtune.timeline.spans import COLUMN_TYPES, SpanTable, Trace, concatenate


def read_natively(path: Path) -> Trace | None:
    """Read a part or a merged file; None when it is not as ringtune writes it (then `reader.read` bears with it).

    Raises:
        TraceIoError: The file cannot be read.
    """
    blocks: list[dict[str, NDArray[Any]]] = []
    parsed = parse(path, lambda records: blocks.append(_columns(records)))
    if parsed is None:
        return None
    texts = parsed.texts
    columns: dict[str, Any] = {}
    for name, kind in COLUMN_TYPES.items():
        columns[name] = np.concatenate([block.pop(name) for block in blocks]) if blocks else np.empty(0, kind)
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


def _columns(records: Records) -> dict[str, NDArray[Any]]:
    """Records column by column, as copies."""
    found = {name: np.ascontiguousarray(records[name]) for name in COLUMN_TYPES if name != "stage"}
    return {**found, "stage": stages_of(records)}


def _merged_codes(texts: Sequence[str]) -> NDArray[np.int32]:
    """One code for a text that stood in the file in several ways (escaped and not)."""
    first: dict[str, int] = {}
    return np.array([first.setdefault(text, len(first)) for text in texts], dtype=np.int32)
