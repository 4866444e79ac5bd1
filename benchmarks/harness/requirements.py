"""What `--require`, `--require-limit` and `--require-line` ask for: ratios of all cases, by size, or beside one peer.

| rule | meaning |
|---|---|
| ``1.2`` | every case: at least 1.2 times as fast as the best peer |
| ``<=256KiB:1.0``, ``>=64MiB:1.5`` | cases of at most (at least) that size; the first rule that fits a case holds |
| ``gloo:4`` | every case: at least 4 times as fast as the best contender of this peer, besides all other rules |
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ringtune.benchmarks.harness.sizes import parse_bytes
from ringtune.errors import UsageError

_RULE = re.compile(r"(?:(?P<side><=|>=)(?P<size>[^:]+):|(?P<peer>[a-z][\w-]*):)?(?P<ratio>\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class Rule:
    """One entry.

    Args:
        ratio: the least that is enough.
        smallest: bytes of the smallest case it is about.
        largest: bytes of the largest, None without a bound.
        peer: whom it compares with; empty for the best.
    """

    ratio: float
    smallest: int = 0
    largest: int | None = None
    peer: str = ""

    def fits(self, size_bytes: int) -> bool:
        """Returns whether the rule is about cases of `size_bytes`."""
        return self.smallest <= size_bytes and (self.largest is None or size_bytes <= self.largest)


def parse_rules(text: str) -> tuple[Rule, ...]:
    """Returns the rules in a comma-separated list.

    Raises:
        UsageError: an entry is no rule; the message shows how they look.
    """
    return tuple(_parse_rule(word.strip()) for word in text.split(","))


def parse_shares(text: str | None) -> tuple[Rule, ...]:
    """Returns the rules for a share of a limit in a comma-separated list; none of None.

    Raises:
        UsageError: an entry is no rule, or names a peer.
    """
    rules = parse_rules(text) if text else ()
    for rule in rules:
        if rule.peer:
            raise UsageError(f"{rule.peer}:{rule.ratio:g} names a peer where a share of the limit is asked for")
    return rules


def _parse_rule(word: str) -> Rule:
    match = _RULE.fullmatch(word)
    if match is None:
        raise UsageError(f"{word!r} is no requirement; write 1.2, <=256KiB:1.0, >=64MiB:1.5 or gloo:4")
    ratio = float(match["ratio"])
    if match["side"] is None:
        return Rule(ratio, peer=match["peer"] or "")
    size_bytes = parse_bytes(match["size"])
    return Rule(ratio, largest=size_bytes) if match["side"] == "<=" else Rule(ratio, smallest=size_bytes)


def missed_peers(record: dict[str, Any], rules: tuple[Rule, ...], senders: Mapping[str, str]) -> list[str]:
    """Returns a sentence for each case in which ringtune is slower than required beside its peers.

    Args:
        record: of a micro benchmark, or of one rate of `ringtune bench links`.
        rules: what is required.
        senders: contender -> peer that sends it.
    """
    if not rules:
        return []
    missed = [f"{peer} failed and could not be compared with" for peer in record.get("failed", ())]
    for case in record["cases"]:
        rule = _rule_for(case, rules)
        if rule is not None and case["best_peer"] is not None:
            missed += _missed(case, case["best_peer"], rule)
        for rule in rules:
            names = [name for name in case["times"] if rule.peer and senders.get(name) == rule.peer]
            if names:
                missed += _missed(case, min(names, key=lambda name: case["times"][name]["median"]), rule)
    return missed


def missed_limit(record: dict[str, Any], rules: tuple[Rule, ...]) -> list[str]:
    """Returns a sentence for each case in which ringtune is further from the copy limit than required."""
    missed = []
    for case in record["cases"]:
        rule = _rule_for(case, rules)
        if rule is not None and case["limit_ratio"] is not None:
            missed += _missed(case, "copy-limit", rule)
    return missed


def missed_line(record: dict[str, Any], rules: tuple[Rule, ...]) -> list[str]:
    """Returns a sentence for each case of `ringtune bench links` that had less of the line than required.

    Args:
        record: of one rate.
        rules: shares of what iperf3 got out of the line one way.
    """
    missed = []
    for case in record["cases"]:
        rule, share = _rule_for(case, rules), case["line_share"]["median"]
        if rule is not None and share < rule.ratio:
            missed.append(f"{case['label']}: {share:.1%} of the line, required {rule.ratio:.1%}")
    return missed


def _rule_for(case: dict[str, Any], rules: tuple[Rule, ...]) -> Rule | None:
    """Returns the first rule that fits a case and is not about one peer."""
    return next((rule for rule in rules if not rule.peer and rule.fits(case.get("bytes", 0))), None)


def _missed(case: dict[str, Any], other: str, rule: Rule) -> list[str]:
    ratio = case["times"][other]["median"] / case["times"]["ringtune"]["median"]
    return [f"{case['label']}: {ratio:.2f}x of {other}, required {rule.ratio:g}x"] if ratio < rule.ratio else []
