"""What ranks do in tests of casts on other ways than plain allreduce: DDP's hook, checks, elastic states."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import ringtune.torch as hvd
from ringtune.errors import Mismatch
from tests.jobs.cases.compression import COMPRESSIONS, SHAPES, Given, integers
from tests.jobs.cases.group import open_group
from tests.jobs.cases.training import make_network


def hooked(compression: str, store: str) -> tuple[list[float], list[float]]:
    """Let DDP on Gloo reduce one gradient through the hook; return it, and what this rank put in."""
    open_group("gloo", store)
    hvd.init()
    torch.manual_seed(3)
    layer = torch.nn.Linear(50, 1, bias=False)
    model: Any = DistributedDataParallel(layer)
    model.register_comm_hook(COMPRESSIONS.get(compression), hvd.ddp_hook)
    generator = torch.Generator().manual_seed(20 + dist.get_rank())
    own = torch.rand(1, 50, generator=generator) + 0.5
    model(own).sum().backward()
    assert layer.weight.grad is not None
    dist.destroy_process_group()
    return layer.weight.grad.view(-1).tolist(), own.view(-1).tolist()


def optimizers() -> tuple[str, str]:
    """Return what gradients travel as where the script asks for nothing, and where it asks for fp16."""
    made = []
    for asked in (hvd.Compression.none, hvd.Compression.fp16):
        model = make_network()
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        made.append(hvd.DistributedOptimizer(plain, model.named_parameters(), compression=asked))
    used = [optimizer._reducer.options.compression.__name__ for optimizer in made]
    return used[0], used[1]


def hook_refuses(compression: str, store: str) -> str:
    """Return what the hook says to a compression that it cannot use."""
    open_group("gloo", store)
    hvd.init()
    model: Any = DistributedDataParallel(make_network())
    model.register_comm_hook(COMPRESSIONS[compression], hvd.ddp_hook)
    try:
        model(torch.ones(2, 20)).sum().backward()
    except (RuntimeError, ValueError) as error:
        return str(error)
    return ""


def checked(compression: str, spoilt: bool) -> list[str]:
    """Train three steps under RINGTUNE_CHECK; where asked, rank 1 spoils a gradient in step 1. Return the errors."""
    given = Given(SHAPES, compression)
    said = []
    for step in range(3):
        drain = given.optimizer._reducer.drain

        def spoiling(drain: Any = drain) -> Any:
            failure = drain()
            given.params[2].grad[0] += 1  # type: ignore[index]
            return failure

        if spoilt and step == 1 and hvd.rank() == 1:
            given.optimizer._reducer.drain = spoiling
        given.optimizer.zero_grad()
        grads = integers(hvd.rank(), step)
        sum(((param * grad).sum() for param, grad in zip(given.params, grads, strict=True)), torch.zeros(())).backward()  # type: ignore[no-untyped-call]
        try:
            given.optimizer.step()
            said.append("")
        except Mismatch as error:
            said.append(str(error))
        given.optimizer._reducer.drain = drain
    return said


def restored(compression: str) -> tuple[list[float], list[float]]:
    """Go on from a commit twice, the second time after `restore`; return the weights of both.

    Equal weights need the residuals of the commit: those of the first way went on meanwhile.
    """
    given = Given(SHAPES, compression)
    model = torch.nn.ParameterList(given.params)
    state = hvd.elastic.TorchState(model=model, optimizer=given.optimizer, batch=0)
    found = []
    _train(given, range(3))
    state.batch = 3
    state.commit()
    for _ in range(2):
        _train(given, range(3, 6))
        found.append(torch.cat([param.detach().view(-1) for param in given.params]).tolist())
        state.restore()
        assert state.batch == 3
    return found[0], found[1]


def _train(given: Given, steps: range) -> None:
    for step in steps:
        given.optimizer.zero_grad()
        grads = integers(hvd.rank(), step)
        sum(((param * grad).sum() for param, grad in zip(given.params, grads, strict=True)), torch.zeros(())).backward()  # type: ignore[no-untyped-call]
        given.optimizer.step()
