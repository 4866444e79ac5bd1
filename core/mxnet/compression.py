"""Compression of what is reduced: floating arrays travel as a shorter dtype, to which the runtime casts on the way."""

from __future__ import annotations

from typing import Any

import numpy as np

from ringtune.common.argument_checks import refuse
from ringtune.common.dtypes import NUMBERS


class Compressor:
    """Turns an array into what travels and back; scripts may derive their own.

    Attributes:
        wire: Number of the dtype that the runtime casts to while it copies, -1: none; None: `compress` does it.
    """

    wire: int | None = None

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the array that travels, and what `decompress` needs to know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return an array of the original dtype."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends arrays as they are."""

    wire = -1

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the array itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the array itself."""
        return tensor


class FP16Compressor(Compressor):
    """Sends floating arrays as float16."""

    wire = NUMBERS["float16"]

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the array as float16, and its dtype."""
        floats = np.dtype(tensor.dtype).kind == "f"
        return (tensor.astype("float16", copy=False) if floats else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return an array of the original dtype."""
        return tensor.astype(ctx, copy=False)


class BF16Compressor(NoneCompressor):
    """Sends floating arrays as bfloat16, which keeps float32's range; the runtime casts, for MXNet cannot."""

    wire = NUMBERS["bfloat16"]


class Compression:
    """The choices for ``compression=``."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


def check_compression(value: Any, what: str) -> None:
    """Refuse what is no compressor."""
    if not callable(getattr(value, "compress", None)) or not callable(getattr(value, "decompress", None)):
        refuse(what, value, "hvd.Compression.none, .fp16, .bf16, or a class with compress and decompress")
