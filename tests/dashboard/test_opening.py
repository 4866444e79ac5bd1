"""What the Overview page and the report open with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ringtune.dashboard.data.analysis import Analysis, analyse
from ringtune.dashboard.data.step_totals import StepSummary
from ringtune.dashboard.data.steps import StepReader
from ringtune.dashboard.pages.stragglers_verdict import opening, opening_words
from ringtune.timeline.spans import Trace, concatenate
from tests.timeline.scenario import Scenario, simulate

MS = 1_000_000


@pytest.fixture(scope="module")
def numbers(runs: dict[str, Path]) -> StepSummary:
    found = StepReader(runs["done"]).read().summary
    assert found is not None
    return found


def analysed(plan: Scenario) -> Analysis:
    job, _ = simulate(plan)
    parts = tuple(job.part_info(rank) for rank in job.spans)
    return analyse(Trace(concatenate(list(job.spans.values())), (), parts, "merged", "job"))


def test_a_stall_is_the_first_sentence_with_a_link_to_its_step(numbers: StepSummary) -> None:
    start = {(rank, 0): 2_000 * MS for rank in range(4)}
    found = analysed(Scenario(steps=40, pauses={**start, (2, 17): 900 * MS}))
    (alert,) = opening(found, numbers, lambda step, rank: f"{step}/{rank}")
    text, note = alert.children
    assert text.children[0].endswith("was lost to rank 2 in 1 stall (step 17), by compute: look at rank 2 in step 17.")
    assert text.children[-1].href == "17/2" and alert.color == "orange"
    assert note.children == "Step 0 (start-up, 2.01 s) left out."


def test_the_startup_is_on_the_map_but_in_no_verdict() -> None:
    plan = Scenario(steps=30, pauses={(rank, 0): (2_000 + 300 * (rank == 1)) * MS for rank in range(4)})
    found = analysed(plan)
    assert found.document["stragglers"]["verdicts"] == []
    assert found.document["summary"]["steps"]["first"] == 1
    assert found.columns["step"].tolist() == list(range(30))
    assert found.columns["late_rank"][found.columns["late_ns"] > 250 * MS].tolist() == [1]


def test_without_a_timeline_the_step_logs_say_what_to_record(numbers: StepSummary) -> None:
    late = replace(numbers, latest_rank=3, latest_lead=0.2)
    assert opening_words(None, late).startswith("Rank 3 computes 20.0 % longer than the median rank: record a timeline")
    blocked = replace(numbers, latest_lead=0.0, blocked_share=0.31, exposed_share=0.3, waiting_share=0.01)
    parts = "30.0 % exposed communication, 1.0 % for late ranks"
    assert opening_words(None, blocked).startswith(f"Ranks were blocked for 31.0 % of the time ({parts}): record")
    assert opening_words(None, replace(blocked, blocked_share=0.0)).startswith("Ranks are even")
    assert opening_words(None, None) == "" and opening(None, None, lambda *_: "") == []
