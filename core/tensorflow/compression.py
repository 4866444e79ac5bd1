"""Compression of tensors before they travel: cast down, reduce, cast back.

An allreduce takes the dtype to travel as, and the runtime casts while it copies: no cast tensor is ever made.
`compress` and `decompress` do the same by hand.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ringtune.common.compression import Compressor, NoneCompressor
from ringtune.common.dtypes import NUMBERS
from ringtune.common.reductions import Adasum


class _CastCompressor(Compressor):
    """Casts floating tensors to a shorter dtype; others travel as they are."""

    dtype: tf.DType

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """Return the cast tensor and the original dtype."""
        return (tf.cast(tensor, cls.dtype) if tensor.dtype.is_floating else tensor), tensor.dtype

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        """Return the tensor in its original dtype."""
        return tensor if ctx is None else tf.cast(tensor, ctx)


class FP16Compressor(_CastCompressor):
    """Sends floating tensors as float16."""

    dtype = tf.float16


class BF16Compressor(_CastCompressor):
    """Sends floating tensors as bfloat16, which keeps float32's range."""

    dtype = tf.bfloat16


class Compression:
    """The choices for ``compression=``."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


def wire_number(compression: Any, op: int) -> int:
    """Return the number of the dtype that the runtime lets floating tensors travel as; -1: `compress` does it.

    Args:
        compression: A compressor.
        op: The reduction; Adasum computes in the dtype of its tensor.
    """
    casts = isinstance(compression, type) and issubclass(compression, _CastCompressor) and op != Adasum
    return NUMBERS[compression.dtype.name] if casts else -1
