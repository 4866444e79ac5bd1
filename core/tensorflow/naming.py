"""Names under which the ranks match an op: the same on all of them, however often a function was traced there.

A name is an attribute of its op, given when Python makes the op, and never that of a node: TensorFlow numbers nodes by
what the process has traced before, and ranks trace differently (a last batch that is smaller on one of them).
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import tensorflow as tf

from ringtune.common.process_sets import wire_name

_BRANCHES = ("CondBranchFuncGraph", "WhileBodyFuncGraph", "WhileCondFuncGraph")
"""Graphs that are traced whenever the function around them is, and have numbers of the process in their names."""
_COUNTS = "_ringtune_counts"
_NUMBER = re.compile(r"_\d+(?=[/:.]|$)")


def op_name(kind: str, name: str | None, process_set: int) -> str:
    """Return the name on the wire of an op that is made now.

    Args:
        kind: Of the collective, such as ``"allreduce"``.
        name: Given by the caller. Without one the op is numbered: in a traced function among those of its kind, as
            ``train_step/2``; in eager mode as calls of other front ends are.
        process_set: Number of the set.
    """
    if name is None and not tf.executing_eagerly():
        name = numbered(kind)
    return wire_name(kind, name, process_set)


def numbered(kind: str) -> str:
    """Return a name for the next of its kind in the function that is being traced; in eager mode always the same."""
    if tf.executing_eagerly():
        return "eager"
    graph = tf.compat.v1.get_default_graph()
    while type(graph).__name__ in _BRANCHES:
        graph = graph.outer_graph
    counts: Counter[str] | None = getattr(graph, _COUNTS, None)
    if counts is None:
        counts = Counter()
        setattr(graph, _COUNTS, counts)
    counts[kind] += 1
    return f"{without_numbers(getattr(graph, 'name', 'graph'))}/{counts[kind]}"


def name_of_variable(variable: Any) -> str:
    """Return what a variable is called in the names of ops, without the numbers that make names unique in a process."""
    path = getattr(variable, "path", None) or getattr(variable, "name", None) or "variable"
    return without_numbers(str(path).removesuffix(":0"))


def without_numbers(name: str) -> str:
    """Return a name without the numbers that Keras and TensorFlow append: ``dense_3/kernel`` is ``dense/kernel``."""
    return _NUMBER.sub("", name)
