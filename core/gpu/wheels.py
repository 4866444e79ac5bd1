"""What of NVIDIA's libraries is installed, by metadata and names of files: nothing is imported or opened here."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

OLDEST_NCCL = (2, 18)
_NCCL_WHEELS = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")
_NVRTC_WHEELS = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")
_CUPY_WHEELS = ("cupy-cuda13x", "cupy-cuda12x", "cupy")
_FOLDERS = (
    *("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib"),
    *("/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib"),
)


@dataclass(frozen=True)
class Library:
    """A library that is installed.

    Attributes:
        version: As metadata or file name give it; empty where only opening it would tell.
        source: The package that brought it, or where it lies.
        cuda: Major version of CUDA that it is made for; 0: not known.
    """

    version: str
    source: str
    cuda: int = 0

    def __str__(self) -> str:
        return f"{self.version or 'unknown version'} ({self.source})"

    def older_than(self, version: tuple[int, ...]) -> bool:
        """Return whether it is known to be older."""
        found = tuple(int(part) for part in re.findall(r"\d+", self.version))
        return bool(found) and found < version


def find_nccl() -> Library | None:
    """Return the NCCL that a wheel brought, else the system's; None where there is none."""
    for wheel in _NCCL_WHEELS:
        try:
            found = metadata.distribution(wheel)
        except metadata.PackageNotFoundError:
            continue
        files = [file for file in found.files or () if file.name.startswith("libnccl.so")]
        where = f"{wheel}, {files[0].locate()}" if files else wheel
        return Library(found.version, where, int(wheel[-2:]))
    asked = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    for folder in (*filter(None, asked), *_FOLDERS):
        path = Path(folder, "libnccl.so.2")
        if path.exists():
            return Library(_file_version(path), str(path))
    return None


def find_nvrtc() -> Library | None:
    """Return the NVRTC that compiles kernels: a wheel's, a toolkit's, the system's; None where there is none."""
    for wheel in _NVRTC_WHEELS:
        try:
            version = metadata.version(wheel)
        except metadata.PackageNotFoundError:
            continue
        return Library(version, wheel, int(version.partition(".")[0]))
    toolkits = (os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH"))
    asked = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    for folder in (*(f"{one}/lib64" for one in toolkits if one), *filter(None, asked), *_FOLDERS):
        for path in sorted(Path(folder).glob("libnvrtc.so.*")):
            version = _file_version(path)
            major = version.partition(".")[0]
            return Library(version, str(path), int(major) if major.isdigit() else 0)
    return None


def find_cupy() -> Library | None:
    """Return the CuPy that is installed; None where there is none."""
    for wheel in _CUPY_WHEELS:
        try:
            version = metadata.version(wheel)
        except metadata.PackageNotFoundError:
            continue
        major = re.search(r"cuda(\d+)x", wheel)
        return Library(version, wheel, int(major[1]) if major else 0)
    return None


def _file_version(path: Path) -> str:
    """``2.27.3`` of ``libnccl.so.2.27.3``, which ``libnccl.so.2`` leads to."""
    version = path.resolve().name.partition(".so.")[2]
    return version if "." in version else ""


def extra_for(driver: str) -> str:
    """Return the extra of ringtune's for a driver of CUDA ``12.4``; both where it is not known."""
    major = driver.partition(".")[0]
    if not major.isdigit():
        return "pip install 'ringtune[gpu-cu12]' or 'ringtune[gpu-cu13]'"
    return f"pip install 'ringtune[gpu-cu{13 if int(major) >= 13 else 12}]'"


def unfit(found: Library, what: str, driver: str) -> str:
    """Return why a library does not fit the driver, and what to do; empty where it fits."""
    major = driver.partition(".")[0]
    if found.cuda and major.isdigit() and found.cuda > int(major):
        return f"this {what} needs a driver for CUDA {found.cuda}, and there is one for {driver}: {extra_for(driver)}"
    return ""
