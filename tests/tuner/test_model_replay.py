"""Steps whose length can be said by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringtune.errors import UsageError
from ringtune.knobs import Knobs
from ringtune.tuner.model.cluster import Cluster, Link
from ringtune.tuner.model.collectives import batch_ns
from ringtune.tuner.model.replay import Batch, Conditions, fuse, play
from ringtune.tuner.model.workload import Gradient, Workload, evenly, from_profile

MS = 1e6
PAIR = Cluster(ranks=2, slots=1, network=Link(0.0, 1e9), algorithm="flat")
"""Two hosts; a byte takes a nanosecond."""
KNOBS = Knobs(fusion_bytes=1 << 20, cycle_time_ns=1_000_000)


def job(*gradients: tuple[float, int], backward: float = 10.0, after: float = 1.0) -> Workload:
    """Gradients of (ready in ms, bytes)."""
    return Workload("job", tuple(Gradient(size, at * MS) for at, size in gradients), backward * MS, after * MS)


def test_a_rank_alone_only_computes() -> None:
    step = play(job((9.0, 1_000_000)), replace(PAIR, ranks=1), KNOBS)
    assert (step.length_ns, step.efficiency, step.batches) == (11 * MS, 1.0, ())


def test_one_gradient_at_the_end_is_exposed_whole() -> None:
    step = play(job((10.0, 4_000_000)), PAIR, KNOBS)
    assert step.length_ns == 15 * MS
    assert step.waiting_ns == 4 * MS


def test_what_travels_during_backward_is_hidden() -> None:
    step = play(job((2.0, 4_000_000), (10.0, 64)), PAIR, KNOBS)
    assert step.length_ns == pytest.approx(11 * MS + 64)
    assert [batch.tensors for batch in step.batches] == [1, 1]


def test_batches_queue_for_the_channel() -> None:
    step = play(job((2.0, 9_000_000), (6.0, 3_000_000)), PAIR, KNOBS)
    assert step.batches[1].begin_ns == 11 * MS
    assert step.waiting_ns == 4 * MS


def test_perfect_overlap_leaves_computing_alone() -> None:
    step = play(job((10.0, 4_000_000)), PAIR, KNOBS, Conditions(hidden=True))
    assert step.length_ns == 11 * MS


def test_a_straggler_makes_everybody_late() -> None:
    step = play(job((10.0, 4_000_000)), PAIR, KNOBS, Conditions(straggler=1.5))
    assert step.length_ns == pytest.approx(11 * MS * 1.5 + 4 * MS)
    assert step.late_ns == pytest.approx(5.5 * MS)


def test_contention_lengthens_computing_by_its_share_of_overlapped_time() -> None:
    step = play(job((2.0, 4_000_000), (10.0, 64)), replace(PAIR, contention=0.25), KNOBS)
    assert step.contention_ns == pytest.approx(1 * MS)
    assert step.length_ns == pytest.approx(12 * MS + 64)


def test_without_a_schedule_a_decision_comes_first() -> None:
    cluster = replace(PAIR, control_ns=0.5 * MS)
    step = play(job((10.0, 4_000_000)), cluster, replace(KNOBS, step_schedule=0))
    assert step.waiting_ns == pytest.approx(4.5 * MS)


def test_without_a_schedule_a_cycle_gathers_what_is_ready() -> None:
    gradients = [(1.0 + 0.1 * index, 1000) for index in range(8)]
    slow = play(job(*gradients), replace(PAIR, control_ns=0.0), Knobs(1 << 20, 5_000_000, step_schedule=0))
    fast = play(job(*gradients), replace(PAIR, control_ns=0.0), Knobs(1 << 20, 0, step_schedule=0))
    assert [batch.tensors for batch in slow.batches] == [8]
    assert [batch.tensors for batch in fast.batches] == [1] * 8


def test_a_schedule_cuts_at_gaps_beyond_two_cycles() -> None:
    step = play(job((1.0, 64), (2.9, 64), (5.0, 64)), PAIR, KNOBS)
    assert [batch.tensors for batch in step.batches] == [2, 1]


@pytest.mark.parametrize(
    ("sizes", "fusion", "expected"),
    [
        ([64, 64, 64], 128, [2, 1]),
        ([1, 1, 1], 128, [2, 1]),
        ([64, 64], 0, [1, 1]),
        ([500, 10, 10], 128, [1, 2]),
    ],
)
def test_fusion_pads_to_64_bytes_and_lets_one_tensor_be_larger(
    sizes: list[int], fusion: int, expected: list[int]
) -> None:
    assert [len(batch) for batch in fuse([Gradient(size, 0.0) for size in sizes], fusion)] == expected


@given(
    sizes=st.lists(st.integers(1, 1 << 22), min_size=1, max_size=40),
    ranks=st.integers(2, 10_000),
    fusion=st.integers(0, 1 << 24),
    step_schedule=st.integers(0, 1),
)
def test_every_byte_travels_and_no_step_is_shorter_than_computing(
    sizes: list[int], ranks: int, fusion: int, step_schedule: int
) -> None:
    work = evenly(sizes, 20 * MS, "job")
    step = play(
        work, replace(PAIR, ranks=ranks, algorithm="auto"), Knobs(fusion, 1_000_000, step_schedule=step_schedule)
    )
    assert sum(batch.bytes for batch in step.batches) == sum(sizes)
    assert sum(batch.tensors for batch in step.batches) == len(sizes)
    assert step.length_ns >= work.compute_ns
    assert all(a.end_ns <= b.begin_ns for a, b in zip(step.batches, step.batches[1:], strict=False))


def negotiated_plainly(work: Workload, cluster: Cluster, knobs: Knobs) -> list[Batch]:
    """The rules of a negotiated step, word by word and slowly."""
    batches: list[Batch] = []
    waiting, free = list(work.gradients), 0.0
    while waiting:
        reported = [waiting[0].ready_ns + knobs.cycle_time_ns, max(work.backward_end_ns, waiting[0].ready_ns)]
        filled = [sum(one.bytes for one in waiting[: place + 1]) >= knobs.fusion_bytes for place in range(len(waiting))]
        if any(filled):
            reported.append(waiting[filled.index(True)].ready_ns)
        at = max(min(reported), free)
        together = list(takewhile(lambda one, at=at: one.ready_ns <= at, waiting))  # type: ignore[misc]
        waiting = waiting[len(together) :]
        while together:
            padded = list(accumulate(-(-one.bytes // 64) * 64 for one in together))
            number = max(1, sum(size <= knobs.fusion_bytes for size in padded))
            size = sum(one.bytes for one in together[:number])
            begin = max(free, at + cluster.decision_ns)
            free = begin + batch_ns(size, number == 1, False, cluster)
            batches.append(Batch(size, number, begin, free))
            together = together[number:]
    return batches


@given(
    gradients=st.lists(st.tuples(st.integers(1, 1 << 20), st.floats(0.0, 20.0)), min_size=1, max_size=40),
    fusion=st.sampled_from([0, 64, 1 << 16, 1 << 20, 1 << 24]),
    cycle=st.sampled_from([0, 1000, 1_000_000, 30_000_000]),
)
def test_a_replay_is_what_its_rules_say_to_the_bit(gradients: list[tuple[int, float]], fusion: int, cycle: int) -> None:
    ordered = sorted(at for _, at in gradients)
    work = job(*((at, size) for at, (size, _) in zip(ordered, gradients, strict=True)), backward=20.0)
    knobs = Knobs(fusion, cycle, step_schedule=0)
    assert list(play(work, PAIR, knobs).batches) == negotiated_plainly(work, PAIR, knobs)


def test_gradients_sent_whole_are_the_same_workload() -> None:
    work = job((1.0, 3), (2.0, 5))
    assert work.narrowed(1.0) is work
    assert [gradient.bytes for gradient in work.narrowed(0.5).gradients] == [2, 2]


@given(factor=st.floats(1.0, 100.0), ranks=st.integers(2, 1000))
def test_a_faster_network_never_makes_a_scheduled_step_longer(factor: float, ranks: int) -> None:
    work = evenly([1 << 20] * 20, 20 * MS, "job")
    slow = replace(PAIR, ranks=ranks, algorithm="ring")
    fast = replace(slow, network=slow.network.faster(factor))
    assert play(work, fast, KNOBS).length_ns <= play(work, slow, KNOBS).length_ns * (1 + 1e-12)


PROFILE = "a comment\n1\n3\n1000,4\n2000,8\n500.5,16\n"


def test_a_profile_ends_with_its_step() -> None:
    work = from_profile(PROFILE, "p", 10 * MS)
    assert [gradient.bytes for gradient in work.gradients] == [4, 8, 16]
    assert [gradient.ready_ns for gradient in work.gradients] == pytest.approx([7.4995 * MS, 9.4995 * MS, 10 * MS])
    assert work.compute_ns == 10 * MS


def test_without_a_step_backward_is_two_thirds() -> None:
    assert from_profile(PROFILE, "p").compute_ns == pytest.approx(3.5005 * MS * 1.5)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a\n1\n1\n", "no gradients"),
        ("a\n1\n1\nx,1\n", "line 4"),
        ("a\n1\n1\n1,0\n", "line 4"),
        ("a\n1\n1\nnan,1\n", "line 4"),
        ("a\n1\n1\n20000,4\n", "more than the step"),
    ],
)
def test_a_wrong_profile_says_where(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        from_profile(text, "p", 10 * MS)


def test_computing_at_another_speed_scales_every_time() -> None:
    work = job((5.0, 64), backward=10.0, after=2.0).lasting(24 * MS)
    assert (work.gradients[0].ready_ns, work.backward_end_ns, work.after_ns) == (10 * MS, 20 * MS, 4 * MS)


def test_while_a_batch_travels_nothing_is_reported() -> None:
    """Of three gradients 1 ms apart the last two wait for the first one's 10 ms and are decided together."""
    work = job((1.0, 10_000_000), (2.0, 64), (3.0, 64), backward=30.0)
    step = play(work, replace(PAIR, control_ns=0.0), replace(KNOBS, step_schedule=0, cycle_time_ns=0))
    assert [batch.tensors for batch in step.batches] == [1, 2]


def test_a_schedule_keeps_the_batches_of_the_negotiated_steps_it_was_learned_from() -> None:
    """Ready requests further apart than two cycles stay apart; what piled up behind a batch stays together."""
    work = job((1.0, 10_000_000), (5.0, 64), (9.0, 64), backward=30.0)
    assert [batch.tensors for batch in play(work, PAIR, KNOBS).batches] == [1, 2]
    assert [batch.tensors for batch in play(work, replace(PAIR, network=Link(0.0, 1e12)), KNOBS).batches] == [1, 1, 1]


def test_a_schedule_cuts_behind_what_callers_waited_for() -> None:
    """The first gradient travels until after backward's end: the others are decided with callers blocked."""
    work = job((1.0, 5_000_000), (2.0, 3_000_000), (2.5, 64), backward=3.0)
    step = play(work, PAIR, Knobs(4 << 20, 1_000_000))
    assert [batch.tensors for batch in step.batches] == [1, 2]


def test_a_full_fusion_buffer_is_reported_at_once() -> None:
    work = job((1.0, 1 << 20), (1.5, 64), backward=30.0)
    step = play(work, replace(PAIR, control_ns=0.0), Knobs(1 << 20, 10_000_000, step_schedule=0))
    assert [batch.begin_ns for batch in step.batches] == pytest.approx([1.0 * MS, 11.5 * MS])


def test_a_rested_link_carries_its_bucket_at_once() -> None:
    bucket = replace(PAIR, network=Link(0.0, 1e9, burst_ns=1 * MS), copy_ns=0.0)
    step = play(job((2.0, 4_000_000), (2.0, 2_000_000)), bucket, replace(KNOBS, fusion_bytes=0))
    assert [batch.end_ns for batch in step.batches] == pytest.approx([5 * MS, 7 * MS])
