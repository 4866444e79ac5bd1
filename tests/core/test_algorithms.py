"""Algorithm tables as files, and the variables that choose an algorithm."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringtune.algorithms import ALGORITHMS, LINKS, SWITCH, Rule, dump_table, load_table, parse_table
from ringtune.config import Config
from ringtune.errors import ConfigError
from tests.conftest import needs

RULES = [Rule("network", 2, 1 << 16, "recursive-doubling"), Rule("memory", 0, 0, "tree")]


def test_tables_survive_their_file(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(dump_table(RULES))
    assert parse_table(path.read_text(), "x") == RULES
    assert load_table(path) == [(1, 2, 65536, 3), (0, 0, 0, 5)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "x is no algorithm table"),
        ('{"format": 9, "rules": []}', "its format is 9"),
        ('{"format": 1, "rules": [{"links": "rope"}]}', "missing 3 required"),
        (dump_table(RULES).replace('"tree"', '"star"'), "'star': expected one of ring"),
        (dump_table(RULES).replace('"tree"', '"table"'), "'table': expected one of ring"),
        (dump_table(RULES).replace("65536", "-1"), "max_bytes=-1"),
        (dump_table(RULES).replace('"memory"', '"rope"'), "'rope': expected one of memory, network"),
    ],
)
def test_what_is_no_table_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_table(text, "x")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*gone"):
        load_table(tmp_path / "gone")


@pytest.mark.parametrize(
    ("name", "text", "number"),
    [
        ("RINGTUNE_HIERARCHICAL_ALLREDUCE", "auto", 0),
        ("HOROVOD_HIERARCHICAL_ALLREDUCE", "1", 1),
        ("RINGTUNE_HIERARCHICAL_ALLREDUCE", "off", 2),
    ],
)
def test_hierarchical_is_a_switch(name: str, text: str, number: int) -> None:
    assert Config.from_environ({name: text}).knobs.hierarchical == number


def test_an_algorithm_is_named() -> None:
    assert Config.from_environ({"RINGTUNE_ALGORITHM": "Tree"}).knobs.algorithm == 5
    with pytest.raises(ConfigError, match="expected one of table, ring, flat"):
        Config.from_environ({"RINGTUNE_ALGORITHM": "star"})


def test_numbers_are_the_native_ones() -> None:
    native = needs("ringtune._native")
    options = native.RuntimeOptions()
    assert options.algorithm_rules  # the built-in table
    assert all(row[0] < len(LINKS) and 0 < row[3] < len(ALGORITHMS) for row in options.algorithm_rules)
    options.algorithm_rules = [rule.native() for rule in RULES]
    assert options.algorithm_rules == [rule.native() for rule in RULES]
    with pytest.raises(native.Error, match="names no known algorithm"):
        options.algorithm_rules = [(0, 0, 0, len(ALGORITHMS))]
    assert len(SWITCH) == 3
