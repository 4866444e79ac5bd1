"""Where a benchmark's tensors lie: on the CPU, or on GPUs of this host (``--device cuda``)."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

from ringtune.errors import UsageError

CPU, CUDA = "cpu", "cuda"
DEVICES = (CPU, CUDA)


def check_device(device: str) -> None:
    """Checks that this machine has such a device.

    Raises:
        UsageError: there is no GPU that torch can use; the message says why.
    """
    if device == CUDA and (why := cuda_absent()) is not None:
        raise UsageError(f"--device cuda needs a GPU, and {why}")


def cuda_absent() -> str | None:
    """Returns why torch has no GPU here, None when it has."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    import torch

    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees none (nvidia-smi, CUDA_VISIBLE_DEVICES)"
    return None


def nccl_absent(ranks: int) -> str | None:
    """Returns why torch's NCCL cannot take part, None when it can.

    Args:
        ranks: ranks on this host.
    """
    if (why := cuda_absent()) is not None:
        return why
    import torch
    import torch.distributed

    if not torch.distributed.is_nccl_available():
        return "this build of torch has no NCCL"
    gpus = torch.cuda.device_count()
    if ranks > gpus:
        shared = "one GPU" if gpus == 1 else f"{gpus} GPUs"
        return f"{ranks} ranks share {shared}, and NCCL refuses ranks that share a GPU ('Duplicate GPU detected')"
    return None


def take(device: str, local_rank: int) -> Any:
    """Returns torch's device for a rank; a GPU becomes the process's current one. More ranks than GPUs share them."""
    import torch

    if device == CPU:
        return torch.device(CPU)
    found = torch.device(CUDA, local_rank % torch.cuda.device_count())
    torch.cuda.set_device(found)
    return found


def settle_of(device: str) -> Callable[[], None] | None:
    """Returns what waits until the device has done everything that this process gave it; None for the CPU."""
    if device == CPU:
        return None
    import torch

    return torch.cuda.synchronize
