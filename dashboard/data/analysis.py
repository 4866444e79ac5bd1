"""The analyses of a timeline that pages show: which rank was late in which step, and the times of communication.

Every number comes from `ringtune.timeline`'s analyses. This module gives them a form of bounded size that can lie on
the disk beside a large timeline's index: a JSON document and columns of numbers.

Columns: ``late_*``, a row for every step and cause with a last rank; ``step*``, when each step began on the first and
ended on the last rank; ``batch_*``, see `ringtune.dashboard.data.traffic`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from ringtune.dashboard.data.traffic import batch_columns, fill_histogram
from ringtune.errors import RingtuneError
from ringtune.timeline.analysis.headline import headline
from ringtune.timeline.analysis.peer_wait import negotiation_peer_waits
from ringtune.timeline.analysis.steps import counted
from ringtune.timeline.analysis.stragglers import CAUSES, StepLateness, Stragglers, late_in_steps, stragglers
from ringtune.timeline.analysis.summary import Summary, summarize
from ringtune.timeline.spans import SpanTable, Trace
from ringtune.timeline.vocabulary import Stage

LISTED = 20
"""Most tensors and steps that are listed one by one."""

_ALL = 1 << 60
_DOCUMENT, _COLUMNS = "analysis.json", "analysis.npz"
_SUMMARIZED = (
    "size", "span_count", "duration_ns", "steps", "ranks", "traffic", "bus_bytes_per_s", "fusion", "knobs_versions",
    "peer_waits", "negotiations", "source",
)  # fmt: skip


@dataclass(frozen=True)
class Analysis:
    """The analyses of one timeline.

    Attributes:
        document: ``headline`` (what cost the job most), ``startup`` (a sentence: which steps all but the columns of
            lateness and steps leave out; empty: none), ``summary`` (a part of `Summary.to_json`), ``stragglers``
            (`Stragglers.to_json`, None where ranks cannot be compared), ``why_not`` (the reason), ``waits`` (peers
            waited for in negotiation), ``fill``.
        columns: See the module.
        problems: Sentences about what is missing of the timeline.
    """

    document: Mapping[str, Any]
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that left anything, in order."""
        return tuple(int(rank["rank"]) for rank in self.document["summary"]["ranks"])

    def window_ns(self, first: int, last: int) -> tuple[int, int] | None:
        """Return when steps ``first`` to ``last`` began and ended, over all ranks; None when none is recorded."""
        step = self.columns["step"]
        part = slice(int(np.searchsorted(step, first, "left")), int(np.searchsorted(step, last, "right")))
        if part.start >= part.stop:
            return None
        return int(self.columns["step_begin_ns"][part].min()), int(self.columns["step_end_ns"][part].max())


def analyse(trace: Trace, problems: tuple[str, ...] = ()) -> Analysis:
    """Return the analyses of a trace; an empty one where it holds no spans."""
    whole, found = trace, counted(trace)
    trace, startup = found.trace, found.startup
    summary = summarize(trace)
    late, why_not = None, ""
    try:
        late = stragglers(trace, largest=_ALL, permuted=False)
    except RingtuneError as error:
        why_not = str(error)
    in_steps = late_in_steps(whole) if startup is not None else late.worst_steps if late else ()
    document = {
        "headline": headline(trace, late, summary),
        "startup": startup.sentence() if startup is not None else "",
        "summary": _chosen(summary),
        "stragglers": _listed(late).to_json() if late is not None else None,
        "why_not": why_not,
        "waits": [asdict(one) for one in negotiation_peer_waits(trace.spans)],
        "fill": fill_histogram(trace),
    }
    columns = {**_late_columns(in_steps), **_step_columns(whole.spans), **batch_columns(trace)}
    return Analysis(orjson.loads(orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS)), columns, problems)


def _chosen(summary: Summary) -> dict[str, Any]:
    everything = summary.to_json()
    return {name: everything[name] for name in _SUMMARIZED}


def _listed(found: Stragglers) -> Stragglers:
    return replace(found, tensors=found.tensors[:LISTED], worst_steps=found.worst_steps[:LISTED])


def late_columns(trace: Trace) -> dict[str, NDArray[Any]]:
    """Return the columns of lateness and steps of some steps alone, as they stand in their analysis."""
    return {**_late_columns(late_in_steps(trace)), **_step_columns(trace.spans)}


def _late_columns(found: Sequence[StepLateness]) -> dict[str, NDArray[Any]]:
    rows = [one for one in found if one.step >= 0]
    return {
        "late_step": np.array([one.step for one in rows], dtype=np.int64),
        "late_cause": np.array([CAUSES.index(one.cause) for one in rows], dtype=np.uint8),
        "late_rank": np.array([one.rank for one in rows], dtype=np.int64),
        "late_ns": np.array([one.lateness_ns for one in rows], dtype=np.int64),
    }


def _step_columns(spans: SpanTable) -> dict[str, NDArray[Any]]:
    steps = spans.of_stage(Stage.STEP)
    if not len(steps):  # traces of other tools may give only the step of a collective
        steps = spans
    steps = steps.take(steps.step >= 0)
    number, place = np.unique(steps.step, return_inverse=True)
    begin, end = np.full(len(number), 2**62, dtype=np.int64), np.zeros(len(number), dtype=np.int64)
    np.minimum.at(begin, place, steps.begin_ns)
    np.maximum.at(end, place, steps.end_ns)
    return {"step": number, "step_begin_ns": begin, "step_end_ns": end}


def save(folder: Path, found: Analysis) -> None:
    """Put an analysis into a folder.

    Raises:
        OSError: It cannot be written.
    """
    np.savez(folder / _COLUMNS, **found.columns)  # type: ignore[arg-type]
    partial = folder / f".{_DOCUMENT}.{os.getpid()}"
    partial.write_bytes(orjson.dumps({"document": found.document, "problems": found.problems}))
    os.replace(partial, folder / _DOCUMENT)  # the document last: where it is, all is there


def open_analysis(folder: Path) -> Analysis | None:
    """Return the analysis in a folder; None when there is none, or none that can be read."""
    with suppress(OSError, ValueError, KeyError):
        said = orjson.loads((folder / _DOCUMENT).read_bytes())
        with np.load(folder / _COLUMNS, allow_pickle=False) as columns:
            return Analysis(said["document"], {name: columns[name] for name in columns.files}, tuple(said["problems"]))
    return None
