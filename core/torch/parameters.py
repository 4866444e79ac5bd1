"""Names and groups of the parameters that are given to `DistributedOptimizer`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ringtune.common.util import split_list
from ringtune.errors import InvalidArgument

Named = Sequence[tuple[str, torch.Tensor]]


def find_duplicates(values: Iterable[Any]) -> set[Any]:
    """Return the elements that occur more than once."""
    seen: set[Any] = set()
    return {one for one in values if one in seen or seen.add(one)}  # type: ignore[func-returns-value]


def complete(groups: Sequence[dict[str, Any]], names: dict[torch.Tensor, str]) -> Named:
    """Return name and parameter in the optimizer's order; one without a name is named by its index."""
    taken = set(names.values())
    named: dict[torch.Tensor, str] = {}
    for number, group in enumerate(groups):
        for index, param in enumerate(group["params"]):
            name = names.get(param, f"allreduce.noname.{number}.{index}")
            while param not in names and name in taken:  # a parameter that was replaced has this name
                name += "+"
            taken.add(name)
            named.setdefault(param, name)
    names.update(named)
    return [(name, param) for param, name in named.items()]


def name_all(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> tuple[Named, dict[torch.Tensor, str]]:
    """Return name and parameter in the optimizer's order, and the names of all that were given.

    Raises:
        InvalidArgument: Names are missing, double, or not in pairs.
    """
    if named_parameters is None:
        return complete(optimizer.param_groups, {}), {}
    pairs = list(named_parameters)
    if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in pairs):
        raise InvalidArgument(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced by "
            "model.named_parameters()."
        )
    duplicates = find_duplicates(name for name, _ in pairs)
    if duplicates:
        raise InvalidArgument(
            f"Parameter names in named_parameters must be unique. Found duplicates: {', '.join(sorted(duplicates))}"
        )
    names = {param: name for name, param in pairs}
    params = [param for group in optimizer.param_groups for param in group["params"]]
    missing = sum(param not in names for param in params)
    if missing:
        raise InvalidArgument(
            f"named_parameters was specified, but {missing} of {len(params)} model parameters were not named. "
            "Python object ids don't match: did you pass the names of another model?"
        )
    return [(names[param], param) for param in dict.fromkeys(params)], names


def members_of(groups: int | Sequence[Sequence[torch.Tensor]] | None, named: Named) -> list[list[torch.Tensor]]:
    """Return the parameters of each group; those in none travel alone.

    Raises:
        InvalidArgument: Groups are no positive number or lists of the optimizer's parameters, each in one at most.
    """
    params = [param for _, param in named]
    if groups is None:
        return []
    if isinstance(groups, int) and not isinstance(groups, bool):
        if groups <= 0:
            raise InvalidArgument(f"groups should be a positive integer or a list of lists of tensors, got {groups}")
        return [part for part in split_list(params, groups) if part]
    if not isinstance(groups, (list, tuple)) or any(not isinstance(group, (list, tuple)) for group in groups):
        raise InvalidArgument("groups should be a positive integer or a list of lists of tensors")
    flat = [one for group in groups for one in group]
    if any(not isinstance(one, torch.Tensor) for one in flat):
        raise InvalidArgument("groups must consist of torch.Tensor.")
    if find_duplicates(id(one) for one in flat):
        raise InvalidArgument("A parameter can only appear once in groups.")
    known = set(params)
    if any(one not in known for one in flat):
        raise InvalidArgument("groups holds a tensor that is no parameter of the optimizer")
    return [list(group) for group in groups if group]
