"""Data-parallel training as a transformation of gradients, for optax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ringtune.common.process_sets import ProcessSet, global_process_set
from ringtune.common.reductions import Average
from ringtune.jax.collectives import reduce_gradients
from ringtune.jax.compression import Compression


class _Transformation(NamedTuple):
    """What optax takes for its own ``GradientTransformation``, where that is not installed."""

    init: Callable[[Any], Any]
    update: Callable[..., tuple[Any, Any]]


def average_gradients(
    op: int = Average,
    name: str = "gradients",
    compression: Any = Compression.none,
    gradient_predivide_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return an optax transformation that averages gradients over the ranks; it stands first in a chain.

    ``optax.chain(hvd.average_gradients(), optax.adam(1e-3))``. All gradients of a step are one call, and it ends the
    step for statistics, timelines and the tuner.

    Args:
        op: ``Average``, ``Sum`` or ``Adasum``.
        name: Before the names of the gradients, by which ranks match them; two transformations in one program need two.
        compression: ``Compression.none``, ``.fp16`` or ``.bf16``.
        gradient_predivide_factor: Averages divide by it before the sum, and by the rest after it.
        process_set: The ranks that take part.

    Returns:
        An ``optax.GradientTransformation`` without state.
    """

    def init(params: Any) -> tuple[()]:
        return ()

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        return reduce_gradients(updates, op, name, compression, gradient_predivide_factor, process_set), state

    try:
        from optax import GradientTransformation
    except ImportError:
        return _Transformation(init, update)
    return GradientTransformation(init, update)
