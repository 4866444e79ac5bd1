"""The memory of races as torch's tensors."""

from __future__ import annotations

import torch

from ringtune.benchmarks.harness.race.patterns import Array


def dtype_of(name: str) -> torch.dtype:
    """Returns torch's dtype of that name."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def as_tensor(array: Array, dtype: str) -> torch.Tensor:
    """Returns the array as a tensor of `dtype`, sharing its memory; bfloat16 is held as its bits.

    NumPy's memory for all contenders: large arrays ask for huge pages, torch's own tensors do not.
    """
    return torch.from_numpy(array.view("int16") if dtype == "bfloat16" else array).view(dtype_of(dtype))
