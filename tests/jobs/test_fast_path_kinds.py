"""The fast path of every collective over real ranks: repeated calls enter no Python and are right; others are too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from ringtune.timeline.reading.reader import read
from ringtune.timeline.vocabulary import Stage
from ringtune.torch import handles
from tests.jobs.cases import fast_path_kinds as cases
from tests.jobs.cases import fast_path_waits as waits
from tests.jobs.launching import LOST_WITHIN_S, STARVED_S, Job, variables

GetJob = Callable[..., Job]
ALL = [*cases.CALLS, "barrier"]
EVERY = pytest.mark.parametrize("kind", ALL)
WITH_TENSORS = pytest.mark.parametrize("kind", list(cases.CALLS))
SIZES = pytest.mark.parametrize("size", [1, 2, 3], scope="module")
TRANSPORTS = pytest.mark.parametrize("transport", ["shm", "tcp"], scope="module")
DTYPES = [(kind, dtype) for kind in cases.CALLS for dtype in cases.DTYPES if dtype != "bool" or kind != "allreduce"]
DTYPES.remove(("reducescatter", "bool"))
DYNAMIC = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}


def test_results_are_made_where_they_were() -> None:
    with torch.device("meta"):  # stands for a default device that is a GPU
        result_factory = handles.result_factory_of(torch.ones(4, device="cpu"))
    assert result_factory.function(result_factory.argument).device.type == "cpu"


@SIZES
@pytest.mark.parametrize(("kind", "dtype"), DTYPES)
def test_repeated_calls_enter_no_python(kind: str, dtype: str, size: int, job: GetJob) -> None:
    job(size).run(cases.repeated, kind=kind, dtype=dtype)


@SIZES
@WITH_TENSORS
def test_shapes_of_all_sorts(kind: str, size: int, job: GetJob) -> None:
    job(size).run(cases.odd_shapes, kind=kind)


@SIZES
def test_repeated_barriers_enter_no_python(size: int, job: GetJob) -> None:
    job(size).run(cases.barriers)


@pytest.mark.parametrize("size", [2, 3], scope="module")
def test_a_repeated_barrier_waits_for_all(size: int, job: GetJob, tmp_path: Path) -> None:
    job(size).run(waits.a_barrier_waits, folder=str(tmp_path))


@pytest.mark.parametrize("size", [2, 3], scope="module")
@WITH_TENSORS
def test_over_tcp(kind: str, size: int, job: GetJob) -> None:
    job(size, "tcp").run(cases.repeated, kind=kind, dtype="float32")


@pytest.mark.parametrize(("kind", "what"), cases.UNLIKE)
def test_a_call_that_differs_goes_the_long_way(kind: str, what: str, job: GetJob) -> None:
    for entered in job(2).run(cases.unlike, kind=kind, what=what):
        assert kind in entered


@pytest.mark.parametrize("size", [1, 2, 3], scope="module")
def test_an_alltoall_with_splits_goes_the_long_way(size: int, job: GetJob) -> None:
    job(size).run(cases.splits_differ)


@TRANSPORTS
@pytest.mark.parametrize("size", [2, 3], scope="module")
def test_a_peer_sends_with_splits(size: int, transport: str, job: GetJob) -> None:
    first = job(size, transport).run(cases.peer_splits)[0]
    assert first[1] == []  # as many rows as before
    assert all("alltoall" not in entered for entered in first[1:])


OTHERS = [[2], [2], [3], [0], [0], [1], [2], [2], [50_000], [50_000], [1], [2], [100_000], [0]]
IN_TURN = [[1, 3], [3, 1], [4, 0], [0, 4], [2, 2], [5, 5], [0, 0], [1, 3]]


@TRANSPORTS
def test_rows_of_the_other_rank_change(transport: str, job: GetJob) -> None:
    first = job(2, transport).run(cases.peer_rows, own=2, others=OTHERS)[0]
    assert first[1] == []
    assert all("allgather" not in entered for entered in first[1:])


@TRANSPORTS
def test_rows_move_from_one_rank_to_another(transport: str, job: GetJob) -> None:
    first = job(3, transport).run(cases.peer_rows, own=2, others=IN_TURN)[0]
    assert all("allgather" not in entered for entered in first[1:])


@TRANSPORTS
def test_large_rows_of_the_other_rank_change(transport: str, job: GetJob) -> None:
    job(2, transport).run(cases.peer_rows, own=60_000, others=[[rows] for rows in (10, 10, 0, 60_000, 1, 10, 10)])


@pytest.mark.parametrize("rows", [3, 0])
def test_a_rank_without_rows(rows: int, job: GetJob) -> None:
    job(2).run(cases.peer_rows, own=0, others=[[rows]] * 5 + [[rows + 1]] * 2 + [[0]])


def test_a_reducescatter_of_fewer_rows_than_ranks(job: GetJob) -> None:
    job(3).run(cases.few_rows)


@SIZES
@pytest.mark.parametrize("kind", cases.REDUCING)
def test_float16_on_the_way(kind: str, size: int, job: GetJob) -> None:
    job(size).run(cases.half_repeated, kind=kind)


@pytest.mark.parametrize("kind", cases.REDUCING)
def test_a_compressor_of_ones_own(kind: str, job: GetJob) -> None:
    job(2).run(cases.own_compressor, kind=kind)


@WITH_TENSORS
def test_other_ranks_may_go_the_long_way(kind: str, job: GetJob) -> None:
    job(3).run(cases.mixed, kind=kind)


@SIZES
@pytest.mark.parametrize("kind", [kind for kind in cases.CALLS if kind != "broadcast_"])
def test_gradients_flow(kind: str, size: int, job: GetJob) -> None:
    job(size).run(cases.grows, kind=kind)


@WITH_TENSORS
def test_modes_of_torch(kind: str, job: GetJob) -> None:
    job(2).run(cases.modes, kind=kind)


@pytest.mark.parametrize("large", [False, True])
@EVERY
def test_a_late_rank(kind: str, large: bool, job: GetJob, tmp_path: Path) -> None:
    assert job(2).run(waits.late, kind=kind, folder=str(tmp_path), large=large)[0] >= 20


def test_a_late_rank_with_other_rows(job: GetJob, tmp_path: Path) -> None:
    job(2).run(waits.rows_while_late, folder=str(tmp_path))


@pytest.mark.parametrize("after_s", [0.01, 0.3])  # before and after the fast path has given the wait to Python
@EVERY
def test_an_interrupt_ends_the_wait_alone(kind: str, after_s: float, fresh: GetJob, tmp_path: Path) -> None:
    first, _ = fresh(2).run(waits.interrupted, kind=kind, after_s=after_s, folder=str(tmp_path))
    assert first["interrupted"]
    assert first["after_s"] < after_s + 0.6 + STARVED_S
    assert first["damaged"] == 0


@WITH_TENSORS
def test_ranks_that_disagree_are_told_in_the_same_words(kind: str, job: GetJob) -> None:
    first, second = job(2).run(waits.mismatch, kind=kind)
    assert first == second
    for before, after in first:
        assert before == after
        assert "NAME" in after


@WITH_TENSORS
def test_a_name_in_flight_is_refused(kind: str, job: GetJob) -> None:
    first, second = job(2).run(waits.in_flight_twice, kind=kind)
    assert first.startswith("Duplicate tensor name") and f"twice.{kind}" in first
    assert second == ""


def test_shutdown_and_init(fresh: GetJob) -> None:
    assert fresh(2).run(waits.again_after_shutdown) == [["NotInitialized"] * 14] * 2


@WITH_TENSORS
def test_calls_on_a_process_set(kind: str, fresh: GetJob) -> None:
    fresh(3, environ=variables(3) | DYNAMIC).run(waits.in_sets, kind=kind)


def test_barriers_of_a_process_set(fresh: GetJob) -> None:
    fresh(3, environ=variables(3) | DYNAMIC).run(waits.barriers_in_sets)


def test_process_sets_that_come_and_go(fresh: GetJob) -> None:
    found = fresh(3, environ=variables(3) | DYNAMIC).run(waits.sets_come_and_go)
    assert found == [["TypeError"] * 28] * 3


@pytest.mark.parametrize("victim", [0, 1])
@EVERY
def test_a_killed_rank_is_known_in_two_seconds(kind: str, victim: int, fresh: GetJob) -> None:
    found = fresh(2).attempt(waits.killed, kind=kind, victim=victim)
    (report,) = found[1 - victim]
    assert report["kind"] == "PeerLost"
    assert report["after_s"] < LOST_WITHIN_S


@pytest.mark.parametrize("kind", ALL)
def test_every_call_is_counted_and_recorded(kind: str, job: GetJob, tmp_path: Path) -> None:
    for found in job(2).run(waits.counted, kind=kind, folder=str(tmp_path)):
        assert found["collectives"] == 50
        assert min(found["communicate_ns"], found["negotiate_ns"], found["wait_ns"]) > 0
        spans = read(found["timeline"]).spans
        name = "barrier" if kind == "barrier" else f"counted.{kind}"
        named = spans.take(np.array([name in tensor for tensor in spans.tensor_texts()]))
        for stage in (Stage.NEGOTIATE, Stage.QUEUE, Stage.COMMUNICATE, Stage.WAIT):
            assert len(named.of_stage(stage)) == 10, stage


@pytest.mark.parametrize("size", [2, 3], scope="module")
def test_threads_share_it(size: int, job: GetJob) -> None:
    job(size).run(waits.many_threads)
