"""Long generated jobs: a schedule repeated end to end, for traces of millions of spans.

`generate` makes up one span at a time; here its spans are made once and moved on, column by column. The result is the
same, to the nanosecond, as that of `generate` for the whole length.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ringtune.timeline.spans import COLUMN_TYPES, SpanTable
from ringtune.timeline.synthetic.generate import GeneratedJob, Schedule, Truth, clock_samples, generate
from ringtune.timeline.vocabulary import CLOCK

TENSORS = tuple(
    (f"layer{number // 3}.{kind}", 4096 << number % 6) for number, kind in enumerate(("qkv", "out", "mlp") * 20)
)
"""Sixty tensors, as a small transformer has them."""


def generate_long(plan: Schedule, times: int) -> GeneratedJob:
    """Make up the job of a schedule with ``times`` as many steps; the schedule must not change its knobs."""
    assert plan.knob_change_step is None, "repeated steps would change the knobs again and again"
    whole, once = replace(plan, steps=plan.steps * times), generate(plan)
    assert once.truth is not None
    end = plan.start_ns + times * sum(once.truth.step_ns)
    instants = {
        rank: tuple(
            sorted(
                [found for found in known if found.name != CLOCK] + clock_samples(whole, rank, end),
                key=lambda instant: instant.at_ns,
            )
        )
        for rank, known in once.instants.items()
    }
    spans = {rank: _repeated(table, plan, once.truth, times) for rank, table in once.spans.items()}
    return GeneratedJob(whole, _longer(once.truth, times), spans, instants)


def schedule_of(events: int, ranks: int) -> tuple[Schedule, int]:
    """Return a schedule, with one late rank, and how often to repeat it for at least this many spans of all ranks."""
    plan = Schedule(
        ranks=ranks, steps=8, tensors=TENSORS, tensors_per_batch=6, late_rank=ranks - 1, late_ns=400_000, job="long"
    )
    spans_per_step = ranks * (4 * len(TENSORS) + len(plan.batches) + 2)
    return plan, max(1, -(-events // (spans_per_step * plan.steps)))


def _repeated(table: SpanTable, plan: Schedule, truth: Truth, times: int) -> SpanTable:
    turn = np.repeat(np.arange(times, dtype=np.int64), len(table))
    columns = {name: np.tile(getattr(table, name), times) for name in COLUMN_TYPES}
    for name in ("begin_ns", "end_ns"):
        columns[name] += turn * sum(truth.step_ns)
    columns["step"] += turn * plan.steps
    columns["batch"] += np.where(columns["batch"] > 0, turn * truth.batches, 0)
    return SpanTable(**columns, names=table.names, tensors=table.tensors, fact_texts=table.fact_texts)


def _longer(truth: Truth, times: int) -> Truth:
    def all_of(sums: dict[int, int]) -> dict[int, int]:
        return {rank: value * times for rank, value in sums.items()}

    return Truth(
        step_ns=truth.step_ns * times,
        exposed_ns=all_of(dict(truth.exposed_ns)),
        overlapped_ns=all_of(dict(truth.overlapped_ns)),
        waited_late_ns=all_of(dict(truth.waited_late_ns)),
        wait_ns=all_of(dict(truth.wait_ns)),
        communicate_ns=truth.communicate_ns * times,
        copy_in_ns=truth.copy_in_ns * times,
        copy_out_ns=truth.copy_out_ns * times,
        bytes=truth.bytes * times,
        batches=truth.batches * times,
        last=all_of(dict(truth.last)),
        late_ns=truth.late_ns,
    )
