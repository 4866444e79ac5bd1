"""What the timeline's tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson
import pytest

from ringtune.timeline.merging import native_writer
from ringtune.timeline.merging.merge import join, merge
from ringtune.timeline.merging.merged_file import in_file_order
from ringtune.timeline.reading.reader import read
from ringtune.timeline.spans import COLUMN_TYPES, SpanTable, Trace, concatenate
from ringtune.timeline.synthetic.generate import GeneratedJob, HostClock, Schedule, generate
from ringtune.timeline.vocabulary import Stage
from tests.conftest import needs
from tests.timeline.scenario import Scenario, ScenarioTruth, simulate

TWO_HOSTS = ("host-a", "host-a", "host-b", "host-b")
SKEWED = {"host-b": HostClock(offset_ns=-777_000_123_456, drift_ppm=40.0, error_ns=1_500)}


Engine = Literal["plain", "native"]
ENGINES: tuple[Engine, ...] = ("plain", "native")
"""What writes merged files."""


@contextmanager
def writing_by(engine: Engine) -> Iterator[None]:
    """Merged files are written by that code meanwhile; the test is skipped where it is missing."""
    if engine == "native":
        needs("ringtune._native")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native_writer, "available", lambda: engine == "native")
        yield


def four_ranks(**changes: Any) -> Schedule:
    """Two hosts with two ranks each, clocks far apart and drifting."""
    return Schedule(**{"ranks": 4, "hosts": TWO_HOSTS, "clocks": SKEWED, **changes})


def merged(job: GeneratedJob, folder: Path, name: str = "merged.json") -> Trace:
    """The job's parts, written, merged and read back."""
    merge(job.write(folder / "parts"), folder / name)
    return read(folder / name)


def events_of(path: Path) -> list[dict[str, Any]]:
    """The events of a file, parsed the plain way."""
    document = orjson.loads(path.read_bytes())
    return document if isinstance(document, list) else document["traceEvents"]


def rows(table: SpanTable) -> list[tuple[Any, ...]]:
    """The spans as tuples with their texts: comparable between tables."""
    table = in_file_order(table)
    plain = [column for column in COLUMN_TYPES if column not in ("name", "tensor", "facts")]
    columns = [getattr(table, column).tolist() for column in plain]
    facts = [table.fact_texts[code] for code in table.facts.tolist()]
    return sorted(zip(*columns, table.name_texts(), table.tensor_texts(), facts, strict=True))


def truth_table(job: GeneratedJob) -> SpanTable:
    """All spans of a generated job on rank 0's clock, from the job's first event."""
    table = concatenate(list(job.spans.values()))
    return table.shifted(-int(table.begin_ns.min()))


def write_json(path: Path, document: Any) -> Path:
    """Write a document and return its path."""
    path.write_bytes(orjson.dumps(document))
    return path


def make_spans(specs: list[tuple[int, int]], *, stage: int, rank: int = 0) -> SpanTable:
    """A table of spans (begin, end) in one stage of one rank."""
    begin, end = (np.array([spec[at] for spec in specs], dtype=np.int64) for at in (0, 1))
    columns = {name: np.zeros(len(specs), dtype=kind) for name, kind in COLUMN_TYPES.items()}
    columns |= {"begin_ns": begin, "end_ns": end}
    columns["stage"] += np.uint8(stage)
    columns["rank"] += np.int32(rank)
    return SpanTable(**columns, names=("span",), tensors=("",))


def trace_of(plan: Scenario) -> tuple[Trace, ScenarioTruth]:
    """A simulated job as a joined trace, and its truth."""
    job, truth = simulate(plan)
    return join([Trace(job.spans[rank], (), (job.part_info(rank),), "part") for rank in job.spans]), truth


def with_ranges(
    trace: Trace, length_ns: Callable[[int, int], int], name: str = "load batch", stage: Stage = Stage.RANGE
) -> Trace:
    """The trace with one range at the begin of every step, of a length that depends on the rank and the step."""
    steps = trace.spans.of_stage(Stage.STEP)
    where = zip(steps.rank.tolist(), steps.step.tolist(), strict=True)
    length = np.array([length_ns(rank, step) for rank, step in where], dtype=np.int64)
    ranges = replace(
        steps,
        stage=np.full(len(steps), stage, dtype=np.uint8),
        end_ns=steps.begin_ns + length,
        name=np.zeros(len(steps), dtype=np.int32),
        names=(name,),
    )
    return replace(trace, spans=concatenate([trace.spans, ranges]))


__all__ = [
    "ENGINES",
    "SKEWED",
    "TWO_HOSTS",
    "Engine",
    "events_of",
    "four_ranks",
    "generate",
    "make_spans",
    "merged",
    "rows",
    "trace_of",
    "truth_table",
    "with_ranges",
    "write_json",
]
