"""What the ranks of the tests' jobs do when they train: gradients, knobs under load, shared state, steps."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
import torch.distributed as dist

import ringtune.torch as hvd
from ringtune import session
from ringtune.errors import RingtuneError
from ringtune.knobs import Knobs
from tests.jobs.cases.common import contribution, digest, expectation


def make_network() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.Linear(50, 50), torch.nn.Tanh(), torch.nn.Linear(50, 3)
    )


def joined_losses(model: Any, optimizer: Any, steps: int, group: Any = None) -> list[float]:
    """Train on this rank's share of batches, the same in every call; return the losses of all ranks together."""
    rank, size = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(11)
    device = next(iter(model.parameters())).device
    losses = []
    for _ in range(steps):
        data, labels = torch.randn(24, 20, generator=generator), torch.randint(0, 3, (24,), generator=generator)
        data, labels = data.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(data[rank::size]), labels[rank::size])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        shared = loss.detach().clone()
        dist.all_reduce(shared, group=group)
        losses.append(shared.item() / size)
    return losses


def train(options: dict[str, Any]) -> tuple[list[str], list[torch.Tensor]]:
    """Train on this rank's share of each batch; return a fingerprint of every step's gradients and the parameters.

    Options: ``steps``, ``batch`` (joined), ``change_knobs``, ``optimizer`` and those of `DistributedOptimizer`.
    """
    options = dict(options)
    steps, batch = options.pop("steps", 5), options.pop("batch", 60)
    change, kind = options.pop("change_knobs", False), options.pop("optimizer", "SGD")
    accumulate = options.get("backward_passes_per_step", 1)
    rank, size = hvd.rank(), hvd.size()
    model = make_network()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    base = getattr(torch.optim, kind)(model.parameters(), lr=0.05)
    optimizer = hvd.DistributedOptimizer(base, model.named_parameters(), **options)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    generator = torch.Generator().manual_seed(11)
    prints = []
    for step in range(steps):
        data = torch.randn(batch, 20, generator=generator)
        labels = torch.randint(0, 3, (batch,), generator=generator)
        optimizer.zero_grad()
        share = torch.arange(rank, batch, size).chunk(accumulate)
        for part in share:
            loss = torch.nn.functional.cross_entropy(model(data[part]), labels[part]) / accumulate
            loss.backward()  # type: ignore[no-untyped-call]
            if change and rank == 0:
                session.require().propose_knobs(_some_knobs(step))
        optimizer.synchronize()
        prints.append(digest(torch.cat([param.grad.view(-1) for param in model.parameters()])))  # type: ignore[union-attr]
        with optimizer.skip_synchronize():
            optimizer.step()
    return prints, [param.detach().clone() for param in model.parameters()]


def learn(steps: int, **options: Any) -> tuple[str, float, float]:
    """Learn to tell clusters apart, this rank from its share of the points.

    Returns:
        Fingerprint of the parameters; the loss over all points afterwards and before.
    """
    generator = torch.Generator().manual_seed(17)
    labels = torch.arange(240) % 3
    data = torch.randn(3, 20, generator=generator)[labels] + torch.randn(240, 20, generator=generator)
    model = make_network()
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(base, model.named_parameters(), **options)

    def loss_of(part: slice) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(model(data[part]), labels[part])

    before = float(loss_of(slice(None)))
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(slice(hvd.rank(), None, hvd.size())).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    parameters = torch.cat([param.detach().view(-1) for param in model.parameters()])
    return digest(parameters), float(loss_of(slice(None))), before


def _some_knobs(step: int) -> Knobs:
    return Knobs(
        fusion_bytes=(0, 256, 4096, 1 << 20)[step % 4],
        cycle_time_ns=(0, 100_000, 1_000_000)[step % 3],
        segment_bytes=(64, 1024, 1 << 17)[step % 3],
        cache_capacity=(0, 2, 1024)[step % 3],
    )


def knobs_under_load(seconds: float) -> tuple[int, int]:
    """Reduce many exact tensors while rank 0 changes the knobs all the time; return rounds and versions seen."""
    versions = set()
    rounds = 0
    until = time.monotonic() + seconds
    while hvd.broadcast_object(time.monotonic() < until, name="go"):
        handles = []
        for i in range(20):
            if hvd.rank() == 0 and i % 5 == 0:
                session.require().propose_knobs(_some_knobs(rounds + i))
            tensor = contribution(hvd.rank(), 700 * i + 1, torch.float32, hvd.Sum)
            handles.append(hvd.allreduce_async_(tensor, name=f"load.{i}", op=hvd.Sum))
        for i, handle in enumerate(handles):
            assert torch.equal(hvd.synchronize(handle), expectation(hvd.size(), 700 * i + 1, torch.float32, hvd.Sum))
        versions.add(session.require().knobs_version)
        rounds += 1
    return rounds, len(versions)


def knobs_now() -> tuple[dict[str, int], int]:
    """Return the setting after one more collective."""
    hvd.barrier()
    now = session.require()
    return now.knobs.as_dict(), now.knobs_version


def propose_small_fusion() -> int:
    """Let rank 0 change one knob; elsewhere it is refused."""
    try:
        return session.require().propose_knobs(Knobs(fusion_bytes=12345))
    except RingtuneError as error:
        assert hvd.rank() != 0 and "rank 0" in str(error)
        return 0


def differentiate(what: str) -> list[float]:
    """Return the gradient of a collective's weighted sum; weights differ by rank."""
    tensor = torch.ones(3, requires_grad=True)
    weight = torch.full((3,), float(hvd.rank() + 1))
    if what == "allreduce":
        (hvd.allreduce(tensor, op=hvd.Sum) * weight).sum().backward()
    elif what == "allgather":
        (hvd.allgather(tensor) * weight.repeat(hvd.size())).sum().backward()
    else:
        (hvd.broadcast(tensor, 1) * weight).sum().backward()
    assert tensor.grad is not None
    found: list[float] = tensor.grad.tolist()
    return found


def share_objects(value: Any) -> tuple[Any, list[Any]]:
    """Send the last rank's object and gather everybody's."""
    mine = [hvd.rank(), value]
    return hvd.broadcast_object(mine, hvd.size() - 1), hvd.allgather_object(mine * (hvd.rank() + 1))


def share_optimizer_state(kind: str, wrapped: bool, options: dict[str, Any]) -> str:
    """Give ranks without state the root's and step once more; return all of it and the parameters as text."""
    torch.manual_seed(hvd.rank())
    # Muon takes matrices alone, and SparseAdam gradients of some rows.
    table = torch.nn.Embedding(4, 2, sparse=kind == "SparseAdam")
    optimizer = getattr(torch.optim, kind)(table.parameters(), **{**options, "lr": 0.1 * (hvd.rank() + 1)})

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = table(torch.tensor([0, 2])).square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    if hvd.rank() == 0:
        optimizer.step(closure)
    if wrapped:
        optimizer = hvd.DistributedOptimizer(optimizer, table.named_parameters())
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    hvd.broadcast_parameters(table.state_dict(), root_rank=0)
    optimizer.step(closure)
    return f"{optimizer.state_dict()} {table.weight.tolist()}"


def sparse() -> list[list[float]]:
    """Reduce a sparse tensor whose indices differ by rank."""
    tensor = torch.sparse_coo_tensor([[hvd.rank(), 4]], torch.ones(2, 2), (5, 2), check_invariants=True)
    found: list[list[float]] = hvd.sparse_allreduce_async(tensor, "sparse", hvd.Sum)().to_dense().tolist()
    return found


def steps(count: int) -> list[dict[str, int]]:
    """Reduce three named tensors of 400 bytes a step; return the statistics of each step."""
    now = session.require()
    found = []
    for _ in range(count):
        with now.range("forward"):
            tensors = [torch.ones(100) for _ in range(3)]
        handles = [hvd.allreduce_async_(tensor, name=f"s.{i}") for i, tensor in enumerate(tensors)]
        for handle in handles:
            hvd.synchronize(handle)
        found.append(now.end_step().as_dict())
    return found


def fork_and_reduce() -> tuple[int, float]:
    """Fork a child as a data loader does; it must neither disturb the job nor think it is in it for long."""
    child = os.fork()
    if child == 0:
        hvd.shutdown()
        os._exit(7)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), float(hvd.allreduce(torch.ones(1), name="after fork", op=hvd.Sum).item())
