"""What ranks do to begin and end groups of torch.distributed, on ringtune or on Gloo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from tests.jobs.cases.group import open_group

ranks = range


def _sum(group: Any = None) -> float:
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=group)
    return tensor[0].item()


def _raised(call: Callable[[], Any]) -> str:
    """Return the kind of error of a call: torch's own, whatever the backend."""
    try:
        call()
    except (AssertionError, ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def _twice(_: Any) -> Any:
    dist.destroy_process_group()
    return [dist.is_initialized(), _raised(dist.destroy_process_group), _raised(dist.barrier)]


def _group_twice(_: Any) -> Any:
    group = dist.new_group()
    found = [_sum(group)]
    dist.destroy_process_group(group)
    return [*found, _raised(lambda: dist.destroy_process_group(group)), _sum()]


def _again(open_next: Callable[[], Any]) -> Any:
    """Leave and begin anew, more than once."""
    found = []
    for _ in ranks(3):
        group = dist.new_group()
        found += [_sum(), _sum(group)]
        dist.destroy_process_group()
        open_next()
    return found


def _pending(open_next: Callable[[], Any]) -> Any:
    """Leave with works that nobody has waited for, and messages that nobody has taken."""
    group = dist.new_group()
    tensors = [torch.ones(1000) for _ in ranks(6)]
    works: list[Any] = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors[:3]]
    works += [dist.all_reduce(tensor, async_op=True) for tensor in tensors[3:]]
    works[0].get_future()
    for work in works:
        work.wait()
    unanswered = dist.isend(torch.ones(2), (dist.get_rank() + 1) % dist.get_world_size(), group=group)
    posted = dist.irecv(torch.ones(2), (dist.get_rank() + 1) % dist.get_world_size(), tag=7)
    assert unanswered is not None and posted is not None
    dist.destroy_process_group(group)
    dist.destroy_process_group()
    open_next()
    return [tensor[0].item() for tensor in tensors] + [_sum()]


STYLES: dict[str, Callable[[Any], Any]] = {
    "twice": _twice,
    "a group twice": _group_twice,
    "again": _again,
    "pending": _pending,
}


def live(style: str, backend: str, store: str) -> Any:
    """Play a style from an open world on; leave none behind."""
    count = 0

    def open_next() -> None:
        nonlocal count
        count += 1
        open_group(backend, f"{store}-{count}")

    open_next()
    found = STYLES[style](open_next)
    if dist.is_initialized():
        dist.destroy_process_group()
    return found
