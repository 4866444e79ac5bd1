"""A part torn inside its header costs the other ranks nothing, and is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ringtune import layout
from ringtune.dashboard.data.analysis import analyse
from ringtune.dashboard.data.timeline import trace as timeline_data
from ringtune.dashboard.pages.stragglers_verdict import opening
from ringtune.errors import TraceIoError
from ringtune.timeline.cli import timeline
from ringtune.timeline.inputs import load
from ringtune.timeline.merging.merge import merge_run
from tests.timeline.generated_run import generate_run
from tests.timeline.helpers import four_ranks
from tests.timeline.planted import MS, job
from tests.timeline.scenario import simulate

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


@pytest.mark.parametrize("rank", [0, 2])
def test_a_part_that_ends_before_half_of_the_steps_is_as_good_as_none(rank: int, tmp_path: Path) -> None:
    """Its rank is named by every command and page, and nothing is said of what it would have to tell."""
    run = generate_run(tmp_path, "torn", four_ranks(steps=40), tuning=False)
    part = layout.timeline_part(run, rank)
    part.write_bytes(part.read_bytes()[: len(part.read_bytes()) // 10])
    said = f"the part of rank {rank} ends early, before half of these steps"
    for command in ("summary", "stragglers", "critical-path", "efficiency", "doctor"):
        done = CliRunner().invoke(timeline, [command, str(run)], catch_exceptions=False)
        assert done.exit_code == 0 and " ".join(done.stdout.split()).count(said) == 1, command
    page = " ".join(CliRunner().invoke(timeline, ["doctor", str(run)]).stdout.split())
    assert f"what set the length of the steps is not known without rank {rank}" in page
    assert f"not predicted: rank {rank} left no whole part" in page and "load balance" not in page
    document = json.loads(CliRunner().invoke(timeline, ["summary", str(run), "--json"]).stdout)
    assert (document["missing"], document["cut"]) == ([], [rank])
    shown, problems = timeline_data.read_all(run, timeline_data.sources(run))
    assert len(shown.ranks) == 4 and [sentence for sentence in problems if said in sentence]
    alert = str(opening(analyse(shown, problems), None, lambda _step, _rank: ""))
    assert said in alert.replace("The part", "the part") and "teal" not in alert


@pytest.mark.parametrize(("torn", "of"), [(0, "rank 1"), (1, "rank 0")])
@pytest.mark.parametrize("steps", [(20, 30), (36, 39), (30, 39)])
def test_pauses_are_of_the_rank_that_left_its_steps(steps: tuple[int, int], torn: int, of: str, tmp_path: Path) -> None:
    """Where the other part is torn early, nobody knows whether all ranks paused."""
    pauses = {(rank, step): 400 * MS for rank in range(2) for step in steps}
    simulate(job(2, 40, 12, pauses))[0].write(folder := tmp_path / "parts")
    part = next(folder.glob(f"rank-0000{torn}*"))
    part.write_bytes(part.read_bytes()[: len(part.read_bytes()) // 10])
    said = CliRunner().invoke(timeline, ["summary", str(folder)], catch_exceptions=False).stdout
    assert f"pauses of {of} (steps {steps[0]}, {steps[1]})" in " ".join(said.split())


def test_two_runs_say_which_of_them_lacks_what(tmp_path: Path) -> None:
    whole = generate_run(tmp_path, "whole", four_ranks(steps=12), tuning=False)
    torn = generate_run(tmp_path / "other", "torn", four_ranks(steps=12), tuning=False)
    layout.timeline_part(torn, 3).unlink()
    said = CliRunner().invoke(timeline, ["diff", str(whole), str(torn)], catch_exceptions=False).stdout
    assert "! B: no part of rank 3" in said and "! A:" not in said
    assert f"A: {whole} (" in said and f"B: {torn} (" in said
