"""Bringing ranks into the same state: parameters, optimizer state and any Python object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ringtune import session
from ringtune.common.argument_checks import check_name, refuse
from ringtune.errors import InvalidArgument, RingtuneError
from ringtune.numpy.objects import allgather_object as allgather_object
from ringtune.numpy.objects import broadcast_object as broadcast_object
from ringtune.torch import handles
from ringtune.torch.asynchronous import broadcast_async_
from ringtune.torch.checked_calls import check_in_place, checked


@checked
def broadcast_parameters(params: Mapping[str, Any] | Iterable[Any], root_rank: int) -> None:
    """Overwrite tensors with those of the root, in place.

    Args:
        params: ``model.state_dict()``, or a list of tensors or of ``(name, tensor)`` pairs.
        root_rank: Rank whose values all ranks take.

    Raises:
        InvalidArgument: Params are something else, for example a generator, or hold what is no tensor.
    """
    if isinstance(params, Mapping):
        named = sorted(params.items())
    elif isinstance(params, list):
        named = [entry if isinstance(entry, tuple) else (f"parameter.{i}", entry) for i, entry in enumerate(params)]
    else:
        raise InvalidArgument(
            f"invalid params of type: {type(params)}; expected a state_dict or a list such as list(model.parameters())"
        )
    for entry in named:
        if len(entry) != 2:
            raise InvalidArgument(f"broadcast_parameters: params hold {entry!r}, expected pairs of name and tensor")
    tensors = [(name, value) for name, value in named if value is not None]
    for name, value in tensors:  # all are checked before the first is submitted
        check_name(name, "broadcast_parameters: the name")
        check_in_place(value, f"broadcast_parameters: {name!r}")
    _finish([broadcast_async_(tensor.detach(), root_rank, name) for name, tensor in tensors])


@checked
def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Give all ranks the root's optimizer state and options, in place; works for every optimizer.

    Ranks need not have any state yet: it is made in the shape of the root's. Where a rank has none, parameters without
    a gradient get one of zeros on all ranks, as scripts for Horovod find it afterwards; nothing is moved by it.

    Args:
        optimizer: The optimizer, wrapped by `DistributedOptimizer` or not.
        root_rank: Rank whose state all ranks take.
        model: Says which embeddings have sparse gradients; not needed else.

    Raises:
        InvalidArgument: The ranks' optimizers do not hold equally many parameters.
    """
    if not hasattr(optimizer, "param_groups"):
        refuse("broadcast_optimizer_state: optimizer", optimizer, "a torch.optim.Optimizer")
    params = [param for group in optimizer.param_groups for param in group["params"]]
    here = session.require().rank == root_rank
    tensors: list[torch.Tensor] = []
    options = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    counts = [len(group["params"]) for group in optimizer.param_groups]
    state = [optimizer.state.get(param) for param in params]
    sketch = (counts, *_sketch((options, state), tensors)) if here else None
    theirs = broadcast_object(sketch, root_rank, "optimizer.sketch")
    told = allgather_object((counts == theirs[0], len(optimizer.state) == 0), "optimizer.agree")
    if wrong := [rank for rank, (same, _) in enumerate(told) if not same]:
        raise InvalidArgument(
            f"broadcast_optimizer_state: rank {root_rank}'s optimizer holds {theirs[0]} parameters by group, "
            f"this rank's {counts}; ranks {wrong} differ from the root"
        )
    if not here:
        options, state = _build(theirs[1:], tensors)
        _take_over(optimizer, params, options, state)
    _finish([broadcast_async_(one, root_rank, f"optimizer.{index}") for index, one in enumerate(tensors)])
    if any(empty for _, empty in told):
        _leave_gradients(params, _sparse_among(optimizer, model, params))
    reducer = getattr(optimizer, "_reducer", None)
    if reducer is not None and reducer.feedback is not None:
        reducer.feedback.agree_anew()


@dataclass(frozen=True)
class _Placeholder:
    """Placeholder for a tensor in a skeleton of the state."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    kind: str  # of its device: ranks may have GPUs of different numbers


def _sketch(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Return the value with placeholders for its tensors, which are collected in order."""
    if isinstance(value, torch.Tensor):
        tensors.append(value.detach())
        return _Placeholder(tuple(value.shape), value.dtype, value.device.type)
    if isinstance(value, dict):
        return {key: _sketch(one, tensors) for key, one in value.items()}
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(_sketch(one, tensors) for one in value)
    return value


def _build(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Return the value with new tensors instead of its placeholders, collected in the same order."""
    if isinstance(value, _Placeholder):
        tensors.append(torch.empty(value.shape, dtype=value.dtype, device=value.kind))
        return tensors[-1]
    if isinstance(value, dict):
        return {key: _build(one, tensors) for key, one in value.items()}
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(_build(one, tensors) for one in value)
    return value


def _take_over(optimizer: torch.optim.Optimizer, params: list[Any], options: list[Any], state: list[Any]) -> None:
    """Put options and state into the optimizer; groups stay the same objects, which schedulers may hold."""
    for group, new in zip(optimizer.param_groups, options, strict=True):
        group.update(new)
    optimizer.state.clear()
    for param, new in zip(params, state, strict=True):
        if new is not None:
            optimizer.state[param] = new


def _sparse_among(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None, params: list[Any]) -> set[int]:
    """Return which parameters (by ``id``) have sparse gradients, as far as optimizer and model say."""
    if isinstance(optimizer, torch.optim.SparseAdam):
        return {id(param) for param in params}
    modules = model.modules() if model is not None else ()
    kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    return {id(module.weight) for module in modules if isinstance(module, kinds) and module.sparse}


def _leave_gradients(params: list[Any], sparse: set[int]) -> None:
    """Give parameters that have no gradient one of zeros."""
    for param in params:
        if param.requires_grad and param.grad is None:
            layout = torch.sparse_coo if id(param) in sparse else param.layout
            param.grad = torch.zeros_like(param, layout=layout, requires_grad=False)


def _finish(started: list[int]) -> None:
    """Wait for all handles and raise the first failure afterwards, so that nothing stays in flight."""
    failure: RingtuneError | None = None
    for handle in started:
        try:
            handles.synchronize(handle)
        except RingtuneError as error:
            failure = failure or error
    if failure is not None:
        raise failure
