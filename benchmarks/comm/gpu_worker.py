"""A rank of `ringtune.benchmarks.comm.gpu`: measures tensors on a GPU that all ranks of this host share.

Contenders take turns within every round, so that all of them see the same machine. A time ends when the device has
done everything.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import ringtune.torch as hvd
from ringtune.benchmarks.training.vision import build_model

Act = Callable[[], object]


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        device: ``cuda``; ``cpu`` for a look at the program itself.
        sizes: bytes of the tensors that are reduced alone.
        rounds: how often each contender has its turn.
        batch: images of a training step.
        pixels: side of an image.
        model: torchvision's name of the network.
        scratch: folder of this job.
    """

    device: str
    sizes: tuple[int, ...]
    rounds: int
    batch: int
    pixels: int
    model: str
    scratch: str


class Bench:
    """One rank."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.on_gpu = plan.device == "cuda"
        hvd.init()
        self.peer = "nccl" if self.on_gpu and hvd.size() == 1 else "gloo"  # NCCL refuses ranks that share a GPU
        stores: Any = dist  # torch's stub file lacks these
        store = stores.FileStore(str(Path(plan.scratch, "peers")), hvd.size())
        dist.init_process_group(self.peer, store=store, rank=hvd.rank(), world_size=hvd.size())

    def settle(self) -> None:
        """Wait until the device has done everything."""
        if self.on_gpu:
            torch.cuda.synchronize()

    def race(self, contenders: dict[str, Act], repeat: int = 1) -> dict[str, dict[str, float]]:
        """Return seconds of one run of each contender: median, first and third quartile."""
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for number in range(self.plan.rounds + 2):
            for name, act in contenders.items():
                self.settle()
                hvd.barrier()
                begin = time.perf_counter()
                for _ in range(repeat):
                    act()
                self.settle()
                if number >= 2:  # the first rounds open connections and learn the step schedule
                    seconds[name].append((time.perf_counter() - begin) / repeat)
        return {name: _summary(samples) for name, samples in seconds.items()}

    def copies(self) -> dict[str, Any]:
        """Copies between pinned memory and the device: the limit of host-staged reductions."""
        if not self.on_gpu:
            return {}
        count = 64 << 20
        host, device = torch.empty(count, dtype=torch.uint8, pin_memory=True), torch.empty(count, device="cuda")
        there = device.view(torch.uint8)[:count]
        found = self.race(
            {
                "to host": lambda: host.copy_(there, non_blocking=True),
                "to device": lambda: there.copy_(host, non_blocking=True),
            }
        )
        return {name: {"bytes": count, **seconds} for name, seconds in found.items()}

    def reductions(self) -> list[dict[str, Any]]:
        """One tensor at a time, in place."""
        rows = []
        for size in self.plan.sizes:
            tensor = torch.ones(size // 4, device=self.plan.device)
            contenders: dict[str, Act] = {
                "ringtune": _averaging(tensor, f"alone.{size}"),
                self.peer: partial(dist.all_reduce, tensor, op=dist.ReduceOp.MAX),
                "ringtune on the CPU": _averaging(torch.ones(size // 4), f"alone.{size}.cpu"),
            }
            rows.append({"bytes": size, "seconds": self.race(contenders, repeat=10 if size <= 1 << 20 else 2)})
        return rows

    def gradients(self) -> dict[str, Any]:
        """All gradients of the network, started together."""
        shapes = [tuple(one.shape) for one in self.network().parameters()]
        tensors = [torch.ones(shape, device=self.plan.device) for shape in shapes]

        def ours() -> None:
            started = [hvd.allreduce_async_(one, name=f"gradient.{i}") for i, one in enumerate(tensors)]
            for handle in started:
                hvd.synchronize(handle)

        def theirs() -> None:
            works = [dist.all_reduce(one, op=dist.ReduceOp.MAX, async_op=True) for one in tensors]
            for work in works:
                work.wait()

        bytes_ = sum(one.numel() * one.element_size() for one in tensors)
        return {"tensors": len(tensors), "bytes": bytes_, "seconds": self.race({"ringtune": ours, self.peer: theirs})}

    def network(self) -> Any:
        """Return the network, in memory of its own."""
        made: Any = build_model(self.plan.model)
        return made.to(self.plan.device, memory_format=torch.channels_last)

    def step_of(self, kind: str) -> Act:
        """Return a training step in bf16: of the network alone, with `DistributedOptimizer`, or under DDP."""
        model = self.network()
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        if kind == "ringtune":
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
            hvd.broadcast_parameters(model.state_dict(), 0)
        elif kind != "alone":
            model = torch.nn.parallel.DistributedDataParallel(model)
        shape = (self.plan.batch, 3, self.plan.pixels, self.plan.pixels)
        images = torch.rand(shape, device=self.plan.device).to(memory_format=torch.channels_last)
        labels = torch.randint(0, 1000, (self.plan.batch,), device=self.plan.device)

        def step() -> None:
            optimizer.zero_grad()
            with torch.autocast(self.plan.device, torch.bfloat16):
                loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()

        return step

    def training(self) -> dict[str, Any]:
        """Training steps of the network; images are a rank's."""
        kinds = {"alone": "alone", "ringtune": "ringtune", f"DDP ({self.peer})": "ddp"}
        found = self.race({name: self.step_of(kind) for name, kind in kinds.items()}, repeat=3)
        return {"model": self.plan.model, "batch": self.plan.batch, "pixels": self.plan.pixels, "seconds": found}

    def run(self) -> dict[str, Any]:
        """Return the record."""
        name = torch.cuda.get_device_name() if self.on_gpu else "cpu"
        record = {
            "ranks": hvd.size(), "device": name, "torch": torch.__version__, "copies": self.copies(),
            "reductions": self.reductions(), "gradients": self.gradients(), "training": self.training(),
        }  # fmt: skip
        dist.destroy_process_group()
        hvd.shutdown()
        return record


def _averaging(tensor: torch.Tensor, name: str) -> Act:
    return partial(hvd.allreduce_, tensor, op=hvd.Average, name=name)


def _summary(samples: list[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(samples, n=4)
    return {"median": middle, "low": low, "high": high}


def main() -> None:
    """Measure, and write the record on rank 0: arguments are the plan as JSON and the file."""
    given = json.loads(sys.argv[1])
    bench = Bench(Plan(**{**given, "sizes": tuple(given["sizes"])}))
    rank = hvd.rank()
    record = bench.run()
    if rank == 0:
        Path(sys.argv[2]).write_text(json.dumps(record, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
