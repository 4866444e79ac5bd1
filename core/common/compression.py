"""What the front ends' compressors share, whatever the framework's arrays are."""

from __future__ import annotations

from typing import Any

from ringtune.common.argument_checks import refuse


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


def check_compression(value: Any, what: str) -> None:
    """Refuse what is no compressor."""
    if not callable(getattr(value, "compress", None)) or not callable(getattr(value, "decompress", None)):
        refuse(what, value, "hvd.Compression.none, .fp16, .bf16, or a class with compress and decompress")
