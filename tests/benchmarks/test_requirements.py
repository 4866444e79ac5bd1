from __future__ import annotations

from typing import Any

import pytest

from ringtune.benchmarks.requirements import Rule, missed_limit, missed_peers, parse_rules
from ringtune.errors import UsageError

SENDERS = {"gloo": "gloo", "gloo-buckets": "gloo", "impi": "impi"}


def test_rules() -> None:
    assert parse_rules("<=256KiB:1.0, >=64MiB:1.5,gloo:4,1.2") == (
        Rule(1.0, largest=256 * 1024),
        Rule(1.5, smallest=64 * 2**20),
        Rule(4.0, peer="gloo"),
        Rule(1.2),
    )


@pytest.mark.parametrize("text", ["", "fast", "<64KiB:1", "64KiB:1.0", "<=x:1", "1.2x", "gloo:"])
def test_not_rules(text: str) -> None:
    with pytest.raises(UsageError):
        parse_rules(text)


def record(size_bytes: int, failed: dict[str, str] | None = None, **times: float) -> dict[str, Any]:
    medians = {name.replace("_", "-"): {"median": time} for name, time in times.items()}
    peers = [name for name in medians if name not in ("ringtune", "copy-limit")]
    best = min(peers, key=lambda name: medians[name]["median"], default=None)
    limit = {"median": 0.5} if "copy-limit" in medians else None
    case = {"label": "it", "bytes": size_bytes, "times": medians, "best_peer": best, "limit_ratio": limit}
    return {"failed": failed or {}, "cases": [case]}


@pytest.mark.parametrize(
    ("rules", "missed"),
    [
        ("1.5", []),
        ("1.6", ["it: 1.50x of impi, required 1.6x"]),
        ("<=1023B:9", []),
        ("<=1KiB:9,1.0", ["it: 1.50x of impi, required 9x"]),
        (">=1KiB:1.0,9", []),
        ("gloo:2", []),
        ("gloo:4,1.5", ["it: 2.50x of gloo-buckets, required 4x"]),
        ("mpich:4", []),
    ],
)
def test_beside_peers(rules: str, missed: list[str]) -> None:
    measured = record(1024, ringtune=2.0, gloo=9.0, gloo_buckets=5.0, impi=3.0)
    assert missed_peers(measured, parse_rules(rules), SENDERS) == missed


def test_a_peer_that_failed_was_not_beaten() -> None:
    measured = record(1024, {"impi": "it died"}, ringtune=2.0, gloo=9.0)
    assert missed_peers(measured, parse_rules("1"), SENDERS) == ["impi failed and could not be compared with"]


def test_beside_the_copy_limit() -> None:
    measured = record(1024, ringtune=2.0, copy_limit=1.0)
    assert missed_limit(measured, parse_rules(">=1KiB:0.5")) == []
    assert missed_limit(measured, parse_rules("0.75")) == ["it: 0.50x of copy-limit, required 0.75x"]
    assert missed_limit(record(1024, ringtune=2.0), parse_rules("0.75")) == []
