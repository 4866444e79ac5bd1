"""The algorithms of an allreduce between ranks that share no memory, and tables that choose one.

A table is a list of rules; the first one that fits counts, else the ring is taken. As a file it is JSON:

    {"format": 1, "rules": [{"links": "network", "max_ranks": 2, "max_bytes": 65536, "algorithm": "flat"}]}

`max_ranks` and `max_bytes` of 0 mean no limit. The native runtime holds the built-in table
(`native/collective/algorithm.cc`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ringtune.errors import ConfigError

ALGORITHMS = ("table", "ring", "flat", "recursive-doubling", "halving-doubling", "tree", "hierarchical")
"""Names by native number; the first one stands for the table's choice."""

SWITCH = ("auto", "on", "off")
LINKS = ("memory", "network")
"""Classes of links by native number: shared memory among all ranks, or a network between some of them."""

FORMAT = 1


@dataclass(frozen=True)
class Rule:
    """A row: the algorithm for at most so many ranks and bytes (0 = no limit) on links of a class."""

    links: str
    max_ranks: int
    max_bytes: int
    algorithm: str

    def __post_init__(self) -> None:
        """Check the words and ranges.

        Raises:
            ConfigError: An unknown word or a negative limit.
        """
        if self.links not in LINKS:
            raise ConfigError(f"rule for links {self.links!r}: expected one of {', '.join(LINKS)}")
        if self.algorithm not in ALGORITHMS[1:]:
            raise ConfigError(f"rule for algorithm {self.algorithm!r}: expected one of {', '.join(ALGORITHMS[1:])}")
        for name in ("max_ranks", "max_bytes"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ConfigError(f"rule with {name}={value!r}: expected an integer >= 0")

    def native(self) -> tuple[int, int, int, int]:
        """Return the row as the native runtime takes it."""
        return LINKS.index(self.links), self.max_ranks, self.max_bytes, ALGORITHMS.index(self.algorithm)


def dump_table(rules: Sequence[Rule]) -> str:
    """Return the JSON text of a table."""
    return json.dumps({"format": FORMAT, "rules": [asdict(rule) for rule in rules]}, indent=1) + "\n"


def parse_table(text: str, source: str) -> list[Rule]:
    """Return the rules in the JSON text of a table.

    Args:
        text: What `dump_table` made, perhaps edited.
        source: Where it stands, for messages.

    Raises:
        ConfigError: It is no table of this format.
    """
    try:
        document = json.loads(text)
        if document["format"] != FORMAT:
            raise ConfigError(f"its format is {document['format']!r}, this version reads {FORMAT}")
        return [Rule(**row) for row in document["rules"]]
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{source} is no algorithm table: {error}") from None


def load_table(path: Path) -> list[tuple[int, int, int, int]]:
    """Return the rules of a file as the native runtime takes them.

    Raises:
        ConfigError: The file cannot be read or holds no table.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"RINGTUNE_ALGORITHM_TABLE: cannot read {path}: {error.strerror}") from None
    return [rule.native() for rule in parse_table(text, str(path))]
