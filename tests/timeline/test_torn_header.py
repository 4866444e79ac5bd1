"""A part torn inside its header costs the other ranks nothing, and is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ringtune import layout
from ringtune.dashboard.data.timeline import trace as timeline_data
from ringtune.errors import TraceIoError
from ringtune.timeline.cli import timeline
from ringtune.timeline.inputs import load
from ringtune.timeline.merging.merge import merge_run
from tests.timeline.generated_run import generate_run
from tests.timeline.helpers import four_ranks

HEADER_BYTES = 96


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("left", [0.0, 0.001, 0.3, 0.7, 1.0])
def test_the_other_ranks_are_shown_and_the_torn_one_is_named(rank: int, left: float, tmp_path: Path) -> None:
    run = generate_run(tmp_path, "torn", four_ranks(steps=6))
    part = layout.timeline_part(run, rank)
    content = part.read_bytes()
    part.write_bytes(content[: int(left * (HEADER_BYTES - 1))])
    done = CliRunner().invoke(timeline, ["summary", str(run), "--json"], catch_exceptions=False)
    assert done.exit_code == 0
    document = json.loads(done.stdout)
    others = [one for one in range(4) if one != rank]
    assert [one["rank"] for one in document["ranks"]] == others and document["missing"] == [rank]
    assert f"without the whole part of rank {rank}" in document["headline"]
    assert str(part) in done.stderr
    for command in ("stragglers", "critical-path", "efficiency"):
        assert CliRunner().invoke(timeline, [command, str(run)], catch_exceptions=False).exit_code == 0
    shown, problems = timeline_data.read_all(run, timeline_data.sources(run))
    assert list(shown.ranks) == others
    assert any(part.name in sentence for sentence in problems)
    report = merge_run(run)
    assert [one.rank for one in report.parts] == others and any(part.name in one for one in report.problems)


def test_a_torn_part_alone_says_that_it_is_torn(tmp_path: Path) -> None:
    run = generate_run(tmp_path, "torn", four_ranks(steps=2))
    part = layout.timeline_part(run, 1)
    part.write_bytes(part.read_bytes()[:40])
    with pytest.raises(TraceIoError, match="torn inside its header"):
        load(part)
