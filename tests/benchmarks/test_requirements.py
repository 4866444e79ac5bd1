from __future__ import annotations

from typing import Any

import pytest

from ringtune.benchmarks.harness.requirements import (
    Rule,
    missed_limit,
    missed_line,
    missed_peers,
    parse_rules,
    parse_shares,
)
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


def test_shares_of_a_limit() -> None:
    assert parse_shares(None) == ()
    assert parse_shares(">=64MiB:0.75") == (Rule(0.75, smallest=64 * 2**20),)
    with pytest.raises(UsageError, match="gloo:4 names a peer"):
        parse_shares("0.75,gloo:4")


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


def test_the_share_of_the_line_is_required_by_size() -> None:
    cases = [
        {"label": "1 MiB", "bytes": 1 << 20, "line_share": {"median": 0.5}},
        {"label": "4 MiB", "bytes": 4 << 20, "line_share": {"median": 0.95}},
        {"label": "16 MiB", "bytes": 16 << 20, "line_share": {"median": 0.84}},
    ]
    assert missed_line({"cases": cases}, parse_rules(">=4MiB:0.85")) == ["16 MiB: 84.0% of the line, required 85.0%"]
    assert missed_line({"cases": cases[:2]}, parse_rules(">=4MiB:0.95")) == []
    assert [sentence.split(":")[0] for sentence in missed_line({"cases": cases}, parse_rules("0.96"))] == [
        "1 MiB",
        "4 MiB",
        "16 MiB",
    ]


def test_a_peer_at_one_rate_of_the_links() -> None:
    """Such a record says nothing of failures: a peer that fails there ends the run."""
    rate = {"cases": record(4096, ringtune=2.0, gloo=1.0)["cases"]}
    assert missed_peers(rate, parse_rules("1.0"), {}) == ["it: 0.50x of gloo, required 1x"]
