"""Compression of gradients before they travel: cast down, reduce, cast back."""

from __future__ import annotations

import torch


class Compressor:
    """Turns a tensor into what travels and back."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype | None]:
        """Return the tensor that travels and what `decompress` needs to know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: torch.dtype | None) -> torch.Tensor:
        """Return a tensor of the original dtype."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype | None]:
        """Return the tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: torch.dtype | None) -> torch.Tensor:
        """Return the tensor itself."""
        return tensor


class _CastCompressor(Compressor):
    """Casts floating tensors to a shorter dtype; others travel as they are."""

    dtype: torch.dtype

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype | None]:
        """Return the cast tensor and the original dtype."""
        return (tensor.to(cls.dtype), tensor.dtype) if tensor.dtype.is_floating_point else (tensor, tensor.dtype)

    @classmethod
    def decompress(cls, tensor: torch.Tensor, ctx: torch.dtype | None) -> torch.Tensor:
        """Return the tensor in its original dtype."""
        return tensor if ctx is None else tensor.to(ctx)


class FP16Compressor(_CastCompressor):
    """Sends floating tensors as float16."""

    dtype = torch.float16


class BF16Compressor(_CastCompressor):
    """Sends floating tensors as bfloat16, which keeps float32's range."""

    dtype = torch.bfloat16


class Compression:
    """The compressors to choose from."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
