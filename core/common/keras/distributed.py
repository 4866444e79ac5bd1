"""`DistributedOptimizer` and `PartialDistributedOptimizer` of `ringtune.keras` and `ringtune.tensorflow.keras`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from ringtune.common.argument_checks import refuse
from ringtune.common.keras.optimizers import is_keras_3, wrap
from ringtune.common.keras.reducers import backend_of_keras, wrapping_for
from ringtune.common.process_sets import ProcessSet, global_process_set
from ringtune.common.reductions import Average, Sum
from ringtune.errors import InvalidArgument


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = None,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Return an optimizer like the given one, with its state, whose gradients are reduced over the ranks.

    Args:
        optimizer: Optimizer of Keras 3 or Keras 2. A ``LossScaleOptimizer`` is returned itself, with the optimizer
            within it wrapped.
        name: Accepted for Horovod's sake: the name stays the optimizer's.
        device_dense: TensorFlow: device of the ops, by ``tf.device``.
        device_sparse: TensorFlow: the same for slices.
        compression: How floating gradients travel; default: as they are.
        sparse_as_dense: TensorFlow: make ``tf.IndexedSlices`` (of embeddings) dense before they travel.
        gradient_predivide_factor: An average divides by it before the reduction, and by the rest after it.
        op: ``Average`` or ``Sum``.
        backward_passes_per_step: Backward passes whose gradients are summed up before they are applied.
        average_aggregated_gradients: Divide that sum by their number.
        num_groups: Deprecated; use ``groups``.
        groups: TensorFlow: number of groups of gradients that run together, or lists of the variables of each.
        process_set: The ranks that take part; elsewhere gradients stay as they are.
        scale_local_gradients: Divide gradients of registered local variables by the number of ranks.

    Raises:
        InvalidArgument: An argument is invalid, or the optimizer is wrapped already.
        NotSupported: ``keras.distribution`` spans several processes, and reduces gradients itself.
    """
    if not hasattr(optimizer, "apply_gradients"):
        refuse("DistributedOptimizer: optimizer", optimizer, "an optimizer of Keras, such as keras.optimizers.Adam()")
    if op not in (Average, Sum):
        raise InvalidArgument(f"op={op}: only Average and Sum are supported by DistributedOptimizer with Keras")
    if not isinstance(backward_passes_per_step, int) or backward_passes_per_step < 1:
        refuse("DistributedOptimizer: backward_passes_per_step", backward_passes_per_step, "a whole number from 1 on")
    if num_groups:
        warnings.warn("Parameter `num_groups` has been replaced by `groups`.", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    backend = backend_of_keras() if is_keras_3(optimizer) else "tensorflow"
    options: dict[str, Any] = {
        "op": op,
        "gradient_predivide_factor": gradient_predivide_factor,
        "process_set": process_set,
        "scale_local_gradients": scale_local_gradients,
    }
    if compression is not None:
        options["compression"] = compression
    if backend == "tensorflow":
        options |= {
            "sparse_as_dense": sparse_as_dense,
            "groups": groups or None,
            "device_dense": device_dense,
            "device_sparse": device_sparse,
        }
    passes = {"passes": backward_passes_per_step, "average_passes": average_aggregated_gradients}
    return wrap(optimizer, wrapping_for(backend, **options, **passes))


def partial_optimizer(layer_class: Callable[[], type]) -> Callable[..., Any]:
    """Return ``PartialDistributedOptimizer`` for the layers of one Keras."""

    def PartialDistributedOptimizer(  # noqa: N802 - Horovod's name
        optimizer: Any, *args: Any, local_layers: Any = None, **kwargs: Any
    ) -> Any:
        """Return an optimizer as `DistributedOptimizer`, in which the gradients of some layers stay this rank's own.

        Args:
            optimizer: Optimizer; the other arguments as there.
            *args: See there.
            local_layers: A built Keras layer, or a list of them.
            **kwargs: See there.

        Raises:
            InvalidArgument: They are no layers.
        """
        given = (
            [] if local_layers is None else local_layers if isinstance(local_layers, (list, tuple)) else [local_layers]
        )
        if not all(isinstance(one, layer_class()) for one in given):
            raise InvalidArgument(
                "PartialDistributedOptimizer: All local layers must be of tf.keras.layers.Layer type."
            )
        wrapped = DistributedOptimizer(optimizer, *args, **kwargs)
        target = getattr(wrapped, "inner_optimizer", wrapped) if is_keras_3(wrapped) else wrapped
        for layer in given:
            for variable in layer.trainable_weights:
                target.register_local_var(variable)
        return wrapped

    return PartialDistributedOptimizer
