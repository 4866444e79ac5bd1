"""`ringtune check` on NVIDIA's libraries: found without being imported, judged beside the driver, with what to do."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ringtune import check
from ringtune.check import Finding, find_all
from ringtune.gpu import wheels

ROOT = Path(__file__).parents[2]

GPU = (Finding("CUDA driver", True, "for CUDA 12.4"), Finding("GPUs", True, "Some GPU"))
NONE = (Finding("CUDA driver", False, "no such library"), Finding("GPUs", False, "none"))


def installed(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    """Let the package index hold these packages alone, `_` for `-`."""
    named = {name.replace("_", "-"): version for name, version in versions.items()}

    def distribution(name: str) -> Any:
        if name not in named:
            raise metadata.PackageNotFoundError(name)
        file: Any = SimpleNamespace(name="libnccl.so.2", locate=lambda: Path("/site/nvidia/nccl/lib/libnccl.so.2"))
        return SimpleNamespace(version=named[name], files=[file] if "nccl" in name else [])

    fake = SimpleNamespace(
        distribution=distribution,
        version=lambda name: distribution(name).version,
        PackageNotFoundError=metadata.PackageNotFoundError,
    )
    monkeypatch.setattr(wheels, "metadata", fake)
    monkeypatch.setattr(wheels, "_FOLDERS", ())
    for name in ("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)


def findings(monkeypatch: pytest.MonkeyPatch, gpus: tuple[Finding, Finding]) -> dict[str, Finding]:
    monkeypatch.setattr(check, "_gpus", lambda: gpus)
    return {one.name: one for one in find_all()}


def test_what_is_there_is_told_with_version_and_place(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, nvidia_nccl_cu12="2.21.5", cupy_cuda12x="13.4.0", nvidia_cuda_nvrtc_cu12="12.9.86")
    found = findings(monkeypatch, GPU)
    assert found["NCCL"] == Finding("NCCL", True, "2.21.5 (nvidia-nccl-cu12, /site/nvidia/nccl/lib/libnccl.so.2)")
    assert found["CuPy"] == Finding("CuPy", True, "13.4.0 (cupy-cuda12x)")
    assert found["NVRTC"] == Finding("NVRTC", True, "12.9.86 (nvidia-cuda-nvrtc-cu12)")


def test_what_is_missing_beside_a_gpu_is_said_with_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    found = findings(monkeypatch, GPU)
    for name in ("NCCL", "NVRTC", "CuPy"):
        assert not found[name].available and found[name].detail == "pip install 'ringtune[gpu-cu12]'"
        assert found[name].warning.endswith(": pip install 'ringtune[gpu-cu12]'")


def test_a_machine_without_a_gpu_misses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    found = findings(monkeypatch, NONE)
    for name in ("NCCL", "NVRTC", "CuPy"):
        assert found[name] == Finding(name, False, "pip install 'ringtune[gpu-cu12]' or 'ringtune[gpu-cu13]'")


@pytest.mark.parametrize(
    ("packages", "name", "words"),
    [
        ({"nvidia_nccl_cu13": "2.28.3"}, "NCCL", "this NCCL needs a driver for CUDA 13, and there is one for 12.4"),
        ({"nvidia_cuda_nvrtc": "13.0.48"}, "NVRTC", "this NVRTC needs a driver for CUDA 13, and there is one for 12.4"),
        ({"cupy_cuda13x": "14.2.0"}, "CuPy", "this CuPy needs a driver for CUDA 13, and there is one for 12.4"),
        ({"nvidia_nccl_cu12": "2.17.1"}, "NCCL", "older than 2.18 and is not used"),
        ({"nvidia_nccl_cu12": "2.18.0"}, "NCCL", ""),
    ],
)
def test_what_does_not_fit_is_said(
    monkeypatch: pytest.MonkeyPatch, packages: dict[str, str], name: str, words: str
) -> None:
    installed(monkeypatch, **packages)
    warning = findings(monkeypatch, GPU)[name].warning
    assert (words in warning) if words else warning == ""


def test_a_library_of_the_system_is_found_by_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed(monkeypatch)
    (tmp_path / "libnccl.so.2.20.3").touch()
    (tmp_path / "libnccl.so.2").symlink_to("libnccl.so.2.20.3")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    found = wheels.find_nccl()
    assert found is not None and str(found) == f"2.20.3 ({tmp_path / 'libnccl.so.2'})"


def test_nothing_of_a_gpu_is_imported_where_there_is_none() -> None:
    code = (
        "import sys, ringtune, ringtune.check, ringtune.torch, ringtune.numpy, ringtune.torch.distributed;"
        "ringtune.check.find_all();"
        "print([name for name in sys.modules if name.split('.')[0] in ('cupy', 'nvidia', 'pynvml', 'cupyx')])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.stdout.strip() == "[]", done.stderr


def test_both_extras_bring_nccl_and_cupy() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for major in (12, 13):
        line = next(line for line in text.splitlines() if line.startswith(f"gpu-cu{major} ="))
        assert f'"nvidia-nccl-cu{major}>=' in line and f'"cupy-cuda{major}x>=' in line
