"""Bringing ranks into the same state: parameters, also those that are not initialised yet, and any Python object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mxnet as mx
from mxnet.gluon.parameter import DeferredInitializationError, Parameter

from ringtune.common.process_sets import global_process_set, number_with_root
from ringtune.errors import InvalidArgument
from ringtune.mxnet.collectives import broadcast_
from ringtune.mxnet.gradients import check_prefix
from ringtune.mxnet.library import check_array
from ringtune.numpy import objects


def broadcast_parameters(params: Any, root_rank: int = 0, prefix: str | None = None) -> None:
    """Overwrite parameters with those of the root; returns at once, MXNet waits where they are read.

    A parameter whose initialisation is deferred, because its shape is not known yet, is broadcast when it is
    initialised: in the first forward pass of each rank.

    Args:
        params: Arrays or gluon parameters by name, such as ``net.collect_params()`` or what ``Module.get_params``
            returns; the same names on all ranks.
        root_rank: Rank whose values all ranks take.
        prefix: Before the names.

    Raises:
        InvalidArgument: ``params`` is no dictionary, or the root is no rank.
        NotSupported: A parameter is sparse or on a GPU.
    """
    if not isinstance(params, (Mapping, mx.gluon.ParameterDict)):
        raise InvalidArgument(f"invalid params of type: {type(params)}: expected a dict or a gluon ParameterDict")
    check_prefix(prefix, "broadcast_parameters: prefix")
    number_with_root(global_process_set, root_rank)
    for key, found in sorted(params.items(), key=lambda item: str(item[0])):
        name = f"{prefix or ''}{key}"
        if not isinstance(found, Parameter):
            check_array(found, f"broadcast_parameters: params[{key!r}]")
            broadcast_(found, root_rank, f"parameter.{name}")
            continue
        try:
            _broadcast(found, root_rank, name)
        except DeferredInitializationError:
            _broadcast_once_initialised(found, root_rank, name)


def _broadcast(parameter: Any, root_rank: int, name: str) -> None:
    first, *others = parameter.list_data()
    broadcast_(first, root_rank, f"parameter.{name}")
    for other in others:  # on further devices of this process
        first.copyto(other)


def _broadcast_once_initialised(parameter: Any, root_rank: int, name: str) -> None:
    initialise = parameter._init_impl

    def initialise_and_broadcast(*args: Any, **kwargs: Any) -> None:
        initialise(*args, **kwargs)
        _broadcast(parameter, root_rank, name)

    parameter._init_impl = initialise_and_broadcast


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """Return the root's object on all ranks.

    Args:
        obj: What is sent; ignored except on the root.
        root_rank: Rank that sends.
        name: By which ranks match the operation.

    Raises:
        RuntimeFailure: The operation failed.
    """
    return objects.broadcast_object(obj, root_rank, name)


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Return the objects of all ranks, in order of ranks; arguments as in `broadcast_object`."""
    return objects.allgather_object(obj, name)
