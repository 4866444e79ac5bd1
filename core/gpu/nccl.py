"""Paths of NCCL: the native runtime opens it when it can serve a tensor on a GPU. Nothing is imported here."""

from __future__ import annotations

from ringtune.config import Config
from ringtune.gpu.packages import folders_of

_NAME = "libnccl.so.2"


def libraries(config: Config) -> list[str]:
    """Return the paths at which the runtime looks for NCCL, the best first.

    Returns:
        The one that ``RINGTUNE_NCCL_LIBRARY`` names, alone. Else an empty name, which stands for the one that the
        process has already (torch brings one) or that the system has, and those of the wheels ``nvidia-nccl-cu12`` and
        ``-cu13``. None where the driver is not NVIDIA's.
    """
    if config.nccl_library:
        return [config.nccl_library]
    return [] if config.cuda_driver else ["", *of_wheels()]


def of_wheels() -> list[str]:
    """Return the paths of the libraries that the wheels have installed; both install the package ``nvidia.nccl``."""
    candidates = [folder / "nccl" / "lib" / _NAME for folder in folders_of("nvidia")]
    return [str(path) for path in candidates if path.is_file()]
