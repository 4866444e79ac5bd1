"""Run folders for the tests: made by the timeline's generator, changed where a test needs something special."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import shutil
import socket
import time
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ringtune import layout
from ringtune.dashboard.data.timeline import trace
from ringtune.timeline.merging.merge import merge_run
from ringtune.timeline.merging.part_writer import write_part
from ringtune.timeline.reading import part_layout
from ringtune.timeline.reading.reader import read
from ringtune.timeline.spans import Instant, PartInfo, SpanTable
from ringtune.timeline.synthetic.generate import Schedule
from tests.timeline.generated_run import generate_run

LAYERS = tuple(
    (f"layer{block}.{unit}.{kind}", volume)
    for block in (1, 2, 3, 4)
    for unit in (0, 1)
    for kind, volume in (("conv1.weight", 147456 * block), ("bn1.weight", 256), ("conv2.weight", 589824 * block))
)

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"


def training(root: Path, name: str = "resnet50", ranks: int = 4, steps: int = 60, **more: Any) -> Path:
    """A finished run with everything, its steps of uneven length."""
    more.setdefault("fusion_bytes", 6 << 20)  # the batches below are about as a runtime with such a buffer cuts them
    plan = Schedule(
        ranks=ranks,
        steps=steps,
        tensors=LAYERS,
        tensors_per_batch=6,
        late_rank=ranks - 1 if ranks > 1 else None,
        late_ns=900_000,
        communicate_ns=2_400_000,
        knob_change_step=steps // 2,
        **more,
    )
    run = generate_run(root, name, plan)
    _jitter(run)
    return run


def change(run: Path, **values: Any) -> None:
    """Change fields of run.json."""
    path = layout.run_file(run)
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def _jitter(run: Path) -> None:
    """Let step times vary from step to step, the same on every machine."""
    draw = random.Random(7)
    stretch = [1 + abs(draw.gauss(0, 0.03)) + (0.5 if n % 23 == 22 else 0) for n in range(100_000)]
    for path in sorted(layout.step_logs(run).glob("*.jsonl")):
        rows, moved = [json.loads(line) for line in path.read_text().splitlines()], 0
        for row in rows:
            more = int((row["end_ns"] - row["begin_ns"]) * (stretch[row["step"]] - 1))
            row["begin_ns"] += moved
            moved += more
            row["end_ns"] += moved
            row["wait_ns"] += more // 3
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def tuned(run: Path, trials: int = 24) -> None:
    """Replace the journal by a longer session that looks like a real one."""
    draw, at = random.Random(3), 1_700_000_000_000_000_000
    default = {"fusion_bytes": 64 << 20, "cycle_time_ns": 1_000_000}
    lines: list[dict[str, Any]] = [
        {"event": "start", "at_unix_ns": at, "default": default, "fingerprint": "f", "world": 4}
    ]

    def trial(number: int, source: str, knobs: dict[str, int]) -> None:
        cost = (
            14.2
            + 0.5 * (math.log2(knobs["fusion_bytes"] / (8 << 20))) ** 2 * 0.2
            + 1.1 * math.log10(knobs["cycle_time_ns"] / 3e5) ** 2
        )
        median = cost * 1e6 * (1 + draw.gauss(0, 0.006))
        early = cost > 16.6 and source == "sampler"
        lines.append(
            {
                "event": "trial",
                "at_unix_ns": at + number * 10**9,
                "trial": number,
                "source": source,
                "state": "stopped-early" if early else "complete",
                "knobs": knobs,
                "knobs_version": number + 1,
                "steps": 8 if early else 20,
                "step_ns": {
                    "median": median,
                    "low": median * (0.975 if early else 0.988),
                    "high": median * (1.03 if early else 1.013),
                },
                "lost_ns": 18_000_000 * number,
            }
        )

    best = {"fusion_bytes": 9 << 20, "cycle_time_ns": 280_000}
    trial(0, "default", default)
    trial(1, "stored", {"fusion_bytes": 16 << 20, "cycle_time_ns": 700_000})
    for number in range(2, 5):
        trial(
            number,
            "start-point",
            {"fusion_bytes": (1, 4, 32)[number - 2] << 20, "cycle_time_ns": (100_000, 2_000_000, 500_000)[number - 2]},
        )
    for number in range(5, trials - 4):
        trial(
            number,
            "sampler",
            {"fusion_bytes": int(2 ** draw.uniform(19, 27)), "cycle_time_ns": int(10 ** draw.uniform(5, 6.6))},
        )
    for number in range(trials - 4, trials, 2):
        trial(number, "default", default)
        trial(number + 1, "confirm", best)
    lines.append(
        {
            "event": "result",
            "at_unix_ns": at,
            "decision": "improved",
            "knobs": best,
            "knobs_version": trials + 1,
            "gain": {"median": 0.058, "low": 0.047, "high": 0.069},
            "lost_ns": 412_000_000,
            "reason": "confirmed against the default",
        }
    )
    layout.tuning_journal(run).parent.mkdir(parents=True, exist_ok=True)
    layout.tuning_journal(run).write_text("".join(json.dumps(line) + "\n" for line in lines))


def scaled(run: Path, model: str, rates: dict[int, float]) -> None:
    """Write a scaling record with these rates by ranks."""
    base = rates[min(rates)] / min(rates)
    records = [
        {
            "ranks": n,
            "hosts": 1,
            "rate": {"median": r, "low": r * 0.97, "high": r * 1.02, "samples": [r]},
            "per_rank": [r / n] * n,
            "efficiency": {"median": r / (n * base), "low": r * 0.97 / (n * base), "high": r * 1.02 / (n * base)},
        }
        for n, r in rates.items()
    ]
    path = layout.scaling_file(run, model)
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "format": 1,
        "benchmark": "resnet",
        "model": model,
        "batch_size": 32,
        "image_size": 224,
        "dtype": "float32",
        "unit": "images/s",
        "created_unix_ns": 1_700_000_000_000_000_000,
        "command": [],
        "records": records,
    }
    path.write_text(json.dumps(document))


def sampled(run: Path, ranks: int = 2, seconds: int = 20, **more: Any) -> None:
    """Write samples: rank r uses 0.5 + r cores and 1 + r GiB; its machine has 4 cores, half busy, and sends 3 MB/s."""
    for rank in range(ranks):
        path = layout.sample_log(run, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [
            {
                "unix_ns": 1_700_000_000 * 10**9 + second * 10**9,
                "at_ns": (50 + second) * 10**9,
                "pid": 100 + rank,
                "cpu_ns": int((0.5 + rank) * second * 1e9),
                "rss_bytes": (1 + rank) << 30,
                "rss_peak_bytes": (2 + rank) << 30,
                "machine_cores": 4,
                "machine_cpu_ns": 2 * second * 10**9,
                "machine_memory_bytes": 16 << 30,
                "machine_memory_used_bytes": 4 << 30,
                "network_received_bytes": 0,
                "network_sent_bytes": 3_000_000 * second,
                "loopback_bytes": 0,
                "gpus": [],
                **more,
            }
            for second in range(seconds)
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def gallery(root: Path) -> dict[str, Path]:
    """Several runs of every status, as a project would have them."""
    now = time.time_ns()
    runs = {"done": training(root)}
    change(
        runs["done"],
        labels={"model": "resnet50", "batch": 32},
        created_unix_ns=now - 3600 * 10**9,
        ended_unix_ns=now - 3480 * 10**9,
    )
    tuned(runs["done"])
    sampled(runs["done"], ranks=4)
    scaled(runs["done"], "resnet", {1: 41.0, 2: 79.1, 4: 149.0, 8: 276.0})
    scaled(runs["done"], "vgg16", {1: 14.5, 2: 25.0, 4: 41.5, 8: 61.0})
    merge_run(runs["done"])
    runs["failed"] = generate_run(root, "digits-crash", Schedule(ranks=2, steps=5), tuning=False, scaling=False)
    change(
        runs["failed"],
        status="failed",
        exit_code=-9,
        created_unix_ns=now - 7200 * 10**9,
        ended_unix_ns=now - 7100 * 10**9,
    )
    log = layout.log_file(runs["failed"], 1)
    log.parent.mkdir(parents=True)
    log.write_text("epoch 3\nRuntimeError: PeerLost: rank 0 is gone\n")
    runs["live"] = generate_run(root, "digits-live", Schedule(ranks=2, steps=12), tuning=False, scaling=False)
    change(runs["live"], status="running", exit_code=None, ended_unix_ns=None, created_unix_ns=now - 60 * 10**9)
    for rank in (0, 1):
        machine = layout.machine_file(runs["live"], rank)
        machine.write_text(
            json.dumps({**json.loads(machine.read_text()), "host": socket.gethostname(), "pid": os.getpid()})
        )
    runs["empty"] = root / "just-started"
    runs["empty"].mkdir()
    empty = {
        "format": 1,
        "name": "just-started",
        "status": "running",
        "size": 2,
        "created_unix_ns": now,
        "command": ["python", "train.py"],
    }
    layout.run_file(runs["empty"]).write_text(json.dumps(empty))
    # Both are running as long as the tests take: a run that writes nothing for ten minutes is lost.
    for name in ("live", "empty"):
        os.utime(layout.run_file(runs[name]), ns=(now, now + 6 * 3600 * 10**9))
    return runs


def rename_tensor(part: Path, name: str, other: str) -> None:
    """Call a tensor otherwise in a part."""
    found = read(part)
    tensors = tuple(tensor.replace(name, other) for tensor in found.spans.tensors)
    write_part(part, found.parts[0], replace(found.spans, tensors=tensors), found.instants)


@dataclass
class Content:
    """What a part says."""

    info: PartInfo
    spans: SpanTable
    instants: list[Instant]

    def units(self) -> list[bytes]:
        """Header and texts, then a span or an event each, as they would have been recorded one after another."""
        with TemporaryDirectory() as folder:
            path = Path(folder) / "part.spans"
            write_part(path, replace(self.info, truncated=True), self.spans, self.instants)
            content = path.read_bytes()
        records = np.frombuffer(content, part_layout.RECORD, offset=part_layout.HEADER.itemsize)
        heads = np.flatnonzero(records["stage"] != part_layout.WORDS)
        begins = part_layout.HEADER.itemsize + part_layout.RECORD.itemsize * np.append(heads, len(records))
        found = [content[begin:end] for begin, end in itertools.pairwise(begins.tolist())]
        texts = [unit for unit, head in zip(found, heads, strict=True) if records["stage"][head] == part_layout.TEXT]
        said = [
            (int(records["begin_ns" if records["stage"][head] == part_layout.EVENT else "end_ns"][head]), unit)
            for unit, head in zip(found, heads, strict=True)
            if records["stage"][head] != part_layout.TEXT
        ]
        said.sort(key=lambda one: one[0])
        return [content[: part_layout.HEADER.itemsize] + b"".join(texts), *(unit for _, unit in said)]


class Recording:
    """Parts of a run that are written again, piece by piece, as the recorder writes them."""

    def __init__(self, root: Path, steps: int = 40, ranks: int = 2, *, packed: bool = False) -> None:
        self.done = generate_run(root, "done", Schedule(ranks=ranks, steps=steps), tuning=False, scaling=False)
        self.run = root / "live"
        shutil.copytree(self.done, self.run)
        self.parts: dict[Path, Content] = {}
        for part in trace.sources(self.run):
            found = read(part)
            path = part.with_name(f"{part.name}.gz") if packed else part
            self.parts[path] = Content(found.parts[0], found.spans, list(found.instants))
            part.unlink()
        self._packers = {part: (zlib.compressobj(wbits=31), [0]) for part in self.parts} if packed else {}

    def upto(self, share: float, torn: bytes = b"") -> None:
        """Let every part hold this share of its records, and the begin of one that is half there."""
        for part, content in self.parts.items():
            units = content.units()
            kept = units[: int(share * len(units))]
            if self._packers:
                self._pack(part, kept)
                continue
            with part.open("r+b" if part.exists() else "wb") as stream:
                stream.write(b"".join(kept) + torn)
                stream.truncate()

    def _pack(self, part: Path, kept: list[bytes]) -> None:
        """Write more of a packed part; like the recorder's, each block can be unpacked at once."""
        packer, written = self._packers[part]
        with part.open("ab") as stream:
            stream.write(packer.compress(b"".join(kept[written[0] :])) + packer.flush(zlib.Z_SYNC_FLUSH))
        written[0] = max(written[0], len(kept))
