"""The spans of a merged file, written by native code where it is built: millions of events a second, on all cores.

It reads the columns as they lie in memory and needs four bytes more a span. Without it `merged_file` writes the same
events, some ten times slower: a trace can be merged wherever Python runs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, BinaryIO

import orjson

from ringtune.timeline.spans import COLUMN_TYPES, SpanTable
from ringtune.timeline.vocabulary import OVERLAPPING_STAGES, STAGE_LIMIT, stage_labels

if TYPE_CHECKING:
    from ringtune._native import MergeWriter

_COPIED_AT_ONCE = 1 << 20


def available() -> bool:
    """Whether the native code is built."""
    try:
        import ringtune._native  # noqa: F401
    except ImportError:
        return False
    return True


def write_spans(file: BinaryIO, spans: SpanTable, output: Path) -> None:
    """Write the lines of all spans and arrows, in the order of a merged file, each with a comma behind it.

    Args:
        file: Where they go; packs what it is given where the output's name ends in ``.gz``.
        spans: In any order, on the job's clock.
        output: The output, in whose folder what is to be packed waits.

    Raises:
        OSError: They cannot be written.
    """
    if output.suffix != ".gz":
        file.flush()
        file.seek(_written(file.fileno(), file.tell(), spans))
        return
    with TemporaryFile(dir=output.parent) as plain:
        _written(plain.fileno(), 0, spans)
        while block := plain.read(_COPIED_AT_ONCE):
            file.write(block)


def _written(descriptor: int, begin: int, spans: SpanTable) -> int:
    """Write them into a file from an offset on; return where they end."""
    from ringtune._native import MergeWriter

    columns: dict[str, Any] = {name: getattr(spans, name) for name in COLUMN_TYPES}
    texts: Any = (_quoted(spans.names), _quoted(spans.tensors), list(spans.fact_texts))
    tracks = [number * STAGE_LIMIT for number in spans.threads[0].tolist()]
    always_paired = sum(1 << stage for stage in OVERLAPPING_STAGES)
    writer: MergeWriter = MergeWriter((descriptor, begin), columns, texts, (stage_labels(), tracks), always_paired)
    while writer.write_some(min(8, os.cpu_count() or 1)):
        pass  # Python looks for Ctrl-C here
    writer.write_arrows()
    return writer.end


def _quoted(texts: Sequence[str]) -> list[str]:
    return [orjson.dumps(text).decode() for text in texts]
