"""What ranks do in the tests of DDP's communication hooks, beside a group of Gloo's over the same ranks."""

# No `from __future__ import annotations`: DDP compares a hook's annotations with its own classes.
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
from torch.nn.parallel import DistributedDataParallel

from tests.jobs.cases.training import joined_losses, make_network

_gloo: list[Any] = []


def _reduced(group: Any, bucket: Any) -> Any:
    work: Any = dist.all_reduce(bucket.buffer() / dist.get_world_size(), group=group, async_op=True)
    return work.get_future()


def _first(done: Any) -> torch.Tensor:
    found: torch.Tensor = done.value()[0]
    return found


def waiting(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    """Wait for the bucket within the hook, so in the middle of backward."""
    done: Any = torch.futures.Future()
    done.set_result(_reduced(group, bucket).wait()[0])
    result: torch.futures.Future[torch.Tensor] = done
    return result


def waiting_behind(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    """Wait within the hook for what follows the bucket's future."""
    done: Any = torch.futures.Future()
    done.set_result(_reduced(group, bucket).then(_first).wait())
    result: torch.futures.Future[torch.Tensor] = done
    return result


def twice(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    """Reduce once more when the bucket is reduced, and wait for that in the callback."""

    def again(done: Any) -> torch.Tensor:
        work: Any = dist.all_reduce(_first(done), dist.ReduceOp.MAX, group=group, async_op=True)
        found: torch.Tensor = work.get_future().wait()[0]
        return found

    result: torch.futures.Future[torch.Tensor] = _reduced(group, bucket).then(again)
    return result


def power_sgd(group: Any) -> tuple[Any, Callable[..., Any]]:
    """torch's own hook, with state of its own."""
    return powersgd.PowerSGDState(group, 1, start_powerSGD_iter=2, min_compression_rate=1), powersgd.powerSGD_hook


HOOKS = {"waiting": waiting, "waiting behind": waiting_behind}
CHAINED = ["twice", "powersgd"]


def beside_gloo(how: str, steps: int) -> tuple[list[float], list[float]]:
    """Train under DDP with a hook over ringtune and over Gloo; return the losses of both."""
    if not _gloo:
        _gloo.append(dist.new_group(backend="gloo"))
    return _losses(None, how, steps), _losses(_gloo[0], how, steps)


def chained(how: str, steps: int) -> list[float]:
    """Train under DDP with a hook whose callbacks start further collectives; return the losses."""
    return _losses(None, how, steps)


def interrupted_backward() -> float:
    """Wait in backward for rank 1, which comes only when rank 0 has been interrupted; return when that was."""
    store: Any = dist.distributed_c10d._get_default_store()
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    loss = model(torch.ones(2, 4)).sum()
    if dist.get_rank() == 1:
        store.wait(["interrupted"])
    try:
        print("in backward", file=sys.stderr, flush=True)
        loss.backward()
    except KeyboardInterrupt:
        return time.monotonic()
    finally:
        store.set("interrupted", "yes")
    return 0.0


def _losses(group: Any, how: str, steps: int) -> list[float]:
    unused = how == "unused"
    network = make_network()
    model = DistributedDataParallel(network, process_group=group, bucket_cap_mb=0.004, find_unused_parameters=unused)
    if how == "powersgd":
        model.register_comm_hook(*power_sgd(group))
    elif how not in ("none", "unused"):
        model.register_comm_hook(group, {**HOOKS, "twice": twice}[how])
    return joined_losses(model, torch.optim.SGD(model.parameters(), lr=0.05), steps, group)
