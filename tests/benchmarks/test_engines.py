"""`ringtune bench engines`: who takes part, and the record made of times; tests/engines has a real run."""

from __future__ import annotations

import importlib.util

import pytest

from ringtune.benchmarks.engines.command import EnginesRequest, Samples, engines_record, engines_table
from ringtune.benchmarks.engines.engines import find
from ringtune.errors import UsageError


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    present, absent = find(["spark", "ray"])
    assert not present and "has no pyspark" in absent["spark"] and "make test-engines" in absent["ray"]
    with pytest.raises(UsageError, match="unknown engine 'dask'; known: spark, ray"):
        find(["dask"])


def test_an_engines_own_way_is_compared_with_ringtunes() -> None:
    ways = {"ringtune.spark.run": Samples([2.0] * 3, [5e6] * 3), "TorchDistributor": Samples([6.0] * 3, [1e7] * 3)}
    record = engines_record(EnginesRequest(("spark",), 2, 3, 10, 64), {"spark": ways}, {"ray": "it is not here"})
    spark = record["engines"]["spark"]
    assert spark["TorchDistributor"]["start_ratio"]["median"] == 3
    assert spark["TorchDistributor"]["step_ratio"]["median"] == 2
    assert spark["ringtune.spark.run"]["start_ratio"] is None and record["absent"] == {"ray": "it is not here"}
    assert engines_table(record).row_count == 2
