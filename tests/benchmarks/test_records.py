from __future__ import annotations

from typing import Any

from ringtune.benchmarks.training.records import RankCountSamples, Workload, scaling_record

WORKLOAD = Workload("resnet", "resnet18", 4, 32, "float32", "images/s")


def record(**samples: list[RankCountSamples]) -> dict[str, Any]:
    return scaling_record(WORKLOAD, samples, command=["ringtune", "bench"], created_unix_ns=7)


def test_efficiency_against_one_rank() -> None:
    rows = record(ringtune=[RankCountSamples(1, 1, [[10.0] * 3]), RankCountSamples(2, 1, [[9.0] * 3] * 2)])
    assert rows == {
        "format": 1,
        "benchmark": "resnet",
        "model": "resnet18",
        "batch_size": 4,
        "image_size": 32,
        "dtype": "float32",
        "unit": "images/s",
        "created_unix_ns": 7,
        "command": ["ringtune", "bench"],
        "records": [
            {
                "ranks": 1,
                "hosts": 1,
                "rate": {"median": 10.0, "low": 10.0, "high": 10.0, "samples": [10.0] * 3},
                "per_rank": [10.0],
                "efficiency": {"median": 1.0, "low": 1.0, "high": 1.0},
            },
            {
                "ranks": 2,
                "hosts": 1,
                "rate": {"median": 18.0, "low": 18.0, "high": 18.0, "samples": [18.0] * 3},
                "per_rank": [9.0, 9.0],
                "efficiency": {"median": 0.9, "low": 0.9, "high": 0.9},
            },
        ],
        "peers": {},
    }


def test_base_is_the_smallest_rank_count() -> None:
    rows = record(ringtune=[RankCountSamples(4, 2, [[15.0] * 2] * 4), RankCountSamples(2, 1, [[20.0] * 2] * 2)])[
        "records"
    ]
    assert [row["ranks"] for row in rows] == [2, 4]
    assert [row["efficiency"]["median"] for row in rows] == [1.0, 0.75]


def test_peers_stand_beside() -> None:
    one = [RankCountSamples(1, 1, [[10.0]])]
    assert list(record(ringtune=one, **{"ddp-gloo": one})["peers"]) == ["ddp-gloo"]


def test_the_slowest_rank_counts() -> None:
    entry = RankCountSamples(2, 1, [[5.0, 6.0, 7.0], [4.0, 8.0, 7.0]])
    assert entry.rates == [8.0, 12.0, 14.0]
    assert entry.per_rank == [6.0, 7.0]


def test_rounds_are_pooled() -> None:
    entry = RankCountSamples(1)
    entry.add([[5.0, 5.0]])
    entry.add([[8.0]])
    assert entry.rates == [5.0, 5.0, 8.0]
    assert entry.per_rank == [5.0]
