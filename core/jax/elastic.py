"""Elastic training with JAX: `run` and `JaxState` (``hvd.elastic``)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.errors import JaxRuntimeError

from ringtune.common.elastic import ObjectState, require_names, run_fn
from ringtune.common.framework_errors import failures_as_ours
from ringtune.common.rank_info import rank
from ringtune.jax.lifecycle import init, shutdown
from ringtune.jax.parameters import broadcast_parameters
from ringtune.numpy.objects import broadcast_object

__all__ = ["JaxState", "run"]

R = TypeVar("R")


class JaxState(ObjectState):
    """State of a job: any number of attributes, each a pytree of arrays or a plain value.

    ``commit()`` copies them to the host, so a program may donate the arrays afterwards. Trees keep their structure.

    Args:
        **kwargs: Attributes and their first values.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(bcast_object=broadcast_object, get_rank=rank)
        self._saved_state = {name: _copied(value) for name, value in kwargs.items()}
        self._set(kwargs)

    def save(self) -> None:
        self._saved_state = {name: _copied(getattr(self, name)) for name in self._saved_state}

    def restore(self) -> None:
        self._set({name: jax.tree_util.tree_map(_given_back, value) for name, value in self._saved_state.items()})

    def take_saved(self, saved: Any) -> None:
        require_names(saved, self._saved_state)
        super().take_saved({name: _placed_as(self._saved_state[name], value) for name, value in saved.items()})

    def sync(self) -> None:
        """Take over rank 0's values, array by array."""
        if self._saved_state:
            self._set(broadcast_parameters({name: getattr(self, name) for name in self._saved_state}, 0, "state"))
            self.save()


class _Key:
    """A key of ``jax.random`` on the host: a leaf of the saved tree."""

    def __init__(self, key: Any) -> None:
        self.data, self.kind = np.array(jax.random.key_data(key)), jax.random.key_impl(key)


def _copied(tree: Any) -> Any:
    return jax.tree_util.tree_map(_on_host, tree)


def _on_host(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array):
        return _Key(leaf) if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key) else _Saved(leaf)
    return copy.deepcopy(leaf)


class _Saved:
    """An array of JAX on the host, and where it was; another process knows other devices."""

    def __init__(self, array: jax.Array) -> None:
        self.values, self.sharding = np.array(array), array.sharding

    def __getstate__(self) -> dict[str, Any]:
        return {"values": self.values, "sharding": None}


def _placed_as(own: Any, kept: Any) -> Any:
    """Let the arrays of a tree of an earlier process come to where this one has them, if it is made alike."""
    if jax.tree_util.tree_structure(own) == jax.tree_util.tree_structure(kept):
        for here, there in zip(jax.tree_util.tree_leaves(own), jax.tree_util.tree_leaves(kept), strict=True):
            if isinstance(here, _Saved) and isinstance(there, _Saved):
                there.sharding = here.sharding
    return kept


def _given_back(leaf: Any) -> Any:
    if isinstance(leaf, _Saved):
        return jax.device_put(leaf.values.copy(), leaf.sharding)
    if isinstance(leaf, _Key):
        return jax.random.wrap_key_data(jax.numpy.array(leaf.data), impl=leaf.kind)
    return copy.deepcopy(leaf)


def run(func: Callable[..., R]) -> Callable[..., R]:
    """Make a training function elastic.

    The function gets the state as its first argument. It is called again, with the state of the last commit, whenever
    a rank failed or hosts came or went; before that the process leaves the job and joins its next generation, and
    forgets compiled programs, which hold the number of ranks. A failure inside a program is recognised; other errors
    of JAX are raised as they are.

    Args:
        func: ``func(state, ...)``.

    Returns:
        A function with the same arguments and result.
    """
    return run_fn(failures_as_ours(func, JaxRuntimeError), _reset)


def _reset() -> None:
    shutdown()
    jax.clear_caches()
    init()
