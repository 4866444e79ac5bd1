"""One rank that times every algorithm of allreduce by size.

Started by `ringtune bench allreduce --learn` as ``python -m ringtune.benchmarks.comm.learn_worker CONFIG`` where CONFIG
is the JSON form of `LearnRun`. The algorithms take turns within one job, switched by the knob of that name.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

import ringtune.torch as hvd
from ringtune.algorithms import ALGORITHMS, LINKS
from ringtune.benchmarks.comm.config import LearnRun
from ringtune.benchmarks.harness import marks
from ringtune.benchmarks.harness.marks import read_config
from ringtune.session import Session

ROUNDS = 5
_WARMUPS = 3


def main(config: str) -> None:
    """Runs this rank; rank 0 prints marked lines ``links`` and, per size, ``size``."""
    run = read_config(LearnRun, config)
    hvd.init()
    torch.set_num_threads(1)
    session = Session.current()
    assert session is not None
    network = hvd.allreduce(torch.tensor(float("tcp" in session.transports)), op=hvd.Max, name="learn.links")
    links = LINKS[int(network.item())]
    _send("links", links=links)
    if links != "memory":
        names = [name for name in ALGORITHMS[1:] if name != "hierarchical" or _levels()]
        for size_bytes in run.sizes_bytes:
            _send("size", bytes=size_bytes, median_ns=_measure(session, names, size_bytes, run.seconds))
    hvd.shutdown()


def _levels() -> bool:
    """Whether hosts hold several ranks; the same on all ranks."""
    return hvd.cross_size() > 1 and hvd.size() > hvd.cross_size()


def _measure(session: Session, names: Sequence[str], size_bytes: int, seconds: float) -> dict[str, float]:
    """Returns nanoseconds per call of the median sample of the slowest rank, by algorithm."""
    tensor = torch.zeros(max(1, size_bytes // 4))
    calls = {}
    for name in names:
        _switch(session, name)
        calls[name] = _calls(tensor, seconds / ROUNDS)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(ROUNDS):
        for name in (*names[turn % len(names) :], *names[: turn % len(names)]):
            _switch(session, name)
            samples[name] += [_time(tensor, 1) for _ in range(calls[name])]
    medians = torch.tensor([float(np.median(samples[name])) for name in names], dtype=torch.float64)
    slowest = hvd.allreduce(medians, op=hvd.Max, name="learn.medians")
    return dict(zip(names, slowest.tolist(), strict=True))


def _switch(session: Session, name: str) -> None:
    """Returns when all ranks use this algorithm."""
    number = ALGORITHMS.index(name)
    if hvd.rank() == 0:
        session.propose_knobs(replace(session.knobs, algorithm=number))
    while True:
        here = torch.tensor(float(session.knobs.algorithm == number))
        if hvd.allreduce(here, op=hvd.Min, name="learn.switched").item() == 1.0:
            return


def _calls(tensor: torch.Tensor, seconds: float) -> int:
    """Returns how many calls fill that time, at least 2; the same on every rank."""
    _time(tensor, 1)
    estimate_ns = torch.tensor(_time(tensor, _WARMUPS))
    slowest_ns = hvd.allreduce(estimate_ns, op=hvd.Max, name="learn.estimate").item()
    return max(2, min(1000, int(seconds * 1e9 / max(slowest_ns, 1.0))))


def _time(tensor: torch.Tensor, count: int) -> float:
    begin_ns = time.perf_counter_ns()
    for _ in range(count):
        hvd.allreduce_(tensor, op=hvd.Sum, name="learn")
    return (time.perf_counter_ns() - begin_ns) / count


def _send(event: str, **fields: object) -> None:
    if hvd.rank() == 0:
        marks.send(event, **fields)


if __name__ == "__main__":
    main(sys.argv[1])
