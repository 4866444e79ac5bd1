"""A job with known times, written as PyTorch's profiler writes it: a planted truth for imports."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

BASE_NS = 1_700_000_000_000_000_000


@dataclass
class PlantedJob:
    """Steps of some collectives each; a rank joins one when it is ready, and all end at about the same time.

    Attributes:
        ranks: How many.
        steps: How many.
        shift_ns: By how much the clock of each rank is ahead of the truth.
        numbered: Whether collectives say their number in their group.
        late_us: By how much rank 1 is later than the others in every step.
        drift_ppm: By how much the last rank's clock runs faster than the truth.
        step_us: Length of a step without waiting.
        seed: Of everything random.
    """

    ranks: int = 2
    steps: int = 6
    shift_ns: dict[int, int] = field(default_factory=dict)
    numbered: bool = True
    late_us: float = 0
    drift_ppm: float = 0
    step_us: float = 5_000
    seed: int = 0

    def moments(self) -> list[tuple[int, list[float], list[float]]]:
        """Step, begin and end in µs by rank of every collective, on the true clock."""
        draw = random.Random(self.seed)
        found, at = [], 0.0
        for step in range(self.steps):
            for part in range(3):
                begins = [at + draw.uniform(50, self.step_us / 4) for _ in range(self.ranks)]
                if part == 0 and self.ranks > 1:
                    begins[1] += self.late_us
                done = max(begins) + draw.uniform(30, 200)
                ends = [done + draw.uniform(0, 15) for _ in range(self.ranks)]
                found.append((step, begins, ends))
                at = max(ends)
            at = max(at, (step + 1) * self.step_us)
        return found

    def document(self, rank: int, **changes: Any) -> dict[str, Any]:
        """The profile of one rank."""
        events: list[dict[str, Any]] = []
        moments = self.moments()
        shift_us = self.shift_ns.get(rank, 0) / 1000
        speed = 1 + (self.drift_ppm * 1e-6 if rank == self.ranks - 1 else 0)

        def add(name: str, category: str, begin: float, end: float, **args: Any) -> None:
            ts, until = (round(moment * speed + shift_us, 3) for moment in (begin, end))
            event = {
                "ph": "X",
                "name": name,
                "cat": category,
                "pid": 9,
                "tid": 1,
                "ts": ts,
                "dur": round(until - ts, 3),
            }
            events.append({**event, "args": args})

        for step in range(self.steps):
            last = max(max(ends) for number, _, ends in moments if number == step)
            first = step * self.step_us if step == 0 else max(max(ends) for n, _, ends in moments if n == step - 1)
            add(f"ProfilerStep#{step}", "user_annotation", first + 20, last + 20)
        for number, (_, begins, ends) in enumerate(moments, 1):
            message = {"Collective name": "allreduce", "In msg nelems": 256 * number, "Out msg nelems": 256 * number}
            group = {"dtype": "Float", "Process Group Name": "0", "Process Group Ranks": str(list(range(self.ranks)))}
            about = {**message, **group, **({"Seq": number} if self.numbered else {})}
            name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
            add(name, "kernel", begins[rank], ends[rank], **about)
        about = {"backend": "nccl", "rank": rank, "world_size": self.ranks}
        head = {
            "schemaVersion": 1,
            "distributedInfo": about,
            "host_name": f"host{rank}",
            "baseTimeNanoseconds": BASE_NS,
        }
        events.sort(key=lambda event: event["ts"])
        return {**head, **changes, "traceEvents": events}

    def write(self, folder: Path, **changes: Any) -> list[Path]:
        """Write a file a rank."""
        folder.mkdir(parents=True, exist_ok=True)
        files = [folder / f"worker-rank{rank}.json" for rank in range(self.ranks)]
        for rank, file in enumerate(files):
            file.write_bytes(orjson.dumps(self.document(rank, **changes)))
        return files
