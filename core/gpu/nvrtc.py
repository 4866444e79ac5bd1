"""NVIDIA's compiler of kernels (NVRTC), opened when needed: that of a wheel, of a CUDA toolkit, or CuPy's."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from ringtune.errors import DeviceError
from ringtune.gpu.packages import folders_of

OPTIONS = (
    "--std=c++17",
    "--device-as-default-execution-space",
    "--fmad=false",  # product and sum are rounded separately, as on the CPU
)
_WHEELS = (("nvidia.cu13", "lib"), ("nvidia.cuda_nvrtc", "lib"))  # of CUDA 13, of CUDA 11 and 12
_NAMES = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2")


class Compiler(Protocol):
    """A compiler of CUDA sources to cubins."""

    version: str

    def architectures(self) -> list[int]:
        """Return the compute capabilities it compiles for, 90 for 9.0."""

    def compile(self, sources: Mapping[str, str], main: str, architecture: int, *extra: str) -> bytes:
        """Return the cubin of the source `main`, which may include the others.

        Raises:
            DeviceError: It does not compile; the compiler's messages are in the text.
        """


def find() -> Compiler:
    """Return the compiler of this machine.

    Raises:
        DeviceError: There is none.
    """
    tried = []
    for path in _candidates():
        try:
            return Nvrtc(path)
        except (OSError, AttributeError) as error:
            tried.append(f"{path}: {error}")
    try:
        return CupyNvrtc()
    except ImportError as error:
        tried.append(f"cupy: {error}")
    raise DeviceError(
        "kernels for GPUs need NVIDIA's runtime compiler, of a wheel (pip install nvidia-cuda-nvrtc-cu12), of a CUDA "
        f"toolkit (CUDA_HOME) or of CuPy; tried {'; '.join(tried)}"
    )


def _candidates() -> Iterator[str]:
    for package, folder in _WHEELS:
        for root in folders_of(package):
            # libnvrtc.alt.so is another build of the same compiler.
            yield from sorted(str(path) for path in (root / folder).glob("libnvrtc.so.*"))
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if toolkit := os.environ.get(variable):
            yield from sorted(str(path) for path in Path(toolkit).glob("lib64/libnvrtc.so.*"))
    yield from _NAMES


class Nvrtc:
    """The library at a path, or of a name that the loader knows.

    Raises:
        OSError: It cannot be opened.
        AttributeError: It is no NVRTC of CUDA 11.2 or newer.
    """

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        _ = self._library.nvrtcGetCUBIN  # of 11.1; the architectures are of 11.2
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = f"{major.value}.{minor.value}"

    def architectures(self) -> list[int]:
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        found = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", found)
        return sorted(found)

    def compile(self, sources: Mapping[str, str], main: str, architecture: int, *extra: str) -> bytes:
        headers = {name: text for name, text in sources.items() if name != main}
        program = ctypes.c_void_p()
        self._call(
            "nvrtcCreateProgram", ctypes.byref(program), sources[main].encode(), main.encode(), len(headers),
            _texts(headers.values()), _texts(headers),
        )  # fmt: skip
        try:
            options = (f"--gpu-architecture=sm_{architecture}", *OPTIONS, *extra)
            code = self._library.nvrtcCompileProgram(program, len(options), _texts(options))
            self.log = self._output(program, "nvrtcGetProgramLog").rstrip(b"\0").decode(errors="replace")
            if code != 0:
                raise DeviceError(
                    f"{main} does not compile for sm_{architecture} with NVRTC {self.version}:\n{self.log}"
                )
            return self._output(program, "nvrtcGetCUBIN")
        finally:
            self._call("nvrtcDestroyProgram", ctypes.byref(program))

    def _output(self, program: ctypes.c_void_p, name: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"{name}Size", program, ctypes.byref(size))
        output = ctypes.create_string_buffer(size.value)
        self._call(name, program, output)
        return output.raw

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code != 0:
            raise DeviceError(f"{name} failed: {self._library.nvrtcGetErrorString(code).decode()}")


class CupyNvrtc:
    """The one that CuPy has found.

    Raises:
        ImportError: There is no CuPy that works.
    """

    def __init__(self) -> None:
        self._nvrtc: Any = import_module("cupy.cuda").nvrtc
        self.version = ".".join(map(str, self._nvrtc.getVersion()))

    def architectures(self) -> list[int]:
        return sorted(self._nvrtc.getSupportedArchs())

    def compile(self, sources: Mapping[str, str], main: str, architecture: int, *extra: str) -> bytes:
        headers = {name: text for name, text in sources.items() if name != main}
        texts, names = ([text.encode() for text in part] for part in (headers.values(), headers))
        program = self._nvrtc.createProgram(sources[main], main, texts, names)
        try:
            options = (f"--gpu-architecture=sm_{architecture}", *OPTIONS, *extra)
            try:
                self._nvrtc.compileProgram(program, options)
            except self._nvrtc.NVRTCError as error:
                log = self._nvrtc.getProgramLog(program)
                raise DeviceError(f"{main} does not compile for sm_{architecture} with CuPy's NVRTC:\n{log}") from error
            return bytes(self._nvrtc.getCUBIN(program))
        finally:
            self._nvrtc.destroyProgram(program)


def _texts(texts: Any) -> Any:
    values = [text.encode() for text in texts]
    return (ctypes.c_char_p * len(values))(*values)
