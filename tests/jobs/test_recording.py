"""What real ranks record: who was waited for, pieces of batches, chosen steps, files that follow one another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from ringtune import layout
from ringtune.timeline.analysis.peer_wait import negotiation_peer_waits
from ringtune.timeline.analysis.summary import summarize
from ringtune.timeline.inputs import load
from ringtune.timeline.merging.parts import files_of_rank
from ringtune.timeline.reading.reader import read
from ringtune.timeline.spans import Trace
from ringtune.timeline.vocabulary import KNOBS, Stage
from ringtune.tuner.model.measured import measure
from tests.jobs.cases import common
from tests.jobs.cases import recording as recording_cases
from tests.jobs.cases import step_schedule as step_schedule_cases
from tests.jobs.launching import Job

GetJob = Callable[..., Job]
STEPS = 60
LATE_NS = recording_cases.LATE_S * 1e9


def recorded(fresh: GetJob, folder: Path, size: int, **settings: str) -> Trace:
    """Steps in which rank 1 is late, recorded; the parts of all ranks as one."""
    job = fresh(size, run_dir=folder / "run", timeline=folder / "trace.json", **settings)
    job.run(recording_cases.steps_with_a_late_rank, steps=STEPS, late=1)
    job.run(common.close_session)
    return load([path for rank in range(size) for path in files_of_rank(folder / "run", rank)])


@pytest.mark.parametrize("size", [2, 3])
def test_under_a_step_schedule_the_late_rank_is_who_was_waited_for(size: int, fresh: GetJob, tmp_path: Path) -> None:
    trace = recorded(fresh, tmp_path, size)
    runs = trace.spans.of_stage(Stage.COMMUNICATE)
    scheduled = runs.batch[runs.fact("step_schedule", 0) == 1]
    # A starved rank breaks the schedule for some steps.
    assert len(np.unique(scheduled)) > STEPS // 4, "steps follow the schedule"
    found = list(blamed(trace, scheduled))
    assert len(found) > STEPS // 4
    assert {late for late, _ in found} >= {1}
    assert sum(late == peer for late, peer in found) > 0.75 * len(found), found
    for rank in set(range(size)) - {1}:  # nearly every step costs the others the sleep
        (wait,) = (wait for wait in summarize(trace).peer_waits if (wait.rank, wait.peer) == (rank, 1))
        assert wait.total_ns > len(np.unique(scheduled)) * LATE_NS / 4
    assert set(runs.fact("process_set", 0).tolist()) == {0}


def blamed(trace: Trace, batches: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """For each batch whose last rank came clearly after the others: that rank, and whom the others waited for.

    Who came last is taken from what all ranks recorded of their submits. With the sleep that is rank 1, but on a busy
    machine any rank can be later still.
    """
    submits, waits = trace.spans.of_stage(Stage.NEGOTIATE), trace.spans.of_stage(Stage.AWAIT)
    peers = waits.fact("peer")
    for batch in np.unique(batches):
        of_batch = submits.take(submits.batch == batch)
        came = {int(rank): int(of_batch.of_rank(rank).begin_ns.max()) for rank in np.unique(of_batch.rank)}
        *_, before, last = sorted(came, key=lambda rank: came[rank])
        if came[last] - came[before] < LATE_NS / 2:
            continue
        long = (waits.batch == batch) & (waits.rank != last) & (waits.duration_ns > LATE_NS / 4)
        yield from ((last, int(peer)) for peer in peers[long])


def test_a_negotiated_late_rank_is_waited_for_in_negotiation(fresh: GetJob, tmp_path: Path) -> None:
    trace = recorded(fresh, tmp_path, 2, step_schedule="0")
    runs = trace.spans.of_stage(Stage.COMMUNICATE)
    assert set(runs.fact("step_schedule", 0).tolist()) == {0}
    split = {one.rank: one for one in summarize(trace).negotiations}
    # Rank 0 waits for five tensors a step; what agreeing costs is the rest, and rank 1 has only that, but for the
    # tensors before whose submit a busy machine held up rank 0 for longer than the sleep.
    assert split[0].waiting_ns > 5 * STEPS * LATE_NS / 2
    waits = {(wait.rank, wait.peer): wait.count for wait in negotiation_peer_waits(trace.spans)}
    assert waits[0, 1] > 2 * waits.get((1, 0), 0)


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
    # A schedule's rounds over links go on beside other work: only negotiated batches show their steps there.
    shown = runs.take(runs.fact("step_schedule", 0) == 0) if transport == "tcp" else runs
    assert len(pieces) >= len(shown) > 0


def test_only_the_chosen_steps_are_recorded(fresh: GetJob, tmp_path: Path) -> None:
    trace = recorded(fresh, tmp_path, 2, timeline_steps="5:8,20:22", timeline_gzip="1")
    for rank in (0, 1):
        steps = trace.spans.of_rank(rank).of_stage(Stage.STEP)
        assert steps.step.tolist() == [5, 6, 7, 20, 21]
        names = [path.name for path in files_of_rank(tmp_path / "run", rank)]
        assert names == [f"rank-0000{rank}.spans.gz", f"rank-0000{rank}.1.spans.gz"]


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
    job.run(common.close_session)
    whole = read(tmp_path / "run" / "trace.json")
    for rank in (0, 1):
        assert len(files_of_rank(tmp_path / "run", rank)) == 3
        assert whole.spans.of_rank(rank).of_stage(Stage.STEP).step.tolist() == [
            step for first in (0, 20, 40) for step in range(first, first + 10)
        ]
    assert len(whole.instants_named(KNOBS)) == 6
    assert layout.timeline_part(tmp_path / "run", 0).is_file()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("size", [2, 3])
def test_a_batch_has_the_same_number_on_all_ranks(size: int, transport: str, fresh: GetJob, tmp_path: Path) -> None:
    job = fresh(size, run_dir=tmp_path / "run", timeline=tmp_path / "trace.json", transport=transport)
    job.run(recording_cases.schedules_that_one_rank_leaves, count=6, steps=12)
    job.run(step_schedule_cases.disturbed, seed=size)
    job.run(common.close_session)
    trace = load([path for rank in range(size) for path in files_of_rank(tmp_path / "run", rank)])
    runs = trace.spans.of_stage(Stage.COMMUNICATE)
    assert (runs.fact("step_schedule", 0) == 1).sum() > 2 * size, "schedules were followed and left"
    held: dict[int, dict[int, set[str]]] = {}
    for batch, rank, text in zip(runs.batch.tolist(), runs.rank.tolist(), runs.tensor_texts(), strict=True):
        held.setdefault(batch, {}).setdefault(rank, set()).add(text)
    for batch, by_rank in held.items():
        assert len(by_rank) == size and len(set(map(frozenset, by_rank.values()))) == 1, (batch, by_rank)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_cast_batch_names_what_it_travelled_as(transport: str, fresh: GetJob, tmp_path: Path) -> None:
    job = fresh(2, run_dir=tmp_path / "run", timeline=tmp_path / "trace.json", transport=transport)
    job.run(recording_cases.steps_with_casts, steps=12)
    job.run(common.close_session)
    trace = load([path for rank in range(2) for path in files_of_rank(tmp_path / "run", rank)])
    for stage in (Stage.COMMUNICATE, Stage.NEGOTIATE):
        spans = trace.spans.of_stage(stage)
        cast = np.array(["cast" in text for text in spans.tensor_texts()])
        assert cast.any() and not cast.all()
        facts = np.array([spans.fact_texts[number] for number in spans.facts])
        assert all('"dtype":"float32"' in text for text in facts)
        assert all('"wire":"float16"' in text for text in facts[cast])
        assert not any("wire" in text for text in facts[~cast])


def test_steps_that_nobody_marks_stand_in_the_timeline(fresh: GetJob, tmp_path: Path) -> None:
    job = fresh(2, run_dir=tmp_path / "run", timeline=tmp_path / "trace.json")
    found = job.run(recording_cases.unmarked_steps, steps=STEPS)
    job.run(common.close_session)
    assert found[0] == found[1] and STEPS - 10 <= found[0] < STEPS
    trace = load([path for rank in range(2) for path in files_of_rank(tmp_path / "run", rank)])
    steps = trace.spans.of_stage(Stage.STEP)
    bytes_of = steps.bytes[(steps.step > 0) & (steps.step < found[0])]
    assert set(bytes_of.tolist()) == {8 * (5 + 7 + 9)}, "each detected step holds the three arrays"
    submits = trace.spans.of_stage(Stage.NEGOTIATE)
    inside = submits.take((submits.rank == 0) & (submits.step > 0) & (submits.step < found[0]))
    assert set(np.unique(inside.step, return_counts=True)[1].tolist()) == {3}
    assert measure(trace).sizes.tolist() == [5 * 8, 7 * 8, 9 * 8], "a model knows the arrays without their names"
