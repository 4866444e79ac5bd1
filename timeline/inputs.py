"""Whatever the user names, as one trace: a run folder, a folder of parts, some parts, or any single file."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ringtune import layout
from ringtune.errors import RingtuneError
from ringtune.timeline.merging.merge import join_and_empty, read_whole
from ringtune.timeline.merging.parts import hold_the_same, joinable, part_files
from ringtune.timeline.reading.reader import read
from ringtune.timeline.runs.run import Run
from ringtune.timeline.spans import Trace

PathLike = str | os.PathLike[str]


def load(source: PathLike | Sequence[PathLike]) -> Trace:
    """Read a run folder (its parts, or its merged timeline), a folder of parts, parts, or a file.

    Raises:
        RingtuneError: Nothing is there to read; the message says what was looked for.
    """
    if not isinstance(source, (str, os.PathLike)):
        return _joined([Path(path) for path in source])
    path = Path(source)
    if not path.is_dir():
        return _joined([path])
    merged = Run(path).timeline if layout.is_run(path) else _merged_in(path)
    parts = part_files(path)
    if merged is not None and not hold_the_same(merged, parts):
        return read(merged)
    if merged is not None:
        return replace(_joined(parts), path=merged)
    if not parts:
        raise RingtuneError(
            f"{path}: neither {layout.TIMELINE_FILE} nor {layout.TIMELINE_FOLDER}/rank-*.spans in it; "
            "record a timeline with `ringtune run --timeline`, or name a trace file"
        )
    return _joined(parts)


def _merged_in(folder: Path) -> Path | None:
    usual = layout.timeline_file(folder)
    return next((path for path in (usual, usual.with_name(usual.name + ".gz")) if path.is_file()), None)


def _joined(paths: Sequence[Path]) -> Trace:
    """One file as it is; several parts on one clock, without those that cannot be read, which standard error names."""
    if not paths:
        raise RingtuneError("no trace named; give a run folder or a trace file")
    if folder := next((path for path in paths if path.is_dir()), None):
        raise RingtuneError(f"{folder}: a folder is read alone; `ringtune timeline diff` compares two runs")
    traces, unread, room = read_whole(paths, os.cpu_count() or 1) if len(paths) > 1 else ([read(paths[0])], [], None)
    if not traces:
        raise RingtuneError(unread[0])
    for sentence in unread:
        print(f"ringtune warning: {sentence}", file=sys.stderr)
    if len(paths) == 1 and traces[0].source != "part":
        return traces[0]
    usable, problems = joinable(traces)
    traces.clear()  # so that memory is free as soon as a part's columns are taken over
    if problems:
        raise RingtuneError(
            f"{problems[0].removesuffix('; left out')}; several files can be read together only as parts"
        )
    return join_and_empty(usable, room=room)
