"""GPUs of the machine by NVML, where NVIDIA's driver and the package nvidia-ml-py (``pynvml``) are installed."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class GpuSample:
    """One GPU at one moment.

    Attributes:
        index: Its number in the machine, from 0.
        use_percent: Share of the time during which a kernel ran, over NVML's last window (at most 1 s), 0 to 100.
        memory_used_bytes: Memory that is in use.
        memory_bytes: Memory that there is.
    """

    index: int
    use_percent: int
    memory_used_bytes: int
    memory_bytes: int


class Gpus:
    """All GPUs of the machine, whoever uses them. Made by `find`; one thread at a time.

    Args:
        nvml: The module ``pynvml``, initialised.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]

    @staticmethod
    def find() -> Gpus | None:
        """Return the GPUs, None where there is no NVML or no GPU."""
        try:
            nvml = import_module("pynvml")
        except ImportError:
            return None
        try:
            nvml.nvmlInit()
            found = Gpus(nvml)
        except nvml.NVMLError:  # no driver: the package alone is installed on many machines without a GPU
            return None
        return found if found._handles else None

    def sample(self) -> tuple[GpuSample, ...]:
        """Look at all GPUs; one that does not answer (it is being reset, or has fallen off the bus) is left out."""
        found = []
        for index, handle in enumerate(self._handles):
            try:
                memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
                use = self._nvml.nvmlDeviceGetUtilizationRates(handle)
            except self._nvml.NVMLError:
                continue
            found.append(GpuSample(index, int(use.gpu), int(memory.used), int(memory.total)))
        return tuple(found)
