"""Every number of `run.json` says its unit: in its name, or in the README's paragraph about them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from ringtune.algorithms import ALGORITHMS, SWITCH
from ringtune.knobs import DEFAULTS
from ringtune.runfolder import RunRecord
from tests import pages

UNITS = ("_ns", "_s", "_bytes")


def numbers(document: dict[str, Any]) -> Iterator[str]:
    for name, value in document.items():
        if isinstance(value, dict):
            yield from numbers(value)
        elif isinstance(value, int | float):
            yield name


def test_every_number_of_a_run_has_a_unit() -> None:
    failure = {"rank": 1, "exit_code": 137, "after_s": 3.0}
    record = RunRecord("job", size=2, exit_code=137, ended_unix_ns=1, knobs=DEFAULTS.as_dict(), failure=failure)
    text = (pages.ROOT / "timeline" / "README.md").read_text(encoding="utf-8")
    said = text.split("Numbers in `run.json`:")[1].split("\n\n")[0]
    known = set(re.findall(r"`(\w+)`", said)) | {"rank"}
    found = set(numbers(asdict(record)))
    assert {"fusion_bytes", "cache_capacity", "after_s", "exit_code"} <= found
    assert {name for name in found if not name.endswith(UNITS)} <= known
    assert ", ".join(ALGORITHMS) in " ".join(said.split()) and ", ".join(SWITCH) in said
