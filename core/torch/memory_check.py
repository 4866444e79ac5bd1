"""Tensors whose memory does not hold their values: some are resolved, the rest is refused with a message.

The runtime reads and writes plain memory at an address. The memory of a lazily negated or conjugated view holds other
numbers than the view means, that of a sparse, quantised or nested tensor is laid out otherwise, that of a wrapper
(``__torch_dispatch__``, FakeTensor, ``torch.func``) lies elsewhere, and a storage may have been shrunk under a tensor.
"""

from __future__ import annotations

from typing import Any

import torch

from ringtune.common.argument_checks import overlaps, refuse
from ringtune.errors import InvalidArgument

_DISABLED = torch.Tensor.__torch_dispatch__


def check_tensor(tensor: Any, what: str) -> torch.Tensor:
    """Return the argument, a strided tensor whose values can be read: from its memory, or from that of `contents`.

    Args:
        tensor: Any value.
        what: What it is, for messages: function and argument, such as ``"allreduce: tensor"``.

    Raises:
        InvalidArgument: It is no tensor, or one without memory that holds its values.
    """
    if not isinstance(tensor, torch.Tensor):
        refuse(what, tensor, f"a torch.Tensor{_advice(tensor)}")
    reason = _refusal(tensor)
    if reason is not None:
        raise InvalidArgument(f"{what} {reason}")
    found: torch.Tensor = tensor
    return found


def check_target(tensor: Any, what: str) -> torch.Tensor:
    """Return the argument, a tensor as `check_tensor` takes it that a result can be written into.

    Raises:
        InvalidArgument: See `check_tensor`; or several of its elements share memory, or it cannot be written to.
    """
    check_tensor(tensor, what)
    if not tensor.is_contiguous() and overlaps(tensor.shape, tensor.stride()):
        raise InvalidArgument(
            f"{what} is a view of shape {list(tensor.shape)} and strides {list(tensor.stride())}, elements of which "
            "share memory: each would be written more than once; write into tensor.clone()"
        )
    if tensor._is_zerotensor():
        raise InvalidArgument(f"{what} is one of autograd's zero tensors, which have no memory: use tensor.clone()")
    result: torch.Tensor = tensor
    return result


def contents(tensor: torch.Tensor) -> torch.Tensor:
    """Return contiguous memory that holds the values of a checked tensor: the tensor itself where its own does."""
    if is_own(tensor):
        return tensor
    if tensor._is_zerotensor():
        return torch.zeros_like(tensor, memory_format=torch.contiguous_format)
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def is_own(tensor: torch.Tensor) -> bool:
    """Return whether the memory of a checked tensor holds its values, one after the other."""
    return tensor.is_contiguous() and not (tensor.is_neg() or tensor.is_conj() or tensor._is_zerotensor())


def is_traced(tensor: torch.Tensor) -> bool:
    """Return whether a tensor stands for others: a wrapper's subclass, or that of a transform."""
    own = type(tensor).__torch_dispatch__ is _DISABLED
    return not own or torch._C._functorch.is_functorch_wrapped_tensor(tensor) or torch._is_functional_tensor(tensor)


def _refusal(tensor: torch.Tensor) -> str | None:
    """Return why a tensor's values cannot be read from memory, None where they can."""
    kind = type(tensor)
    if tensor.is_nested:
        return "is a nested tensor: reduce its values (tensor.values()), or tensor.to_padded_tensor(0)"
    if kind.__torch_dispatch__ is not _DISABLED:
        return f"is a {_name_of(kind)}, whose values do not lie in memory of its own: {_way_out(tensor)}"
    if tensor.layout is not torch.strided:
        return f"is of layout {tensor.layout}: use tensor.to_dense(), or sparse_allreduce_async for a COO tensor"
    if tensor.is_quantized:
        return f"is quantised ({tensor.dtype}): use tensor.dequantize(), or tensor.int_repr()"
    if tensor.is_meta:
        return f"of shape {list(tensor.shape)} is on meta: only tensors on the CPU and on CUDA devices are reduced"
    if not torch._C._has_storage(tensor) or torch._is_functional_tensor(tensor):
        return "is traced by a torch.func transform (grad, vmap, functionalize ...): call this outside of the transform"
    if not tensor._is_zerotensor() and _needs_bytes(tensor) > tensor.untyped_storage().nbytes():
        return (
            f"of shape {list(tensor.shape)} needs {_needs_bytes(tensor)} bytes, but its storage has been resized to "
            f"{tensor.untyped_storage().nbytes()}: give the storage its size back first"
        )
    return None


def _needs_bytes(tensor: torch.Tensor) -> int:
    """Return how large a storage must be that holds the tensor."""
    if tensor.numel() == 0:
        return 0
    if tensor.is_contiguous():
        last = tensor.numel() - 1
    else:
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.storage_offset() + last + 1) * tensor.element_size()


def _way_out(tensor: torch.Tensor) -> str:
    if hasattr(tensor, "to_local"):
        return "reduce its part (tensor.to_local())"
    return "pass a plain tensor that it is made of"


def _name_of(kind: type) -> str:
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _advice(value: Any) -> str:
    if hasattr(value, "__array_interface__"):
        return " (torch.from_numpy makes one of it, ringtune.numpy takes arrays as they are)"
    if isinstance(value, (bool, int, float, list, tuple)):
        return " (torch.tensor makes one of it)"
    return ""
