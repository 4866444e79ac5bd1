"""Compression of what is reduced: floating arrays travel as a shorter dtype."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from ringtune.common.argument_checks import refuse
from ringtune.common.compression import NoneCompressor
from ringtune.common.dtypes import NUMBERS


class _CastCompressor:
    """Casts floating arrays to a shorter dtype; others travel as they are.

    Attributes:
        wire: Number of the dtype, to which the runtime casts while it copies: no cast array is ever made.
    """

    name: str
    wire: int

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """Return the cast array and the original dtype."""
        floats = jnp.issubdtype(tensor.dtype, jnp.floating)
        return (tensor.astype(cls.name) if floats else tensor), tensor.dtype

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        """Return an array of the original dtype."""
        return tensor.astype(ctx)


class FP16Compressor(_CastCompressor):
    """Floating arrays travel as float16."""

    name, wire = "float16", NUMBERS["float16"]


class BF16Compressor(_CastCompressor):
    """Floating arrays travel as bfloat16."""

    name, wire = "bfloat16", NUMBERS["bfloat16"]


class Compression:
    """The compressors by Horovod's names."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


def check_compression(value: Any, what: str) -> None:
    """Refuse what is no compressor of this module: others would have to change inside the program."""
    if getattr(value, "wire", None) is None:
        refuse(what, value, "hvd.Compression.none, .fp16 or .bf16")
