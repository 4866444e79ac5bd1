"""Timelines: reading, aligning, joining and analysing what the ranks of a job recorded.

Needs Python, numpy and orjson; neither the native runtime nor a framework. Names load when first used (PEP 562).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "Instant": "spans",
    "PartInfo": "spans",
    "Run": "runs.run",
    "SpanTable": "spans",
    "Stage": "vocabulary",
    "Summary": "analysis.summary",
    "Trace": "spans",
    "align": "merging.clocks",
    "compare": "analysis.comparison",
    "counted": "analysis.steps",
    "critical_path": "analysis.critical_path",
    "efficiency": "analysis.efficiency",
    "export_parquet": "database",
    "list_runs": "runs.run",
    "load": "inputs",
    "merge": "merging.merge",
    "merge_run": "merging.merge",
    "open_run": "runs.run",
    "query": "database",
    "read": "reading.reader",
    "stragglers": "analysis.stragglers",
    "summarize": "analysis.summary",
}

__all__ = [
    *sorted(_HOMES),
]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'ringtune.timeline' has no attribute {name!r}")
    value = getattr(import_module(f"ringtune.timeline.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names for completion."""
    return sorted({*globals(), *_HOMES})
