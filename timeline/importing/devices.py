"""Recordings of whole hosts: every device in them is a rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ringtune.errors import RingtuneError
from ringtune.timeline.merging.profiles import as_rank, natural
from ringtune.timeline.reading.columns import SpanBuilder
from ringtune.timeline.reading.foreign import RANK_IN_NAME
from ringtune.timeline.spans import UNKNOWN, PartInfo, Trace
from ringtune.timeline.vocabulary import Stage

Span = tuple[str, Stage, float, float, Mapping[str, Any]]
"""Name, stage, begin and end in µs, arguments."""


def device_trace(file: Path, spans: Sequence[Span], *, host: str, truncated: bool = False, unix_ns: int = 1) -> Trace:
    """Return one device's spans as a trace whose rank is not known yet; spans without a step have that they begin in.

    Args:
        file: Where they come from.
        spans: What the device did.
        host: Name of its host.
        truncated: The file ends early.
        unix_ns: Moment 0 of the spans since 1970; 1 where that is not known.
    """
    steps = sorted((begin, end, args["step"]) for _, stage, begin, end, args in spans if stage == Stage.STEP)
    begins = np.array([begin for begin, *_ in steps])
    events = []
    for name, stage, begin, end, args in spans:
        place = int(np.searchsorted(begins, begin, side="right")) - 1
        inside = place >= 0 and begin < steps[place][1]
        found = {"step": steps[place][2] if inside else UNKNOWN, **args}
        at = {"ts": begin, "dur": end - begin, "pid": 0}
        events.append({"name": name, "cat": stage.label, **at, "args": found})
    builder = SpanBuilder()
    builder.add(events)
    part = PartInfo(
        0, host=host, path=file, truncated=truncated, unix_ns=unix_ns, monotonic_ns=1 if unix_ns == 1 else 0
    )
    return Trace(builder.table(), (), (part,), "chrome", skipped=builder.skipped, path=file)


def with_device_ranks(files: Mapping[Path, Sequence[Trace]]) -> list[Trace]:
    """Number the devices: by the files' names in their order, within a file by the device.

    Where every file is of one device and says its rank in its name, that is its rank.

    Raises:
        RingtuneError: Files of one name lie in several folders: they are several recordings of one host.
    """
    seen: dict[str, Path] = {}
    for path in files:
        if path.name in seen:
            raise RingtuneError(f"{seen[path.name]} and {path} are two recordings of one host; import each by itself")
        seen[path.name] = path
    said = [RANK_IN_NAME.search(path.name) for path in files]
    if all(said) and all(len(traces) == 1 for traces in files.values()):
        numbers = [int(found.group(1)) for found in said if found]
        return [as_rank(traces[0], rank, 1) for rank, traces in zip(numbers, files.values(), strict=True)]
    ordered = [trace for path in sorted(files, key=lambda path: natural(path.name)) for trace in files[path]]
    return [as_rank(trace, rank, len(ordered)) for rank, trace in enumerate(ordered)]
