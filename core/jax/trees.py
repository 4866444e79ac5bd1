"""Leaves of trees: their names on the wire, and what may be one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import jax

from ringtune.common.dtypes import NUMBERS, check_reduced
from ringtune.common.process_sets import wire_name
from ringtune.errors import InvalidArgument

_LIBRARIES = ("ringtune", "jax", "optax", "flax", "chex", "haiku", "equinox", "functools", "contextlib")
"""Whose frames are not the place where a program asks for a collective."""


def is_traced(leaves: Sequence[Any]) -> bool:
    """Return whether these leaves belong to a program that is being traced, or whatever is done now does."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in leaves) or not _state_is_clean()


def _state_is_clean() -> bool:
    from jax._src.core import trace_state_clean

    return bool(trace_state_clean())


def flatten(tree: Any, what: str, *, reduces: bool) -> tuple[list[Any], list[str], Any]:
    """Return the leaves of a tree as arrays of JAX, where each is, and the tree's structure.

    Args:
        tree: An array, or a pytree of them.
        what: What has it, for messages.
        reduces: They are to be reduced, not only moved.

    Raises:
        InvalidArgument: A leaf is no array, or of a dtype that does not travel or cannot be reduced.
    """
    paths, structure = jax.tree_util.tree_flatten_with_path(tree)
    places = [".".join(_word(key) for key in path) for path, _ in paths]
    leaves = [
        _checked(leaf, f"{what}{f'[{place}]' if place else ''}", reduces)
        for place, (_, leaf) in zip(places, paths, strict=True)
    ]
    return leaves, places, structure


def _word(key: Any) -> str:
    """Return one step of a path in a tree as a word of a name."""
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute)).replace("\n", " ")
    return str(key).strip(".[]'\"").replace("\n", " ")


def _checked(leaf: Any, what: str, reduces: bool) -> Any:
    if not isinstance(leaf, jax.Array):  # tracers are among these
        if isinstance(leaf, (str, bytes)) or not (
            hasattr(leaf, "dtype") or isinstance(leaf, (bool, int, float, complex))
        ):
            raise InvalidArgument(f"{what} is a {type(leaf).__name__}, expected an array, or a pytree of arrays")
        try:
            leaf = jax.numpy.asarray(leaf)
        except TypeError as error:
            raise InvalidArgument(f"{what}: {error}") from None
    name = str(leaf.dtype)
    if name not in NUMBERS:
        raise InvalidArgument(f"{what}: dtype {name} is not supported; supported: {', '.join(NUMBERS)}")
    if reduces:
        check_reduced(name, what)
    return leaf


def wire_names(
    kind: str, name: str | None, process_set: int, places: Sequence[str], leaves: Sequence[Any]
) -> list[str]:
    """Return names by which the ranks match the leaves.

    A program that is traced has the same ones at each of its runs, and on all ranks, however often a rank traces it:
    without a name, the place in the script counts, and the shape. Outside of programs, calls without a name are
    counted.
    """
    traced = is_traced(leaves)
    base = _place_in_script() if name is None and traced else name
    whole = wire_name(kind, base, process_set)
    found: list[str] = []
    for place, leaf in zip(places, leaves, strict=True):
        own = f"{whole}.{place}" if place else whole
        if name is None and traced:
            own += f".{leaf.dtype}{list(leaf.shape)}".replace(" ", "")
        found.append(own if own not in found else f"{own}.{len(found)}")
    return found


def _place_in_script() -> str:
    frame: Any = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "").partition(".")[0]
        if module not in _LIBRARIES:
            return f"{PurePath(frame.f_code.co_filename).name}:{frame.f_lineno}"
        frame = frame.f_back
    return "program"
