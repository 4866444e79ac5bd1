"""The table of knobs: one row says everything, and the native runtime's table agrees with it."""

from __future__ import annotations

import pytest

from ringtune.config import Config
from ringtune.errors import ConfigError, InvalidArgument
from ringtune.knobs import DEFAULTS, TABLE, Knobs, Row
from tests.conftest import needs

ROWS = pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)


def edges(row: Row) -> tuple[int, int]:
    return row.low, row.low + 2 if row.high is None else row.high


@ROWS
def test_a_value_survives_the_variable(row: Row) -> None:
    for value in (row.default, *edges(row)):
        found = Config.from_environ({f"RINGTUNE_{row.variable}": row.text(value)})
        assert getattr(found.knobs, row.name) == value and found.knobs == Knobs(**{row.name: value})
        assert row.number(found.value(row.name)) == value


@ROWS
def test_a_value_out_of_its_range_is_refused_by_name(row: Row) -> None:
    for value in (row.low - 1, *([] if row.high is None else [row.high + 1])):
        with pytest.raises(InvalidArgument, match=f"knob {row.name}: got {value}, expected an integer"):
            Knobs(**{row.name: value})
        if row.kind in ("int", "float"):
            with pytest.raises(ConfigError, match=f"RINGTUNE_{row.variable}='{value}': expected a"):
                Config.from_environ({f"RINGTUNE_{row.variable}": str(value)})


def test_the_native_table_is_the_same() -> None:
    native = needs("ringtune._native")
    options = native.RuntimeOptions()
    assert options.knobs == DEFAULTS.as_dict()
    for row in TABLE:
        for value in edges(row):
            options.knobs = {row.name: value}
            assert options.knobs[row.name] == value
        for value in (row.low - 1, *([] if row.high is None else [row.high + 1])):
            with pytest.raises(native.InvalidArgument, match=f"{row.name} must be"):
                options.knobs = {row.name: value}
    with pytest.raises(native.InvalidArgument, match="unknown knob 'nothing', expected one of fusion_bytes"):
        options.knobs = {"nothing": 1}
