"""The summary gives back what the schedule put in."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringtune.timeline.analysis.bandwidth import bus_factor
from ringtune.timeline.analysis.intervals import union
from ringtune.timeline.analysis.late_waits import late_waits
from ringtune.timeline.analysis.phases import exposure, exposures, stage_times, stage_times_of_ranks
from ringtune.timeline.analysis.summary import Summary, summarize
from ringtune.timeline.inputs import load
from ringtune.timeline.spans import concatenate
from ringtune.timeline.synthetic.generate import Schedule, generate
from ringtune.timeline.vocabulary import Stage
from tests.timeline.helpers import TWO_HOSTS, four_ranks, make_spans, merged

TENSORS = tuple((f"layer{number}.weight", 1000 * (number + 1)) for number in range(7))


def summary_of(plan: Schedule, folder: Path, **options: Any) -> tuple[Summary, Any]:
    job = generate(plan)
    return summarize(merged(job, folder), **options), job.truth


@settings(max_examples=20, deadline=None)
@given(
    ranks=st.integers(1, 4),
    steps=st.integers(1, 4),
    width=st.integers(1, 8),
    late_rank=st.sampled_from([None, 0, 1]),
    late_ns=st.integers(0, 9_000_000),
    communicate_ns=st.integers(1, 20_000_000),
    copy_ns=st.integers(0, 100_000),
    compute_ns=st.integers(0, 30_000_000),
)
def test_times_bytes_and_exposure_are_exact(tmp_path_factory: pytest.TempPathFactory, width: int, **facts: Any) -> None:
    plan = Schedule(tensors=TENSORS, tensors_per_batch=width, **facts)
    summary, truth = summary_of(plan, tmp_path_factory.mktemp("summary"))
    for rank in summary.ranks:
        assert rank.exposure is not None
        assert rank.exposure.exposed_ns == truth.exposed_ns[rank.rank]
        assert rank.exposure.overlapped_ns == truth.overlapped_ns[rank.rank]
        assert rank.exposure.wait_ns == truth.wait_ns[rank.rank]
        assert rank.stages["communicate"].busy_ns == rank.stages["communicate"].total_ns == truth.communicate_ns
        assert rank.stages["copy_in"].busy_ns == truth.copy_in_ns
        assert rank.stages["copy_out"].busy_ns == truth.copy_out_ns
        assert rank.bytes == truth.bytes
        assert rank.exposure.late_ns == truth.waited_late_ns[rank.rank]
        assert rank.exposure.late_ns + rank.exposure.exposed_ns + rank.exposure.wait_copy_ns <= rank.exposure.wait_ns
        parts = (rank.exposure.exposed_ns, rank.exposure.wait_copy_ns, rank.exposure.wait_other_ns)
        assert sum(parts) + rank.exposure.late_ns == rank.exposure.wait_ns
        assert rank.stages["step"].total_ns == sum(truth.step_ns)
    assert summary.steps is not None
    assert summary.steps.count == plan.steps
    assert summary.steps.median_ns == np.median(truth.step_ns)
    assert summary.steps.p95_ns == np.percentile(truth.step_ns, 95)
    assert summary.fusion is not None
    assert summary.fusion.batches == truth.batches
    assert summary.fusion.tensors_per_batch == len(TENSORS) * plan.steps / truth.batches
    assert summary.fusion.bytes_per_batch == truth.bytes / truth.batches


def test_bus_bandwidth_follows_nccl_tests(tmp_path: Path) -> None:
    summary, truth = summary_of(Schedule(ranks=4), tmp_path)
    expected = truth.bytes * 2 * 3 / 4 / truth.communicate_ns * 1e9
    assert summary.bus_bytes_per_s == pytest.approx(expected, rel=1e-12)
    assert summary.ranks[1].bus_bytes_per_s == pytest.approx(expected, rel=1e-12)
    assert [kind.kind for kind in summary.traffic] == ["ALLREDUCE"]


@pytest.mark.parametrize(
    ("kind", "ranks", "factor"),
    [
        ("ALLREDUCE", 2, 1.0), ("ALLREDUCE", 8, 1.75), ("REDUCESCATTER", 4, 0.75), ("ALLTOALL", 4, 0.75),
        ("ALLGATHER", 4, 0.75), ("BROADCAST", 4, 1.0), ("BARRIER", 4, 0.0), ("ALLREDUCE", 1, 0.0),
    ],
)  # fmt: skip
def test_bus_factors(kind: str, ranks: int, factor: float) -> None:
    assert bus_factor(kind, ranks) == factor


def test_one_rank_has_no_bus(tmp_path: Path) -> None:
    summary, _ = summary_of(Schedule(ranks=1), tmp_path)
    assert summary.bus_bytes_per_s is None
    assert summary.arrivals.ranks == ()


def test_the_late_rank_is_found_across_hosts(tmp_path: Path) -> None:
    summary, truth = summary_of(four_ranks(late_rank=2, late_ns=400_000), tmp_path)
    assert {rank.rank: rank.tensors_last for rank in summary.arrivals.ranks} == truth.last
    late = summary.arrivals.ranks[2]
    assert late.batches_last == truth.batches
    assert abs(late.median_lateness_ns - truth.late_ns) <= 2
    assert abs(late.batch_lateness_ns - truth.late_ns * truth.batches) <= 2 * truth.batches
    assert summary.arrivals.tensors_undecided == 0


def test_lateness_within_the_clock_error_blames_nobody(tmp_path: Path) -> None:
    # The other host's clock is known within 1.5 us.
    for late_ns, hosts in ((1_600, TWO_HOSTS), (1_400, ("host-a",) * 4)):
        summary, truth = summary_of(four_ranks(late_rank=2, late_ns=late_ns, hosts=hosts), tmp_path)
        assert {rank.rank: rank.tensors_last for rank in summary.arrivals.ranks} == truth.last
    # Rank 2 is surely later than rank 3 of its own host, but not than ranks 0 and 1.
    summary, _ = summary_of(four_ranks(late_rank=2, late_ns=1_400), tmp_path)
    assert summary.arrivals.tensors_undecided == summary.arrivals.tensors > 0
    assert all(rank.tensors_last == 0 for rank in summary.arrivals.ranks)


def test_equal_arrivals_are_undecided(tmp_path: Path) -> None:
    summary, truth = summary_of(Schedule(), tmp_path)
    assert summary.arrivals.tensors_undecided == summary.arrivals.tensors == 16
    assert summary.arrivals.batches_undecided == truth.batches


def test_versions_of_the_knobs_and_fill(tmp_path: Path) -> None:
    plan = Schedule(steps=5, knob_change_step=3, fusion_bytes=40_000)
    summary, _ = summary_of(plan, tmp_path)
    assert [(one.knobs_version, one.first_step, one.last_step, one.batches) for one in summary.knobs_versions] == [
        (1, 0, 2, 6),
        (2, 3, 4, 4),
    ]
    assert [one.knobs["fusion_bytes"] for one in summary.knobs_versions] == [40_000, 20_000]
    first, second = 4096 + 64, 16384 + 40
    fills = [
        size / buffer for buffer, steps in ((40_000, 3), (20_000, 2)) for size in (first, second) for _ in range(steps)
    ]
    assert summary.fusion is not None
    assert summary.fusion.fill == pytest.approx(sum(fills) / len(fills))


def test_only_allreduces_count_as_fused(tmp_path: Path) -> None:
    job = generate(Schedule())
    plain = summarize(merged(job, tmp_path / "plain")).fusion
    other = replace(make_spans([(1, 2)], stage=Stage.COMMUNICATE), names=("RING_BROADCAST",))
    other = replace(other.shifted(job.schedule.start_ns), batch=other.batch + 999)
    with_broadcast = replace(job, spans={**job.spans, 0: concatenate([job.spans[0], other])})
    assert summarize(merged(with_broadcast, tmp_path / "more")).fusion == plain


@pytest.mark.parametrize("begin", [0, 1 << 29, 1 << 31])
def test_batches_of_groups_and_schedules_count_and_those_of_other_libraries_do_not(begin: int, tmp_path: Path) -> None:
    job = generate(Schedule())
    plain = summarize(merged(job, tmp_path / "plain"))

    def with_numbers(begin: int) -> Summary:
        spans = {rank: replace(of, batch=np.where(of.batch > 0, of.batch + begin, 0)) for rank, of in job.spans.items()}
        return summarize(merged(replace(job, spans=spans), tmp_path / str(begin)))

    found = with_numbers(begin)
    assert (found.fusion, found.knobs_versions) == (plain.fusion, plain.knobs_versions) and plain.fusion is not None
    foreign = with_numbers(1 << 30)
    assert foreign.fusion is None and foreign.knobs_versions == ()


def test_the_times_of_all_ranks_at_once_are_those_of_each(tmp_path: Path) -> None:
    trace = load(generate(Schedule(ranks=3, steps=4, late_rank=1, late_ns=3_000_000)).write(tmp_path))
    spans, late = trace.spans, late_waits(trace)
    splits, stages = exposures(spans, late), stage_times_of_ranks(spans)
    assert list(splits) == list(stages) == [0, 1, 2]
    for rank in range(3):
        mine = spans.of_rank(rank)
        assert splits[rank] == exposure(mine, None, late.of_rank(rank)) and stages[rank] == stage_times(mine)
    assert splits[0].wait_ns > splits[0].late_ns > 0 == splits[1].late_ns
    apart = replace(spans, end_ns=spans.end_ns + (spans.rank == 2) * 2**61)  # too far apart for one line
    far = exposures(apart, late)
    assert far[1] == splits[1] and far[2] == exposure(apart.of_rank(2), None, late.of_rank(2))
    assert exposures(spans.take(slice(0)), late) == {} == stage_times_of_ranks(spans.take(slice(0)))


def test_a_range_of_steps(tmp_path: Path) -> None:
    summary, truth = summary_of(Schedule(steps=6), tmp_path, steps=(2, 4))
    assert summary.steps is not None
    assert (summary.steps.count, summary.steps.first, summary.steps.last) == (2, 2, 3)
    assert summary.ranks[0].bytes == truth.bytes // 3


def test_health_is_reported(tmp_path: Path) -> None:
    job = generate(four_ranks(dropped={1: 5, 3: 7}))
    parts = job.write(tmp_path)
    parts[3].write_bytes(parts[3].read_bytes()[:-400])
    summary = summarize(load([parts[0], parts[1], parts[3]]))
    assert summary.missing == (2,)
    assert (summary.dropped, summary.ranks[1].dropped) == (5, 5)
    assert [rank.truncated for rank in summary.ranks] == [False, False, True]
    assert summary.clock_error_ns == 1_500


def test_overlapping_waits_count_once() -> None:
    # Two threads wait at once; communication runs 10-40 and 60-80.
    spans = concatenate(
        [
            make_spans([(10, 40), (60, 80)], stage=Stage.COMMUNICATE),
            make_spans([(20, 50), (30, 70)], stage=Stage.WAIT),
            make_spans([(5, 10), (40, 45), (55, 60)], stage=Stage.COPY_IN),
        ]
    )
    found = exposure(spans, None, union(np.array([45, 62]), np.array([48, 65])))
    assert (found.wait_ns, found.late_ns, found.exposed_ns, found.overlapped_ns) == (50, 6, 27, 20)
    assert (found.wait_copy_ns, found.wait_other_ns) == (10, 7)


def test_json_is_plain_and_whole(tmp_path: Path) -> None:
    summary, _ = summary_of(four_ranks(), tmp_path)
    document = json.loads(json.dumps(summary.to_json()))
    assert document["format"] == 1
    assert document["ranks"][2]["stages"]["communicate"]["count"] == 8
    assert document["fusion"]["batches"] == 8


def test_a_trace_without_spans_has_a_summary(tmp_path: Path) -> None:
    job = generate(Schedule())
    trace = merged(job, tmp_path)
    summary = summarize(replace(trace, spans=trace.spans.take(slice(0, 0))))
    assert (summary.span_count, summary.steps, summary.fusion, summary.arrivals.tensors) == (0, None, None, 0)
