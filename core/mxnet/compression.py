"""Compression of what is reduced: floating arrays travel as a shorter dtype, to which the runtime casts on the way."""

from __future__ import annotations

from typing import Any

import numpy as np

from ringtune.common.compression import Compressor, NoneCompressor
from ringtune.common.dtypes import NUMBERS


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
