"""Whole run folders made up from a schedule: parts, steps, machines, tuning journal, scaling record.

For tests and demos of whatever reads run folders.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from ringtune import layout
from ringtune.timeline.spans import SpanTable
from ringtune.timeline.synthetic.generate import GeneratedJob, Schedule, generate
from ringtune.timeline.vocabulary import Stage


def generate_run(
    root: str | os.PathLike[str],
    name: str = "demo",
    plan: Schedule | None = None,
    *,
    tuning: bool = True,
    scaling: bool = True,
) -> Path:
    """Make up a finished run under ``root`` and return its folder (the timeline is left in parts, unmerged)."""
    job = generate(plan)
    schedule = job.schedule
    run = Path(root) / layout.run_name(name, schedule.start_unix_ns)
    job.write(layout.timeline_parts(run))
    _put(layout.run_file(run), _document(name, job))
    for rank in range(schedule.ranks):
        _put(layout.machine_file(run, rank), _machine(schedule, rank))
        _put_lines(layout.step_log(run, rank), step_lines(job, rank))
    if tuning:
        _put_lines(layout.tuning_journal(run), tuning_lines(schedule))
    if scaling:
        _put(layout.scaling_file(run, "resnet"), scaling_document(schedule))
    return run


def step_lines(job: GeneratedJob, rank: int) -> list[dict[str, int]]:
    """Step statistics of a rank as its step log would hold them."""
    table = job.spans[rank]
    lines = []
    for step in range(job.schedule.steps):
        inside = table.take(table.step == step)
        whole = inside.of_stage(Stage.STEP)
        lines.append(
            {
                "step": step,
                "knobs_version": job.schedule.knobs_version(step),
                "begin_ns": int(whole.begin_ns[0]),
                "end_ns": int(whole.end_ns[0]),
                "bytes": int(inside.of_stage(Stage.COMMUNICATE).bytes.sum()),
                "collectives": len(inside.of_stage(Stage.NEGOTIATE)),
                "batches": len(inside.of_stage(Stage.COMMUNICATE)),
                "negotiate_ns": _total(inside, Stage.NEGOTIATE),
                "communicate_ns": _total(inside, Stage.COMMUNICATE),
                "copy_ns": _total(inside, Stage.COPY_IN, Stage.COPY_OUT),
                "wait_ns": _total(inside, Stage.WAIT),
                "control_messages": 2 * len(job.schedule.batches),
                "control_bytes": 64 * len(job.schedule.batches),
            }
        )
    return lines


def tuning_lines(plan: Schedule) -> list[dict[str, Any]]:
    """A tuning journal of five trials of which the third setting wins."""
    default = {"fusion_bytes": plan.fusion_bytes, "cycle_time_ns": 1_000_000}
    best = {"fusion_bytes": plan.fusion_bytes // 4, "cycle_time_ns": 250_000}
    at = plan.start_unix_ns
    lines: list[dict[str, Any]] = [
        {"event": "start", "at_unix_ns": at, "default": default, "fingerprint": "generated", "world": plan.ranks}
    ]
    sources = ("default", "start-point", "sampler", "sampler", "confirm")
    medians = (14.0e6, 13.5e6, 11.2e6, 15.1e6, 11.4e6)
    for number, (source, median) in enumerate(zip(sources, medians, strict=True)):
        knobs = best if number in (2, 4) else {**default, "fusion_bytes": plan.fusion_bytes >> number}
        lines.append(
            {
                "event": "trial",
                "at_unix_ns": at + (number + 1) * 10**9,
                "trial": number,
                "source": source,
                "state": "stopped-early" if number == 3 else "complete",
                "knobs": knobs,
                "knobs_version": number + 1,
                "steps": 20,
                "step_ns": {"median": median, "low": median * 0.97, "high": median * 1.04},
            }
        )
    gain = {"median": 0.19, "low": 0.15, "high": 0.23}
    lines.append(
        {
            "event": "result",
            "at_unix_ns": at + 6 * 10**9,
            "decision": "improved",
            "knobs": best,
            "knobs_version": 6,
            "gain": gain,
            "lost_ns": 3_200_000,
            "reason": "confirmed against the default",
        }
    )
    return lines


def scaling_document(plan: Schedule) -> dict[str, Any]:
    """A scaling record for 1, 2, 4 ... ranks with efficiency falling by 6 % a doubling."""
    records, base, ranks, efficiency = [], 20.0, 1, 1.0
    while ranks <= max(2, plan.ranks):
        rate = base * ranks * efficiency
        records.append(
            {
                "ranks": ranks,
                "hosts": 1,
                "rate": {
                    "median": rate,
                    "low": rate * 0.98,
                    "high": rate * 1.01,
                    "samples": [rate * 0.98, rate, rate * 1.01],
                },
                "per_rank": [rate / ranks] * ranks,
                "efficiency": {"median": efficiency, "low": efficiency * 0.98, "high": efficiency * 1.01},
            }
        )
        ranks, efficiency = ranks * 2, efficiency * 0.94
    return {
        "format": layout.FORMAT,
        "benchmark": "resnet",
        "model": "resnet50",
        "batch_size": 8,
        "image_size": 224,
        "dtype": "float32",
        "unit": "images/s",
        "created_unix_ns": plan.start_unix_ns,
        "command": ["ringtune", "bench", "resnet"],
        "records": records,
    }


def _document(name: str, job: GeneratedJob) -> dict[str, Any]:
    plan = job.schedule
    return {
        "format": layout.FORMAT,
        "name": name,
        "command": ["python", f"{name}.py"],
        "created_unix_ns": plan.start_unix_ns,
        "ended_unix_ns": plan.start_unix_ns + (sum(job.truth.step_ns) if job.truth else 0),
        "status": "finished",
        "exit_code": 0,
        "size": plan.ranks,
        "hosts": [plan.host(rank) for rank in range(plan.ranks)],
        "config": {"RINGTUNE_FUSION_THRESHOLD": plan.fusion_bytes},
        "knobs": {"fusion_bytes": plan.fusion_bytes, "cycle_time_ns": 1_000_000},
        "versions": {"ringtune": "0", "python": "3", "torch": ""},
        "labels": {},
    }


def _machine(plan: Schedule, rank: int) -> dict[str, Any]:
    return {
        "rank": rank,
        "host": plan.host(rank),
        "cpu": "generated",
        "cores": 2,
        "memory_bytes": 8 << 30,
        "kernel": "Linux",
        "python": "3",
        "pid": 1000 + rank,
    }


def _total(table: SpanTable, *stages: Stage) -> int:
    return int(np.sum(table.of_stage(*stages).duration_ns))


def _put(path: Path, document: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))


def _put_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
