"""Step logs that grow: a poll reads the new rows and nothing else, and its numbers are those of all rows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from ringtune import layout
from ringtune.dashboard.data import steps
from ringtune.dashboard.data.live.columns import FIRST_ROWS, GrowingColumn
from ringtune.dashboard.data.step_totals import Histogram

OLD = 5000
WALLS = 1_000_000 + np.arange(2 * OLD + 100, dtype=np.int64) * 7919 % 900_001


def _write(log: Path, numbers: Iterable[int]) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    always = {"begin_ns": 5, "wait_ns": 100_000, "communicate_ns": 300_000}
    rows = ({**always, "step": n, "end_ns": 5 + int(WALLS[n]), "bytes": n} for n in numbers)
    with log.open("a") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)


def test_a_poll_on_a_long_log_touches_no_old_row(tmp_path: Path) -> None:
    log, reader = layout.step_log(tmp_path, 0), steps.StepReader(tmp_path)
    _write(log, range(OLD))
    before = reader.read()
    # Whoever looks at an old row now, in the file or in memory, gets nonsense.
    with log.open("r+b") as stream:
        stream.write(b"#" * (log.stat().st_size - 1))
    for column in vars(before.ranks[0]).values():
        if isinstance(column, np.ndarray):
            column.base[:OLD] = -(2**50)
    _write(log, range(OLD, OLD + 10))
    after = reader.read()
    assert np.shares_memory(after.ranks[0].end_ns, before.ranks[0].end_ns)
    assert (len(before), len(after), after.problems) == (OLD, OLD + 10, ())
    found, (part,) = after.summary, after.parts
    assert found is not None and found.steps == OLD + 10
    walls = WALLS[1 : OLD + 10]
    assert (part.steps, part.wall_ns, part.exposed_ns) == (len(walls), walls.mean(), 100_000)
    assert found.bytes_per_step == np.arange(1, OLD + 10).mean()
    expected = np.percentile(walls, (25, 50, 75))
    assert [found.low_ns, found.median_ns, found.high_ns] == pytest.approx(expected.tolist(), rel=1 / 2048)


def test_totals_of_a_log_read_in_pieces_are_those_of_the_log_read_at_once(tmp_path: Path) -> None:
    reader = steps.StepReader(tmp_path)
    for first, last in ((0, 1), (1, 2), (2, 700), (700, 701)):
        for rank in (0, 1):
            _write(layout.step_log(tmp_path, rank), range(first, last))
        grown = reader.read()
    whole = steps.StepReader(tmp_path).read()
    assert grown.parts == whole.parts and grown.summary == whole.summary


def test_a_log_that_is_another_one_counts_anew(tmp_path: Path) -> None:
    log, reader = layout.step_log(tmp_path, 0), steps.StepReader(tmp_path)
    _write(log, range(50))
    _write(layout.step_log(tmp_path, 1), range(50))
    reader.read()
    fresh = log.with_suffix(".new")
    _write(fresh, range(20))
    os.replace(fresh, log)
    found = reader.read()
    assert found.parts == steps.StepReader(tmp_path).read().parts
    walls = np.concatenate((WALLS[1:20], WALLS[1:50]))
    assert found.summary is not None
    assert found.summary.median_ns == pytest.approx(float(np.median(walls)), rel=1 / 2048)


def test_a_line_gets_longer_by_the_median_of_its_new_steps(tmp_path: Path) -> None:
    reader = steps.StepReader(tmp_path)
    for rank in (0, 1):
        _write(layout.step_log(tmp_path, rank), range(50))
    before = steps.ends(reader.read())
    assert before == [[0, 49], [1, 49]] and steps.later(reader.read(), before) == []
    _write(layout.step_log(tmp_path, 1), range(50, 57))
    (found,) = steps.later(reader.read(), before)
    assert (found.label, found.rank, found.step.tolist()) == ("rank 1", 1, [56.0])
    assert found.median_ns.tolist() == [float(np.median(WALLS[50:57]))]
    assert steps.later(reader.read(), [[0, 49]]) is None is steps.later(reader.read(), [])


@pytest.mark.parametrize("count", [1, 2, 3, 10, 999])
def test_quantiles_are_within_a_bucket_of_the_exact_ones(count: int) -> None:
    draw = np.random.default_rng(count)
    values = np.exp(draw.uniform(0, 42, count)).astype(np.int64)
    histogram, shares = Histogram(), (0.0, 0.25, 0.5, 0.75, 1.0)
    histogram.add(values)
    assert histogram.quantiles(shares) == pytest.approx(np.quantile(values, shares).tolist(), rel=1 / 2048)


def test_what_is_taken_away_from_a_histogram_was_never_there() -> None:
    histogram = Histogram()
    histogram.add(np.array([-(2**61), 0, 4095, 4096, 2**61 - 1, 2**61], dtype=np.int64))
    histogram.add(np.array([-(2**61), 0, 4096, 2**61 - 1, 2**61], dtype=np.int64), sign=-1)
    assert histogram.quantiles((0.0, 0.5, 1.0)) == [4095, 4095, 4095]


def test_a_view_of_a_growing_column_keeps_what_it_shows() -> None:
    column, values = GrowingColumn(np.int64), np.arange(FIRST_ROWS + 5)
    column.extend(values[:7])
    early = column.view()
    column.extend(values[7:])
    assert early.tolist() == list(range(7)) and np.array_equal(column.view(), values)
    with pytest.raises(ValueError, match="read-only"):
        early[0] = 1
