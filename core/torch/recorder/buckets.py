"""Names of DDP's buckets: their place, and the first and the last parameter in them."""

from __future__ import annotations

import time
import weakref
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ringtune import session

_MOST_LOOKS = 10
"""DDP forms its buckets in the second forward pass; with unused parameters it keeps the first, and does not tell."""

_buckets: weakref.WeakKeyDictionary[DistributedDataParallel, list[tuple[int, str]]] = weakref.WeakKeyDictionary()
"""Number of elements and name of each bucket, in the order of reduction."""


def watch(model: torch.nn.Module) -> None:
    """Name the buckets of a model, if it is one of DDP's."""
    if not isinstance(model, DistributedDataParallel):
        return
    looks = iter(range(_MOST_LOOKS))

    # Before a forward pass: while one goes backward DDP holds the lock that the question needs.
    def look(module: DistributedDataParallel, arguments: Any) -> None:
        found = str(module._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices", ""))
        if found:
            parameters = _parameters(module)
            parts = [[parameters[int(index)] for index in indices.split()] for indices in found.split(",")]
            _buckets[module] = [_describe(place, part) for place, part in enumerate(parts)]
            _mark(parts)
        if found or next(looks, None) is None:
            handle.remove()

    handle = model.register_forward_pre_hook(
        torch.compiler.disable(look, reason="ringtune's recorder is no part of the model")
    )


def find_name(place: int, elements: int) -> str | None:
    """Return the name of the bucket that a backward pass reduces.

    Args:
        place: How many it has reduced before.
        elements: Number of elements of this one.
    """
    for buckets in _buckets.values():
        if place < len(buckets) and buckets[place][0] == elements:
            return buckets[place][1]
    return None


def _parameters(model: DistributedDataParallel) -> list[tuple[str, torch.nn.Parameter]]:
    """Return the parameters that DDP reduces, in its order."""
    ignored: Any = model.parameters_to_ignore
    return [(name, one) for name, one in model.module.named_parameters() if one.requires_grad and name not in ignored]


def _describe(place: int, parameters: list[tuple[str, torch.nn.Parameter]]) -> tuple[int, str]:
    """Return number of elements and name of a bucket."""
    return _elements(parameters), f"bucket {place} ({_ends(parameters)})"


def _mark(parts: list[list[tuple[str, torch.nn.Parameter]]]) -> None:
    """Leave a mark for each bucket in the timeline: the backend knows a bucket by its number of elements only."""
    now = session.state.current
    if now is None or not now.recording:
        return
    at_ns = time.monotonic_ns()
    for place, parameters in enumerate(parts):
        about = f"{_elements(parameters)} elements ({_ends(parameters)})"
        now.record_range(f"DDP bucket {place} of {len(parts)}: {about}", at_ns, at_ns)


def _elements(parameters: list[tuple[str, torch.nn.Parameter]]) -> int:
    return sum(one.numel() for _, one in parameters)


def _ends(parameters: list[tuple[str, torch.nn.Parameter]]) -> str:
    first, last = parameters[0][0], parameters[-1][0]
    return first if first == last else f"{first} to {last}"
