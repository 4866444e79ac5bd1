"""Size: 200,000 events in bounded time and memory that grows with the columns, not with the JSON."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import pytest

from ringtune.timeline.analysis.summary import summarize
from ringtune.timeline.merging.merge import merge
from ringtune.timeline.reading.reader import read
from ringtune.timeline.synthetic.generate import Schedule, generate

TENSORS = tuple((f"layer{number}.weight", 4096 * (number + 1)) for number in range(60))

LIMIT_S = 30.0
"""Far above the second or two it takes alone: these tests share two cores with others."""


def test_200_000_events_are_merged_and_summarized_in_seconds(tmp_path: Path) -> None:
    job = generate(Schedule(ranks=4, steps=200, tensors=TENSORS, tensors_per_batch=6, late_rank=1, late_ns=1000))
    parts = job.write(tmp_path / "parts")
    begun = time.process_time()
    report = merge(parts, tmp_path / "out.json")
    trace = read(report.output)
    summary = summarize(trace)
    spent = time.process_time() - begun
    assert report.spans == len(trace.spans) == 201_600
    assert summary.arrivals.ranks[1].tensors_last == 60 * 200
    assert spent < LIMIT_S, f"{report.spans / spent:,.0f} spans/s"


@pytest.mark.slow
def test_memory_grows_with_the_columns_and_not_with_the_json(tmp_path: Path) -> None:
    small, large = (_peak_of_merging(steps, tmp_path) for steps in (100, 400))
    # Columns are 57 bytes a span, a few copies while sorting; a span's JSON as Python objects would be over 1000.
    grown = (large[1] - small[1]) / (large[0] - small[0])
    assert grown < 300, f"{grown:.0f} bytes a span; peak {large[1] >> 20} MiB for {large[0]} spans"


def _peak_of_merging(steps: int, folder: Path) -> tuple[int, int]:
    """Spans, and the most Python and numpy held at once while merging them."""
    job = generate(Schedule(ranks=1, steps=steps, tensors=TENSORS, tensors_per_batch=6))
    parts, spans = job.write(folder / str(steps)), len(job.spans[0])
    del job
    tracemalloc.start()
    try:
        merge(parts, folder / "out.json")
        return spans, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
