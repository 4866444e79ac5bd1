"""What the ranks of the tests' jobs do with compressed gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import ringtune.torch as hvd
from ringtune.errors import HorovodInternalError
from tests.jobs.cases.common import contribution, digest, expectation
from tests.jobs.cases.step_schedule import until_silent

COMPRESSIONS: dict[str, Any] = {
    "none": hvd.Compression.none,
    "fp16": hvd.Compression.fp16,
    "bf16": hvd.Compression.bf16,
    "powersgd": hvd.Compression.powersgd(rank=2, start_iteration=0),
    "powersgd, rank 1": hvd.Compression.powersgd(rank=1, start_iteration=0),
    "topk": hvd.Compression.topk(ratio=0.1, min_elements=8),
    "topk, one in five": hvd.Compression.topk(ratio=0.2, min_elements=8),
}


def numbers(rank: int, count: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Return a rank's contribution: magnitudes from 0.1 to 8, both signs."""
    generator = torch.Generator().manual_seed(100 + rank)
    values = torch.rand(count, generator=generator, dtype=torch.float64) * 7.9 + 0.1
    signs = torch.randint(0, 2, (count,), generator=generator) * 2 - 1
    return (values * signs).to(torch.float32).to(dtype)


def cast_sum(compression: str, dtype: str, count: int) -> str:
    """Reduce with every contribution rounded once, and at most one rounding more for each rank; return the bits."""
    size, kind = hvd.size(), getattr(torch, dtype)
    unit = {"fp16": 2.0**-11, "bf16": 2.0**-8}[compression]
    parts = torch.stack([numbers(rank, count) for rank in range(size)])
    tensor = numbers(hvd.rank(), count, kind)
    result = torch.empty(0)
    for _ in range(2):
        result = hvd.allreduce(tensor, name=f"cast.{count}", op=hvd.Sum, compression=COMPRESSIONS[compression])
        assert result.dtype is kind and torch.equal(tensor, numbers(hvd.rank(), count, kind))
        bound = parts.abs().sum(0) * unit * (size + 1)
        assert ((result.double() - parts.sum(0)).abs() <= bound).all()
    if count > 100:
        assert not torch.equal(result.double(), parts.sum(0)), "it was not compressed at all"
    return digest(result)


def cast_exact(compression: str, dtype: str, op: int) -> None:
    """Reduce small integers, which are exact in every type; many at once, with and without a cast, and a group."""
    size, kind = hvd.size(), getattr(torch, dtype)
    for count in (0, 1, 1001):
        tensor = contribution(hvd.rank(), count, kind, op)
        result = hvd.allreduce(tensor, name=f"exact.{count}", op=op, compression=COMPRESSIONS[compression])
        assert result.dtype is kind and torch.equal(result, expectation(size, count, kind, op))
    counts = [1, 7, 500, 64]
    tensors = [contribution(hvd.rank(), count, kind, op) for count in counts]
    together = hvd.grouped_allreduce(tensors, name="exact", op=op, compression=COMPRESSIONS[compression])
    for count, result in zip(counts, together, strict=True):
        assert result.dtype is kind and torch.equal(result, expectation(size, count, kind, op))


def overflow() -> tuple[float, float, float]:
    """Return what becomes of a number beyond float16: cast, with factors around the cast, and as bfloat16."""
    tensor = torch.full((5,), 1e5)
    fp16, bf16 = hvd.Compression.fp16, hvd.Compression.bf16
    cast = hvd.allreduce(tensor, compression=fp16)
    scaled = hvd.allreduce(tensor, compression=fp16, prescale_factor=1 / 16, postscale_factor=16.0)
    wide = hvd.allreduce(tensor, compression=bf16)
    return float(cast[0]), float(scaled[4]), float(wide[2])


def gradient_of_cast() -> float:
    """Return the gradient through an allreduce that travels as float16: reduced in the same way."""
    tensor = torch.ones(3, requires_grad=True)
    weight = 1 + 2.0**-11  # halfway between two numbers of float16: becomes 1
    (hvd.allreduce(tensor, op=hvd.Sum, compression=hvd.Compression.fp16) * weight).sum().backward()
    assert tensor.grad is not None and tensor.grad.dtype is torch.float32
    return float(tensor.grad[0])


def joined() -> list[float]:
    """Let rank 1 join while the others reduce as float16; return what they get: Average divides by all ranks."""
    found = []
    if hvd.rank() != 1:
        for op in (hvd.Average, hvd.Sum, hvd.Max):
            tensor = torch.full((3,), -6.0)
            found.append(float(hvd.allreduce(tensor, op=op, name=f"j.{op}", compression=hvd.Compression.fp16)[1]))
    hvd.join()
    return found


class Given:
    """Parameters whose gradients are given.

    Args:
        shapes: Of the parameters.
        **options: Of `DistributedOptimizer`; ``compression`` by name.
    """

    def __init__(self, shapes: Sequence[Sequence[int]], compression: str, **options: Any) -> None:
        self.params = [torch.nn.Parameter(torch.zeros(*shape)) for shape in shapes]
        named = [(f"given.{index}", param) for index, param in enumerate(self.params)]
        base = torch.optim.SGD(self.params, lr=1.0)
        groups = options.pop("grouped", None)
        if groups is not None:
            options["groups"] = [[self.params[index] for index in group] for group in groups]
        self.optimizer = hvd.DistributedOptimizer(base, named, compression=COMPRESSIONS[compression], **options)

    def reduce(self, grads: Sequence[torch.Tensor], passes: int = 1) -> list[torch.Tensor]:
        """Return the reduced gradients of one step."""
        self.optimizer.zero_grad()
        for _ in range(passes):
            loss = sum(((param * grad).sum() for param, grad in zip(self.params, grads, strict=True)), torch.zeros(()))
            loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.synchronize()
        self.optimizer._synchronized = False
        return [param.grad.clone() for param in self.params]  # type: ignore[union-attr]

    def residuals(self) -> list[torch.Tensor]:
        """Return what this rank has not sent yet, by parameter; zero where all of it was."""
        parts = self.optimizer.state_dict()["compression"]["parts"]
        return [
            parts[f"given.{index}"]["residual"].view(param.shape).clone()
            if f"given.{index}" in parts
            else torch.zeros(param.shape)
            for index, param in enumerate(self.params)
        ]


SHAPES = [(40, 30), (5,), (16, 3, 5, 5), (200,)]


def integers(rank: int, step: int) -> list[torch.Tensor]:
    """Return small integers as gradients, other ones on each rank and in each step."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return [torch.randint(-9, 10, shape, generator=generator).float() for shape in SHAPES]


def identity(compression: str, steps: int, options: dict[str, Any]) -> tuple[str, float, float]:
    """Send integers as gradients with op Sum.

    Returns:
        Fingerprint of all results; largest difference between all that was sent plus the residuals of all ranks and
        the sum of all gradients; the largest residual.
    """
    given = Given(SHAPES, compression, op=hvd.Sum, **options)
    sent = [torch.zeros(shape, dtype=torch.float64) for shape in SHAPES]
    everything = [torch.zeros(shape, dtype=torch.float64) for shape in SHAPES]
    bits = ""
    passes = options.get("backward_passes_per_step", 1)
    for step in range(steps):
        results = given.reduce(integers(hvd.rank(), step), passes)
        bits += digest(torch.cat([result.view(-1) for result in results]))
        for index, result in enumerate(results):
            sent[index] += result.double()
            for rank in range(hvd.size()):
                everything[index] += passes * integers(rank, step)[index].double()
    worst, largest = 0.0, 0.0
    for index, residual in enumerate(given.residuals()):
        left = hvd.allreduce(residual.double(), op=hvd.Sum, name=f"left.{index}")
        worst = max(worst, float((sent[index] + left - everything[index]).abs().max()))
        largest = max(largest, float(residual.abs().max()))
    return bits, worst, largest


def chosen(steps: int) -> bool:
    """Whether top-k sends the largest elements of gradient plus residual, and they alone, with op Average."""
    given = Given([(100,)], "topk")
    residuals = [torch.zeros(100) for _ in range(hvd.size())]
    for step in range(steps):
        expected = torch.zeros(100)
        for rank in range(hvd.size()):
            generator = torch.Generator().manual_seed(7 * step + rank)
            residuals[rank] += torch.randn(100, generator=generator)
            indices = residuals[rank].abs().topk(10).indices
            expected[indices] += residuals[rank][indices] * torch.tensor(1 / hvd.size(), dtype=torch.float32)
            residuals[rank][indices] = 0
        generator = torch.Generator().manual_seed(7 * step + hvd.rank())
        (result,) = given.reduce([torch.randn(100, generator=generator)])
        assert torch.equal(result, expected) and torch.equal(given.residuals()[0], residuals[hvd.rank()])
    return True


def low_rank(rank: int) -> float:
    """Return the error, against the average, of PowerSGD on gradients whose rank is that of the approximation."""
    generator = torch.Generator().manual_seed(3)
    left, right = torch.randn(60, rank, generator=generator), torch.randn(rank, 50, generator=generator)
    given = Given([(60, 50)], "powersgd" if rank == 2 else "powersgd, rank 1")
    (result,) = given.reduce([left @ right * (hvd.rank() + 1)])
    return float((result - left @ right * (hvd.size() + 1) / 2).abs().max())


def starts_later() -> list[bool]:
    """Whether the results of three steps are exact, where PowerSGD starts at the third."""
    COMPRESSIONS["late"] = hvd.Compression.powersgd(rank=1, start_iteration=2)
    given = Given(SHAPES, "late", op=hvd.Sum)
    exact = []
    for step in range(3):
        (result, *_) = given.reduce(integers(hvd.rank(), step))
        exact.append(torch.equal(result, sum(integers(rank, step)[0] for rank in range(hvd.size()))))  # type: ignore[arg-type]
    return exact


def disagree(compressions: list[str]) -> tuple[str, float]:
    """Let the ranks compress differently; return the error of a step, and a sum that is reduced afterwards."""
    given = Given(SHAPES, compressions[hvd.rank()])
    message = ""
    try:
        given.reduce(integers(hvd.rank(), 0))
    except HorovodInternalError as error:
        message = str(error)
    return message, float(hvd.allreduce(torch.ones(1), op=hvd.Sum, name="afterwards"))


def interrupted(compression: str) -> tuple[str, str]:
    """Return the results of three steps after two others: at once, and after going back to a saved state."""
    given = Given(SHAPES, compression)
    for step in range(2):
        given.reduce(integers(hvd.rank(), step))
    saved = _copied(given.optimizer.state_dict())
    ends = []
    for _ in range(2):
        results = [result for step in range(2, 5) for result in given.reduce(integers(hvd.rank(), step))]
        ends.append(digest(torch.cat([result.view(-1) for result in results])))
        given.optimizer.load_state_dict(_copied(saved))
    return ends[0], ends[1]


def loaded_elsewhere(compression: str) -> tuple[list[float], str]:
    """Load rank 0's state on all ranks; return the sizes of the residuals and the bits of the next step."""
    given = Given(SHAPES, compression)
    given.reduce(integers(hvd.rank(), 0))
    saved = hvd.broadcast_object(_copied(given.optimizer.state_dict()), root_rank=0)
    fresh = Given(SHAPES, compression)
    fresh.optimizer.load_state_dict(saved)
    sizes = [float(residual.abs().sum()) for residual in fresh.residuals()]
    results = fresh.reduce(integers(hvd.rank(), 1))
    return sizes, digest(torch.cat([result.view(-1) for result in results]))


def loaded_by_the_root_alone() -> str:
    """Load state on rank 0 and broadcast the optimizer's, as scripts resume; return the bits of the next step."""
    given = Given(SHAPES, "powersgd")
    for step in range(2):
        given.reduce(integers(hvd.rank(), step))
    fresh = Given(SHAPES, "powersgd")
    fresh.reduce(integers(hvd.rank(), 5))
    if hvd.rank() == 0:
        fresh.optimizer.load_state_dict(_copied(given.optimizer.state_dict()))
    hvd.broadcast_optimizer_state(fresh.optimizer, root_rank=0)
    results = fresh.reduce(integers(hvd.rank(), 2))
    return digest(torch.cat([result.view(-1) for result in results]))


def in_a_set(compression: str) -> str:
    """Reduce among the ranks but the last; return the bits of the results, none on the last."""
    members = hvd.add_process_set(list(range(hvd.size() - 1)))
    bits = ""
    if members.included():
        given = Given(SHAPES, compression, process_set=members)
        for step in range(3):
            bits += digest(torch.cat([one.view(-1) for one in given.reduce(integers(hvd.rank(), step))]))
    hvd.remove_process_set(members)
    return bits


def steady(compression: str) -> list[tuple[int, int]]:
    """Return the control messages and bytes of windows of equal steps, until one has none on every rank."""
    given = Given([(64, 32), (64,), (128, 64)], compression)
    grads = [torch.ones_like(param) for param in given.params]

    def one(_: int) -> None:
        results = given.reduce(grads)
        assert all(torch.equal(result, grad) for result, grad in zip(results, grads, strict=True))

    return until_silent(one, windows=3, attempts=40)


def _copied(value: Any) -> Any:
    """Return a deep copy, as a checkpoint on disk would be."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    return type(value)(_copied(one) for one in value) if isinstance(value, (list, tuple)) else value
