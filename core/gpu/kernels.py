"""The kernels of ``cuda/`` as a cubin for a GPU's architecture: compiled once, then read from the disk.

The native runtime gets the cubin itself and loads it with the driver (`GpuKernels`): the handle of a function would tie
the runtime to the lifetime of the library that made it, bytes have no owner.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ringtune import native
from ringtune.errors import DeviceError
from ringtune.gpu import nvrtc

FOLDER = Path(__file__).parent / "cuda"
MAIN = "ringtune.cu"

_log = logging.getLogger("ringtune")
_DIGEST_BYTES = 32  # in front of a cubin on the disk: its SHA-256


def sources() -> dict[str, str]:
    """Return all sources by their names."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.cu*"))}


def cache_folder() -> Path:
    """Return where cubins are kept: ``$XDG_CACHE_HOME/ringtune/kernels``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ringtune" / "kernels"


def architecture_for(capability: int, supported: Sequence[int]) -> int:
    """Return the architecture whose code a GPU of this compute capability (90 for 9.0) runs.

    Raises:
        DeviceError: The compiler knows no architecture whose code that GPU takes: of its generation, and not newer.
    """
    fitting = [each for each in supported if each // 10 == capability // 10 and each <= capability]
    if not fitting:
        raise DeviceError(
            f"the compiler of kernels knows no architecture for a GPU of compute capability {capability / 10}, only "
            f"{', '.join(map(str, supported))}: install another NVRTC (pip install nvidia-cuda-nvrtc-cu12)"
        )
    return max(fitting)


def cubin_for(capability: int, compiler: nvrtc.Compiler | None = None) -> bytes:
    """Return the kernels for GPUs of this compute capability; processes may ask at the same time.

    Raises:
        DeviceError: There is no compiler, or none that knows such GPUs.
    """
    compiler = compiler or nvrtc.find()
    architecture = architecture_for(capability, compiler.architectures())
    texts = sources()
    recipe = repr((sorted(texts.items()), nvrtc.OPTIONS, architecture, compiler.version))
    path = cache_folder() / f"sm_{architecture}-{hashlib.sha256(recipe.encode()).hexdigest()[:32]}.cubin"
    kept = _read(path)
    if kept is None:
        kept = compiler.compile(texts, MAIN, architecture)
        _keep(path, kept)
    return kept


def load(device: int, driver: str = "") -> Any:
    """Return the kernels (`_native.GpuKernels`) on that GPU.

    Args:
        device: Its number among the visible ones.
        driver: Path of the driver's library; empty: the usual one.

    Raises:
        DeviceError: There is no driver, no such GPU, or no compiler.
    """
    with native.translated():
        capabilities = native.load().cuda_devices(driver)["capabilities"]
    if not 0 <= device < len(capabilities):
        raise DeviceError(f"there is no GPU {device}: {len(capabilities)} are visible; look at CUDA_VISIBLE_DEVICES")
    cubin = cubin_for(capabilities[device])
    with native.translated():
        return native.load().GpuKernels(cubin, device, driver)


def _read(path: Path) -> bytes | None:
    """Return the cubin in a file; None when there is none, or one that is damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, cubin = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    return cubin if hashlib.sha256(cubin).digest() == digest else None


def _keep(path: Path, cubin: bytes) -> None:
    """Write a file in one piece or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            try:
                file.write(hashlib.sha256(cubin).digest() + cubin)
                file.close()
                os.replace(file.name, path)
            except OSError:
                os.unlink(file.name)
                raise
    except OSError as error:
        _log.warning("kernels for GPUs cannot be kept in %s and are compiled at every start: %s", path.parent, error)
