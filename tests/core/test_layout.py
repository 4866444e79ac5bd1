from __future__ import annotations

import time
from pathlib import Path

import pytest

from ringtune import layout

RUN = Path("runs/x")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (layout.run_file(RUN), "runs/x/run.json"),
        (layout.machine_file(RUN, 3), "runs/x/machine/rank-00003.json"),
        (layout.timeline_part(RUN, 0), "runs/x/timeline/rank-00000.spans"),
        (layout.timeline_file(RUN), "runs/x/timeline.json"),
        (layout.step_log(RUN, 12), "runs/x/steps/rank-00012.jsonl"),
        (layout.sample_log(RUN, 2), "runs/x/samples/rank-00002.jsonl"),
        (layout.tuning_journal(RUN), "runs/x/tuning/journal.jsonl"),
        (layout.tuning_study(RUN), "runs/x/tuning/study.db"),
        (layout.scaling_file(RUN, "resnet 50"), "runs/x/scaling/resnet-50.json"),
        (layout.log_file(RUN, 1), "runs/x/logs/rank-00001.log"),
        (layout.stack_file(RUN, 1), "runs/x/stacks/rank-00001.txt"),
        (layout.stall_file(RUN, 1), "runs/x/stacks/rank-00001.json"),
    ],
)
def test_names_are_those_agreed(path: Path, expected: str) -> None:
    assert path == Path(expected)


@pytest.mark.parametrize("rank", [0, 7, 99999, 123456])
def test_rank_of_a_file(rank: int) -> None:
    assert layout.rank_of(layout.step_log(RUN, rank)) == rank


def test_rank_of_another_file() -> None:
    with pytest.raises(ValueError, match="rank-NNNNN"):
        layout.rank_of(Path("notes.txt"))


def test_run_name() -> None:
    at = time.mktime((2026, 3, 4, 5, 6, 7, 0, 0, -1))
    assert layout.run_name("my job/1", round(at * 1e9)) == "my-job-1-20260304-050607"


@pytest.mark.parametrize(("name", "slug"), [("a b", "a-b"), ("", "run"), ("../..", "run"), ("träin.py", "tr-in.py")])
def test_slug(name: str, slug: str) -> None:
    assert layout.slug(name) == slug
