"""What the cores need for a byte: how it is found from steps, and kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ringtune.benchmarks.netlab.testbed import Shape
from ringtune.benchmarks.predict.effort import SIZES, UNLIMITED, keep_effort, kept_efforts, measure_effort, typical


class FakeBed:
    """Two ranks whose steps take 100 us, 2 ns a byte that moves on the slower one, and much longer at first."""

    def __init__(self) -> None:
        self.rates: list[str] = []

    def shape_links(self, rate: str) -> None:
        self.rates.append(rate)

    def job(self, shape: Shape) -> FakeBed:
        assert shape == Shape(2, 1)
        return self

    def play(self, work: Any, knobs: Any, steps: int) -> list[list[int]]:
        times = [100_000 + 2 * work.bytes + (10**9 if step < 2 else 0) for step in range(steps)]
        return [times, [time // 2 for time in times]]


def test_a_byte_takes_what_the_slowest_rank_needs_beyond_a_small_tensor(tmp_path: Path) -> None:
    bed: Any = FakeBed()
    found = measure_effort(bed, Shape(2, 1))
    assert bed.rates == [UNLIMITED] and [size for size, _ in found] == list(SIZES)
    assert [ns for _, ns in found] == pytest.approx([2.0] * len(SIZES), rel=0.01)
    file = tmp_path / "effort.jsonl"
    assert typical(kept_efforts(file)) == ()
    keep_effort(file, found)
    assert kept_efforts(file) == [found]
    for times in (3.0, 0.5):
        keep_effort(file, tuple((size, ns * times) for size, ns in found))
    assert typical(kept_efforts(file)) == found
