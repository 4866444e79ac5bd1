"""Giving all ranks the same parameters."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ringtune import session
from ringtune.common.argument_checks import check_index
from ringtune.common.process_sets import ProcessSet, global_process_set
from ringtune.errors import InvalidArgument
from ringtune.jax.collectives import broadcast
from ringtune.numpy.objects import broadcast_object


def broadcast_parameters(
    params: Any,
    root_rank: int = 0,
    name: str = "parameters",
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return a tree like this one with the values of the root.

    Args:
        params: Any pytree: parameters, a state of optax, a ``TrainState``. Its structure is the same on all ranks.
            Arrays go as they are, keys of ``jax.random`` as their numbers, other leaves as pickles.
        root_rank: Rank whose values all ranks take.
        name: Before the names of the arrays.
        process_set: The ranks that take part; the root is a global rank.

    Raises:
        InvalidArgument: The ranks' trees differ.
        Mismatch: An array is of another shape or dtype than the root's.
    """
    check_index(root_rank, "broadcast_parameters: root_rank")
    leaves, structure = jax.tree_util.tree_flatten(params)
    kinds = [_kind(leaf) for leaf in leaves]
    here = session.require().rank == root_rank
    others = [leaf for leaf, kind in zip(leaves, kinds, strict=True) if kind == "object"]
    theirs = broadcast_object((kinds, others) if here else None, root_rank, f"{name}.leaves", process_set)
    if theirs[0] != kinds:
        raise InvalidArgument(
            f"broadcast_parameters: this rank's tree has {len(kinds)} leaves, that of rank {root_rank} "
            f"{len(theirs[0])}, or leaves of other kinds: build the same tree on all ranks"
        )
    arrays = {
        str(index): jax.random.key_data(leaf) if kind == "key" else leaf
        for index, (leaf, kind) in enumerate(zip(leaves, kinds, strict=True))
        if kind != "object"
    }
    sent = broadcast(arrays, root_rank, name=name, process_set=process_set) if arrays else {}
    rest = iter(theirs[1])
    found: list[Any] = []
    for index, (leaf, kind) in enumerate(zip(leaves, kinds, strict=True)):
        if kind == "object":
            found.append(next(rest))
        elif kind == "key":
            found.append(jax.random.wrap_key_data(sent[str(index)], impl=jax.random.key_impl(leaf)))
        else:
            found.append(sent[str(index)])
    return jax.tree_util.tree_unflatten(structure, found)


def _kind(leaf: Any) -> str:
    if isinstance(leaf, jax.Array):
        return "key" if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key) else "array"
    return "array" if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biufc" else "object"
