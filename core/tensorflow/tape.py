"""`DistributedGradientTape`: a tape whose gradients are reduced over the ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ringtune.common.process_sets import ProcessSet, global_process_set
from ringtune.common.reductions import Average
from ringtune.errors import InvalidArgument
from ringtune.tensorflow.checked_calls import not_converted
from ringtune.tensorflow.compression import Compression
from ringtune.tensorflow.gradients import GradientOptions, groups_of, key_of, reduce_gradients
from ringtune.tensorflow.steps import end_step_of_tape


class _Reducing:
    """Stands before a class of tapes; shares all of the given tape's attributes."""

    _ringtune: GradientOptions

    @not_converted
    def register_local_source(self, source: Any) -> None:
        """Keep the gradient of a source this rank's own."""
        self._ringtune.local.add(key_of(source))

    @not_converted
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
        use_generic_names: bool = False,
    ) -> Any:
        """Return the gradients as the tape does, reduced.

        Args:
            target: What is derived.
            sources: Variables, in any structure.
            output_gradients: See ``tf.GradientTape.gradient``.
            unconnected_gradients: Likewise.
            use_generic_names: Name the ops by position only.
        """
        grads = super().gradient(target, sources, output_gradients, unconnected_gradients)  # type: ignore[misc]
        flat = [one for one in tf.nest.flatten(grads, expand_composites=False)]
        reduced = reduce_gradients(flat, tf.nest.flatten(sources), self._ringtune, generic_names=use_generic_names)
        end_step_of_tape(reduced)
        return tf.nest.pack_sequence_as(grads, reduced)

    @not_converted
    def get_local_and_global_gradients(
        self, target: Any, sources: Any, output_gradients: Any = None, use_generic_names: bool = False
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """Return the pairs of source and gradient: those that stay this rank's own, and the reduced ones."""
        sources = tf.nest.flatten(sources)
        grads = self.gradient(target, sources, output_gradients, use_generic_names=use_generic_names)
        pairs = list(zip(sources, grads, strict=True))
        local = [key_of(source) in self._ringtune.local for source in sources]
        return (
            [pair for pair, own in zip(pairs, local, strict=True) if own],
            [pair for pair, own in zip(pairs, local, strict=True) if not own],
        )


@not_converted
def DistributedGradientTape(  # noqa: N802 - Horovod's name
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Return a tape like the given one whose gradients are reduced over the ranks.

    Args:
        gradtape: Tape, as a rule after its ``with`` block.
        device_dense: Device of the ops, by ``tf.device``.
        device_sparse: The same for slices.
        compression: How floating gradients travel.
        sparse_as_dense: Make ``tf.IndexedSlices`` dense before they travel.
        op: The reduction.
        gradient_predivide_factor: An average divides by it before the reduction, and by the rest after it.
        num_groups: Deprecated; use ``groups``.
        groups: Number of groups of gradients that run together, or lists of the variables of each.
        process_set: The ranks that take part; elsewhere gradients stay as they are.
        scale_local_gradients: Divide gradients of registered local sources by the number of ranks.

    Raises:
        InvalidArgument: An argument is invalid.
    """
    if not isinstance(gradtape, tf.GradientTape):
        raise InvalidArgument(
            f"DistributedGradientTape: gradtape is a {type(gradtape).__name__}, expected a tf.GradientTape"
        )
    options = GradientOptions(
        op,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        groups_of(num_groups, groups),
        process_set,
        scale_local_gradients,
        device_dense,
        device_sparse,
    )
    kind = type(type(gradtape).__name__, (_Reducing, type(gradtape)), {})
    tape: Any = object.__new__(kind)
    tape.__dict__ = gradtape.__dict__  # the same tape, also where it is wrapped while it records
    tape._ringtune = options
    return tape


@not_converted
def PartialDistributedGradientTape(  # noqa: N802 - Horovod's name
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Return a tape as `DistributedGradientTape`, in which the gradients of some layers stay this rank's own.

    Args:
        gradtape: Tape, as a rule after its ``with`` block.
        device_dense: See `DistributedGradientTape`, as for all but the next to last.
        device_sparse: Likewise.
        compression: Likewise.
        sparse_as_dense: Likewise.
        op: Likewise.
        gradient_predivide_factor: Likewise.
        num_groups: Likewise.
        groups: Likewise.
        process_set: Likewise.
        local_layers: A Keras layer, or a list of them.
        scale_local_gradients: See `DistributedGradientTape`.

    Raises:
        InvalidArgument: They are no layers.
    """
    tape = DistributedGradientTape(
        gradtape, device_dense, device_sparse, compression, sparse_as_dense, op, gradient_predivide_factor,
        num_groups, groups, process_set, scale_local_gradients,
    )  # fmt: skip
    for variable in variables_of_layers(local_layers, "PartialDistributedGradientTape"):
        tape.register_local_source(variable)
    return tape


def variables_of_layers(layers: Any, what: str) -> list[Any]:
    """Return the trainable variables of a layer or a list of layers.

    Raises:
        InvalidArgument: They are no layers.
    """
    given = [] if layers is None else layers if isinstance(layers, (list, tuple)) else [layers]
    if not all(isinstance(one, tf.keras.layers.Layer) for one in given):
        raise InvalidArgument(f"{what}: All local layers must be of tf.keras.layers.Layer type.")
    return [variable for layer in given for variable in layer.trainable_weights]
