"""Which bucket of DDP's an unnamed collective is.

torch.distributed names no tensor. Under ringtune's backend a bucket's allreduce is known by its number of elements, and
ringtune's recorder leaves a mark of no length for every bucket when DDP has formed them
(`ringtune.torch.recorder.buckets`): its number, its elements, its first and last parameter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ringtune.timeline.spans import SpanTable, Trace
from ringtune.timeline.vocabulary import Stage

_MARK = re.compile(r"DDP bucket (\d+) of (\d+): (\d+) elements \((.+)\)")


def bucket_names(trace: Trace) -> Mapping[int, str]:
    """Return the names of buckets by their number of elements, also where the steps with their marks are left out."""
    return trace.buckets or marked(trace.spans)


def marked(spans: SpanTable) -> dict[int, str]:
    """Return the names of buckets that marks among these spans give, by their number of elements."""
    found = named(spans.names)
    return found if found and spans.in_stage(Stage.RANGE).any() else {}


def named(names: Iterable[str]) -> dict[int, str]:
    """Return the names of buckets that the names of marks give, by their number of elements."""
    found: dict[int, dict[int, re.Match[str]]] = {}
    for match in filter(None, map(_MARK.fullmatch, names)):
        found.setdefault(int(match[3]), {})[int(match[1])] = match
    return {elements: _name(of_size) for elements, of_size in found.items()}


def _name(of_size: Mapping[int, re.Match[str]]) -> str:
    numbers, any_one = sorted(of_size), next(iter(of_size.values()))
    if len(numbers) == 1:
        return f"bucket {numbers[0]} of {any_one[2]} ({any_one[4]})"
    return f"buckets {', '.join(map(str, numbers))} of {any_one[2]}, of one size"
