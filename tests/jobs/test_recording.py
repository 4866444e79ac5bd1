"""What real ranks record: who was waited for, pieces of batches, chosen steps, files that follow one another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ringtune import layout
from ringtune.timeline.inputs import load
from ringtune.timeline.merge import files_of_rank
from ringtune.timeline.reader import read
from ringtune.timeline.spans import Trace
from ringtune.timeline.summary import summarize
from ringtune.timeline.vocabulary import KNOBS, Stage
from tests.jobs import cases, recording_cases
from tests.jobs.launching import Job

GetJob = Callable[..., Job]
STEPS = 60
LATE_NS = recording_cases.LATE_S * 1e9


def recorded(fresh: GetJob, folder: Path, size: int, **settings: str) -> Trace:
    """Steps in which rank 1 is late, recorded; the parts of all ranks as one."""
    job = fresh(size, run_dir=folder / "run", timeline=folder / "trace.json", **settings)
    job.run(recording_cases.steps_with_a_late_rank, steps=STEPS, late=1)
    job.run(cases.close_session)
    return load([path for rank in range(size) for path in files_of_rank(folder / "run", rank)])


@pytest.mark.parametrize("size", [2, 3])
def test_under_a_plan_the_late_rank_is_who_was_waited_for(size: int, fresh: GetJob, tmp_path: Path) -> None:
    trace = recorded(fresh, tmp_path, size)
    runs = trace.spans.of_stage(Stage.COMMUNICATE)
    planned = runs.batch[runs.fact("plan", 0) == 1]
    assert len(np.unique(planned)) > STEPS // 2, "most steps follow the plan"
    waits = summarize(trace).awaited
    for rank in set(range(size)) - {1}:
        # Nearly every step costs the others the sleep, put down to rank 1; a busy machine makes others late as well.
        most = max((wait for wait in waits if wait.rank == rank), key=lambda wait: wait.total_ns)
        assert most.peer == 1
        assert most.total_ns > STEPS * LATE_NS / 2
    assert set(runs.fact("process_set", 0).tolist()) == {0}


def test_a_negotiated_late_rank_is_waited_for_in_negotiation(fresh: GetJob, tmp_path: Path) -> None:
    trace = recorded(fresh, tmp_path, 2, plan="0")
    runs = trace.spans.of_stage(Stage.COMMUNICATE)
    assert set(runs.fact("plan", 0).tolist()) == {0}
    split = {one.rank: one for one in summarize(trace).negotiations}
    # Rank 0 waits for five tensors a step; what agreeing costs is the rest, and rank 1 has only that.
    assert split[0].waiting_ns > 5 * STEPS * LATE_NS / 2
    assert split[1].waiting_ns < split[0].waiting_ns / 4


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_full_detail_shows_the_pieces_of_a_batch(transport: str, fresh: GetJob, tmp_path: Path) -> None:
    trace = recorded(fresh, tmp_path, 2, timeline_detail="full", transport=transport)
    pieces = trace.spans.of_stage(Stage.PIECE)
    expected = {"PACK", "REDUCE"} if transport == "shm" else {"EXCHANGE"}
    assert expected <= set(pieces.name_texts())
    runs = trace.spans.of_stage(Stage.COMMUNICATE)
    ends = {(rank, batch): end for rank, batch, end in zip(runs.rank, runs.batch, runs.end_ns, strict=True)}
    columns = zip(pieces.rank, pieces.batch, pieces.end_ns, strict=True)
    assert all(end <= ends[rank, batch] for rank, batch, end in columns)
    # A plan's rounds over links go on beside other work: only negotiated batches show their steps there.
    shown = runs.take(runs.fact("plan", 0) == 0) if transport == "tcp" else runs
    assert len(pieces) >= len(shown) > 0


def test_only_the_chosen_steps_are_recorded(fresh: GetJob, tmp_path: Path) -> None:
    trace = recorded(fresh, tmp_path, 2, timeline_steps="5:8,20:22", timeline_gzip="1")
    for rank in (0, 1):
        steps = trace.spans.of_rank(rank).of_stage(Stage.STEP)
        assert steps.step.tolist() == [5, 6, 7, 20, 21]
        names = [path.name for path in files_of_rank(tmp_path / "run", rank)]
        assert names == [f"rank-0000{rank}.json.gz", f"rank-0000{rank}.1.json.gz"]


def test_a_large_part_goes_on_in_further_files(fresh: GetJob, tmp_path: Path) -> None:
    trace = recorded(fresh, tmp_path, 2, timeline_rotate_bytes="10000")
    files = files_of_rank(tmp_path / "run", 1)
    assert len(files) > 1
    assert [read(path).parts[0].file for path in files] == list(range(len(files)))
    assert trace.spans.of_rank(1).of_stage(Stage.STEP).step.tolist() == list(range(STEPS))
    assert [part.truncated for part in trace.parts] == [False, False]


def test_recordings_start_and_stop_at_any_time(fresh: GetJob, tmp_path: Path) -> None:
    job = fresh(2, run_dir=tmp_path / "run")
    job.run(recording_cases.recordings, count=3, steps=10)
    job.run(cases.close_session)
    whole = read(tmp_path / "run" / "trace.json")
    for rank in (0, 1):
        assert len(files_of_rank(tmp_path / "run", rank)) == 3
        assert whole.spans.of_rank(rank).of_stage(Stage.STEP).step.tolist() == [
            step for first in (0, 20, 40) for step in range(first, first + 10)
        ]
    assert len(whole.instants_named(KNOBS)) == 6
    assert layout.timeline_part(tmp_path / "run", 0).is_file()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_cast_batch_names_what_it_travelled_as(transport: str, fresh: GetJob, tmp_path: Path) -> None:
    job = fresh(2, run_dir=tmp_path / "run", timeline=tmp_path / "trace.json", transport=transport)
    job.run(recording_cases.steps_with_casts, steps=12)
    job.run(cases.close_session)
    trace = load([path for rank in range(2) for path in files_of_rank(tmp_path / "run", rank)])
    for stage in (Stage.COMMUNICATE, Stage.NEGOTIATE):
        spans = trace.spans.of_stage(stage)
        cast = np.array(["cast" in text for text in spans.tensor_texts()])
        assert cast.any() and not cast.all()
        facts = np.array([spans.fact_texts[number] for number in spans.facts])
        assert all('"dtype":"float32"' in text for text in facts)
        assert all('"wire":"float16"' in text for text in facts[cast])
        assert not any("wire" in text for text in facts[~cast])
