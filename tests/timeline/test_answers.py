"""Jobs with a planted fault whose verdicts were wrong once: each by its numbers."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ringtune.timeline.analysis.comparison import compare
from ringtune.timeline.analysis.steps import counted
from ringtune.timeline.analysis.stragglers import stragglers
from ringtune.timeline.analysis.verdicts import when
from ringtune.timeline.cli import timeline
from tests.timeline.helpers import trace_of, write_json
from tests.timeline.scenario import Scenario

MS = 1_000_000


def job(ranks: int, steps: int, compute_ms: int, late: dict[tuple[int, int], int], **more: Any) -> Scenario:
    """A job with a start-up of 0.6 s, and computing that varies by a sixth."""
    start = {(rank, 0): 600 * MS for rank in range(ranks)}
    jitter = compute_ms * MS // 6
    return Scenario(
        ranks=ranks,
        steps=steps,
        compute_ns=compute_ms * MS,
        jitter_ns=jitter,
        transfer_ns=MS,
        pauses=start | late,
        **more,
    )


UNEQUAL = {(1, step): 20 * MS for step in range(1, 200)}


@pytest.mark.parametrize(
    ("plan", "rank", "said", "share"),
    [
        (job(2, 80, 18, {(1, 40): 14_000 * MS}), 1, "in 1 stall (step 40)", 0.88),
        (job(2, 200, 10, {(0, 60): 1_000 * MS, (0, 120): 1_000 * MS}), 0, "in 2 stalls (steps 60, 120)", 0.40),
        (job(3, 200, 20, {(1, step): 12 * MS for step in range(60, 120)}), 1, "in steps 60-119", 0.10),
        (job(2, 200, 10, UNEQUAL), 1, "always (in 199 of 199 steps)", 0.56),
    ],
    ids=["one-sleep", "two-pauses", "late-steps", "unequal"],
)
def test_the_fault_is_the_first_verdict(plan: Scenario, rank: int, said: str, share: float) -> None:
    found = stragglers(counted(trace_of(plan)[0]).trace).verdicts
    assert (found[0].rank, found[0].cause, when(found[0])) == (rank, "compute", said)
    assert found[0].share == pytest.approx(share, abs=0.05)
    assert {one.rank for one in found} == {rank}


def test_a_step_that_is_longer_is_called_slower() -> None:
    late = job(2, 200, 15, {(1, step): 12 * MS for step in range(60, 200)}, seed=1)
    runs = [counted(trace_of(plan)[0]).trace for plan in (job(2, 200, 15, {}), late)]
    step = next(one for one in compare(*runs).changes if one.kind == "step")
    assert step.verdict == "slower" and step.ratio == pytest.approx(1.43, abs=0.05)  # 0.7 x 12 ms of 19.7 ms


def profile(rank: int, ranks: int, late: Callable[[int, int], float], steps: int = 16) -> dict[str, Any]:
    """What PyTorch's profiler says of a rank on a GPU: loading, kernels, one NCCL kernel a step, in microseconds."""
    noise = [random.Random(other) for other in range(ranks)]
    events: list[dict[str, Any]] = []
    at = 0.0
    for step in range(steps):
        loads = [1_500 + noise[other].gauss(0, 80) + late(other, step) for other in range(ranks)]
        ready = [at + load + 30_000 + noise[other].gauss(0, 60) for other, load in enumerate(loads)]
        begin, end = at, max(ready) + 2_500
        rows = [
            ("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", begin, loads[rank], 100),
            ("kernel", "sm80_xmma_gemm_f32f32", begin + loads[rank], ready[rank] - begin - loads[rank], 7),
            ("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", ready[rank], end - ready[rank], 20),
            ("user_annotation", f"ProfilerStep#{step}", begin, end + 1_000 - begin, 100),
        ]
        for category, name, ts, length, track in rows:
            event = {"ph": "X", "cat": category, "name": name, "pid": rank, "tid": track, "ts": ts, "dur": length}
            events.append(event)
        at = end + 1_000
    world = {"backend": "nccl", "rank": rank, "world_size": ranks}
    about = {"schemaVersion": 1, "distributedInfo": world, "baseTimeNanoseconds": 1_700_000_000_000_000_000}
    return {**about, "host_name": "here", "traceEvents": events}


def test_profiles_name_the_data_loader_in_the_steps_in_which_it_was_late(tmp_path: Path) -> None:
    def late(rank: int, step: int) -> float:
        return 20_000 if rank == 2 and 6 <= step < 12 else 0

    paths = [write_json(tmp_path / f"rank{rank}.json", profile(rank, 4, late)) for rank in range(4)]
    said = CliRunner().invoke(timeline, ["stragglers", *map(str, paths)], catch_exceptions=False).output
    assert "of the job (12" in said.splitlines()[0] or "of the job (11" in said.splitlines()[0]
    assert "was lost to rank 2 in steps 6-11, by data loading: look at rank 2 in step" in said
