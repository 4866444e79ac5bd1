"""Horovod's published results, predicted from the rate of one GPU.

Published by Sergeev and Del Balso ("Horovod: fast and easy distributed deep learning in TensorFlow", 2018) and in its
documentation: batch 64 a GPU, Pascal GPUs, four a server, 25 Gbit/s RoCE. Three terms are fitted, to the 16-GPU results
alone: the share of the line that a ring gets, contention with computing, and jitter. What is not fitted stands below.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy import optimize

from ringtune import layout
from ringtune.benchmarks.training.profiles import model_sizes
from ringtune.errors import UsageError
from ringtune.knobs import Knobs
from ringtune.tuner.model.cluster import Cluster, Link
from ringtune.tuner.model.collectives import RING
from ringtune.tuner.model.replay import play
from ringtune.tuner.model.workload import Workload, evenly, from_profile

BATCH = 64
GPUS_PER_SERVER = 4
LINE = 25e9 / 8
STEP_LATENCY_NS = 5_000.0
"""Time of a step of the ring between servers: the usual few microseconds of RDMA and a kernel's start; not fitted."""

PEER = Link(2_000.0, 10e9)
"""Between GPUs of a server over PCIe: three of four steps of the ring; not fitted."""

COPY_NS = 4.0 / 732.0
"""Of a byte into the fusion buffer and out again, each read and written, in memory of 732 GB/s (P100); not fitted."""

CONTROL_NS = 100_000.0
KNOBS = Knobs(fusion_bytes=64 << 20, cycle_time_ns=5_000_000, step_schedule=0)
"""Horovod's defaults of that time; it negotiates every step."""

ALONE = {"inception_v3": 134.4, "resnet101": 119.4, "vgg16": 130.9}
"""Images per second of one GPU."""

SIXTEEN = {"inception_v3": 2022.6, "resnet101": 1746.2, "vgg16": 1787.4}
"""Images per second of 16 GPUs over RDMA."""

PUBLISHED = {
    128: {"inception_v3": 0.90, "resnet101": 0.90, "vgg16": 0.79},
    512: {"inception_v3": 0.90, "resnet101": 0.90, "vgg16": 0.68},
}
"""Scaling efficiency by GPUs."""

STEP_NS = {"resnet50": 128.1e6, "resnet101": 192.0e6, "vgg16": 194.5e6}
"""Batch size of the profiles, from their README."""


def read_profile(folder: Path, name: str) -> Workload:
    """Return a backward profile of `folder`.

    Raises:
        UsageError: It is not there or is none.
    """
    path = folder / f"{name}.log"
    if not path.is_file():
        raise UsageError(f"{path}: no such backward profile")
    return from_profile(path.read_text(encoding="utf-8"), name, STEP_NS[name])


def workloads(folder: Path | None) -> dict[str, Workload]:
    """The three networks at the speed of the published GPU; of Inception V3, without a folder of all, only sizes."""
    found = {name: evenly(model_sizes(name), BATCH / rate * 1e9, name) for name, rate in ALONE.items()}
    if folder is not None:
        for name in ("resnet101", "vgg16"):
            found[name] = read_profile(folder, name).lasting(found[name].compute_ns)
    return found


def cluster_of(gpus: int, share: float, contention: float) -> Cluster:
    """The published cluster, of which links carry a share of the line."""
    return Cluster(
        ranks=gpus,
        slots=GPUS_PER_SERVER,
        memory=PEER,
        network=Link(STEP_LATENCY_NS, LINE * share),
        copy_ns=COPY_NS,
        contention=contention,
        control_ns=CONTROL_NS,
        algorithm=RING,
    )


def predict_efficiency(work: Workload, gpus: int, terms: NDArray[np.float64]) -> float:
    """Scaling efficiency; `terms` are the share of the line, contention and jitter."""
    share, contention, jitter = (float(term) for term in terms)
    return play(replace(work, jitter=jitter), cluster_of(gpus, share, contention), KNOBS).efficiency


def fit(works: dict[str, Workload]) -> NDArray[np.float64]:
    """Fit the three terms to the three 16-GPU results, from several starts (the replay has steps in it)."""
    wanted = {name: rate / 16 / ALONE[name] for name, rate in SIXTEEN.items()}

    def misses(terms: NDArray[np.float64]) -> list[float]:
        return [predict_efficiency(works[name], 16, terms) - wanted[name] for name in wanted]

    starts = [(share, contention, 0.01) for share in (0.6, 0.8, 0.95) for contention in (0.05, 0.2, 0.4)]
    fits = [
        optimize.least_squares(misses, start, bounds=([0.3, 0, 0], [1, 1, 0.1]), diff_step=1e-3) for start in starts
    ]
    best: NDArray[np.float64] = min(fits, key=lambda one: float(one.cost)).x
    return best


def run_published(folder: Path, console: Console) -> dict[str, Any]:
    """Fit, predict, print every miss, and return the record."""
    works = workloads(folder)
    terms = fit(works)
    rows = [
        (name, 16, predict_efficiency(works[name], 16, terms), SIXTEEN[name] / 16 / ALONE[name], True) for name in works
    ]
    rows += [
        (name, gpus, predict_efficiency(works[name], gpus, terms), PUBLISHED[gpus][name], False)
        for gpus in PUBLISHED
        for name in works
    ]
    share, contention, jitter = terms
    table = Table(
        title="Horovod's published scaling efficiency",
        caption=f"fitted to 16 GPUs: {100 * share:.0f} % of the line, contention {contention:.2f}, "
        f"jitter {100 * jitter:.1f} %",
    )
    for column in ("network", "GPUs", "published", "predicted", "miss (points)"):
        table.add_column(column, justify="right" if column != "network" else "left")
    for name, gpus, value, wanted, fitted in rows:
        miss = f"{100 * (value - wanted):+.1f}{' (fitted)' if fitted else ''}"
        table.add_row(name, str(gpus), f"{100 * wanted:.1f} %", f"{100 * value:.1f} %", miss)
    console.print(table)
    return {
        "format": layout.FORMAT,
        "benchmark": "predict-published",
        "terms": {"line_share": share, "contention": contention, "jitter": jitter},
        "cases": [
            {"network": name, "gpus": gpus, "predicted": value, "published": wanted, "fitted": fitted}
            for name, gpus, value, wanted, fitted in rows
        ],
    }
