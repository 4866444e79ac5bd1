"""The benchmark of the dashboard's timeline: a real server, a real browser, figures for every move."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner

from ringtune.benchmarks import pages


def test_it_measures_paints_answers_and_payloads(
    require_tool: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    require_tool("browser")
    monkeypatch.setattr(pages, "PAINTS", 1)
    monkeypatch.setattr(pages, "TURNS", 2)
    arguments = ["--events", "20k", "--moves", "4", "--json", str(tmp_path / "record.json")]
    found = CliRunner().invoke(pages.dashboard_command, arguments, catch_exceptions=False)
    assert "The timeline's page" in found.output
    (trace,) = orjson.loads((tmp_path / "record.json").read_bytes())["traces"]
    assert trace["events"] == 20_000
    assert len(trace["first_paint_ms"]) == 1
    assert trace["prepare_s"] > 0
    assert len(trace["answer_ms"]) == len(trace["payload_bytes"]) >= 2
    assert all(2000 < size < 1_000_000 for size in trace["payload_bytes"])
    assert set(trace["analyses"]) == {"stragglers", "communication", "compare"}
    for page in trace["analyses"].values():
        assert len(page["first_paint_ms"]) == 1 and len(page["answer_ms"]) >= 2
        assert all(2000 < size < 1_000_000 for size in page["payload_bytes"])
