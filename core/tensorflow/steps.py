"""Ends of training steps, for statistics, timelines and the tuner: where the gradients of a step are reduced.

A `DistributedOptimizer` marks them; where a script reduces its gradients by a tape alone, the tape does. A traced
function marks one step a run, however many tapes or optimizers it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ringtune import session
from ringtune.tensorflow.library import ops
from ringtune.tensorflow.naming import numbered

_wrapped = False
"""Whether there is a `DistributedOptimizer`: its steps are the job's."""


def optimizer_is_wrapped() -> None:
    """Let only optimizers mark steps from here on."""
    global _wrapped
    _wrapped = True


def end_step_after(done: Any) -> Any:
    """End a step once an op has run, in eager mode at once.

    Args:
        done: Op or tensor that applies the gradients, or None.

    Returns:
        In a graph, an op that runs after it; in eager mode, ``done``.
    """
    if tf.executing_eagerly():
        if session.state.current is not None:
            session.state.current.end_step()
        return done
    if not numbered("step").endswith("/1"):
        return done
    with tf.control_dependencies([] if done is None else [done]):
        return ops().ringtune_end_step()


def end_step_of(reduced: Sequence[Any]) -> None:
    """End a step once these gradients are there."""
    flat = [one.values if isinstance(one, tf.IndexedSlices) else one for one in reduced if one is not None]
    end_step_after(tf.group(*flat) if flat and not tf.executing_eagerly() else None)


def end_step_of_tape(reduced: Sequence[Any]) -> None:
    """The same for the gradients of a tape, unless an optimizer marks steps."""
    if not _wrapped:
        end_step_of(reduced)
