"""One rank that times steps with the timeline off, on, and off again, in bursts that take turns within one job.

Started by `ringtune bench trace` as ``python -m ringtune.benchmarks.viewer.overhead_worker CONFIG`` where CONFIG is the
JSON form of `TraceRun`. A step submits all tensors, waits for them and ends the step. "again" is the same as "off":
what lies between the two is noise, and what lies between "off" and "on" has to be seen beside it. What was recorded is
counted and thrown away: merging it would take longer than the measurement.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch

import ringtune.torch as hvd
from ringtune.benchmarks.harness import marks
from ringtune.benchmarks.harness.marks import read_config
from ringtune.benchmarks.harness.process_groups import open_group
from ringtune.benchmarks.training.vision import build_model
from ringtune.benchmarks.viewer.config import TraceRun
from ringtune.session import Session
from ringtune.timeline.reading.part_reader import read_part
from ringtune.torch import recorder

KINDS = ("off", "on", "again")
_WARMUPS = 10


def main(config: str) -> None:
    """Runs this rank; rank 0 prints a marked line ``round`` per case and round."""
    run = read_config(TraceRun, config)
    hvd.init()
    torch.set_num_threads(1)
    session = Session.current()
    assert session is not None
    group = open_group("gloo") if run.models else nullcontext()
    with tempfile.TemporaryDirectory(prefix="ringtune-bench-") as folder, group:
        for case, sizes in enumerate(run.profiles):
            step = _ddp_step(run.models[case], sizes) if run.models else _step(session, case, sizes)
            _case(session, run, (case, step), Path(folder))
    hvd.shutdown()


def _case(session: Session, run: TraceRun, named: tuple[int, Callable[[], None]], folder: Path) -> None:
    """Times one case; rank 0 sends its rounds."""
    case, step = named
    for _ in range(_WARMUPS):
        step()
    steps = max(2, int(run.seconds * 1e9 / _slowest(_time(step, _WARMUPS))))
    for turn in range(run.rounds):
        times, counts = {}, [0, 0]
        for kind in (*KINDS[turn % 3 :], *KINDS[: turn % 3]):
            if kind == "on":
                session.start_part(str(folder / "part.spans"))
                if run.models:
                    recorder.join()
            times[kind] = _burst(step, steps)
            if kind == "on":
                session.stop_part()
                counts = _counted(folder)
                if run.models:
                    recorder.leave()
        if hvd.rank() == 0:
            marks.send("round", case=case, steps=steps, times_ns=times, recorded=counts[0], dropped=counts[1])


def _step(session: Session, case: int, sizes: list[int]) -> Callable[[], None]:
    named = [(torch.zeros(size // 4), f"trace.{case}.{index}") for index, size in enumerate(sizes)]

    def step() -> None:
        handles = [hvd.allreduce_async_(tensor, name=name, op=hvd.Sum) for tensor, name in named]
        for handle in handles:
            hvd.synchronize(handle)
        session.end_step()

    return step


def _ddp_step(name: str, sizes: list[int]) -> Callable[[], None]:
    """Returns a step of DDP: of a model with small images, or of parameters that are only summed up."""
    torch.manual_seed(0)
    inner, data = (_Parameters(sizes), ()) if name[0].isdigit() else (build_model(name), (torch.randn(4, 3, 64, 64),))
    model = torch.nn.parallel.DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    def step() -> None:
        optimizer.zero_grad()
        model(*data).sum().backward()
        optimizer.step()

    return step


class _Parameters(torch.nn.Module):
    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.parts = torch.nn.ParameterList(torch.zeros(size // 4) for size in sizes)

    def forward(self) -> torch.Tensor:
        return torch.cat(list(self.parts))


def _burst(step: Callable[[], None], steps: int) -> float:
    """Returns nanoseconds per step on the slowest rank."""
    hvd.barrier()
    _time(step, 1 + steps // 4)  # the beginning of a recording makes files and a thread; here a step counts
    return _slowest(_time(step, steps))


def _counted(folder: Path) -> list[int]:
    """Returns how many spans the recording in the folder holds and how many it dropped; removes it."""
    counts = [0, 0]
    for part in folder.iterdir():
        about = read_part(part).parts[0]
        counts = [counts[0] + (about.recorded or 0), counts[1] + about.dropped]
        part.unlink()
    return counts


def _time(step: Callable[[], None], count: int) -> float:
    begin_ns = time.perf_counter_ns()
    for _ in range(count):
        step()
    return (time.perf_counter_ns() - begin_ns) / count


def _slowest(measured: float) -> float:
    return hvd.allreduce(torch.tensor(measured, dtype=torch.float64), op=hvd.Max, name="trace.slowest").item()


if __name__ == "__main__":
    main(sys.argv[1])
