"""The kernels of the runtime: compiled, or read from the disk, when it asks for them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from ringtune.config import Config


def kernels(config: Config) -> Callable[[int], bytes] | None:
    """Return what gives the kernels for GPUs of a compute capability (90 for 9.0), and raises DeviceError.

    Nothing is imported or compiled before it is called: when ranks that share a GPU, or have no NCCL, agree to reduce
    from GPU to GPU, or a batch of several tensors is to go by NCCL.

    Returns:
        None where the runtime does without: with a driver that is not NVIDIA's, unless the ring is asked for.
    """
    if config.gpu_data_path == "staged" or (config.cuda_driver and config.gpu_data_path != "ring"):
        return None
    return _cubin_for


def _cubin_for(capability: int) -> bytes:
    cubin: bytes = import_module("ringtune.gpu.kernels").cubin_for(capability)
    return cubin
