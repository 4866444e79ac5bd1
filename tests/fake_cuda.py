"""The fake CUDA driver for tests in Python: built once, and arrays in its memory as a library with kernels has them."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "tests" / "native" / "fake_cuda"
KERNELS = ROOT / "core" / "gpu" / "cuda"


def build() -> Path:
    """Return the library, compiled if its sources are newer; processes may do so at the same time."""
    library = ROOT / "build" / "fake-cuda" / "libfake_cuda.so"
    sources = sorted(SOURCES.glob("*.cc"))
    newest = max(path.stat().st_mtime for folder in (SOURCES, KERNELS) for path in folder.iterdir())
    if library.exists() and library.stat().st_mtime > newest:
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    made = library.with_suffix(f".{os.getpid()}")
    compiler = os.environ.get("CXX", "c++")
    flags = ["-std=c++20", "-O1", "-shared", "-fPIC", "-pthread", "-ffp-contract=off", f"-I{KERNELS}"]
    subprocess.run([compiler, *flags, *sources, "-o", made], check=True, timeout=280)
    made.replace(library)
    return library


class Gpu:
    """The driver of this process, as a program with kernels uses it. Device 0, streams by `stream`."""

    def __init__(self) -> None:
        self.path = build()
        self.driver = ctypes.CDLL(str(self.path))
        self.call("cuInit", 0)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxPushCurrent_v2", context)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver that must succeed."""
        code = getattr(self.driver, name)(*arguments)
        assert code == 0, f"{name} failed with {code}"

    def calls(self, name: str) -> int:
        """How often the driver was asked for that so far."""
        return int(self.driver.fake_cuda_calls(name.encode()))

    def stream(self) -> int:
        """Return a new stream."""
        stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(stream), 1)
        assert stream.value is not None
        return stream.value

    def array(self, values: Any, stream: int) -> DeviceArray:
        """Return an array in device memory that belongs to a stream."""
        return DeviceArray(self, np.asarray(values), stream)


class Memory:
    """An array on a GPU of which nobody can make another: an address, a shape, a dtype and a stream."""

    def __init__(self, gpu: Gpu, values: np.ndarray[Any, Any], stream: int) -> None:
        self.gpu, self.stream, self.shape, self.dtype = gpu, stream, values.shape, values.dtype
        address = ctypes.c_uint64()
        gpu.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(values.nbytes + 4))
        self.address = address.value
        held = np.ascontiguousarray(values)
        gpu.call("cuMemcpyHtoD_v2", address, held.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(values.nbytes))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape, "typestr": self.dtype.str, "data": (self.address, False), "version": 3,
            "strides": None, "stream": self.stream,
        }  # fmt: skip

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def fill(self, value: float) -> None:
        """Put a kernel into the stream that writes one value everywhere; 32-bit dtypes only."""
        bits = int(np.array([value], self.dtype).view(np.uint32)[0])
        count = ctypes.c_size_t(int(np.prod(self.shape)))
        self.gpu.call("cuMemsetD32Async", ctypes.c_uint64(self.address), bits, count, ctypes.c_void_p(self.stream))

    def values(self) -> np.ndarray[Any, Any]:
        """Wait for the stream and return what is in memory then."""
        self.gpu.call("cuStreamSynchronize", ctypes.c_void_p(self.stream))
        values = np.empty(self.shape, self.dtype)
        memory = values.ctypes.data_as(ctypes.c_void_p)
        self.gpu.call("cuMemcpyDtoH_v2", memory, ctypes.c_uint64(self.address), ctypes.c_size_t(values.nbytes))
        return values


class DeviceArray(Memory):
    """What CuPy's arrays are to others: NumPy's functions make more of them."""

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> DeviceArray:
        assert function is np.empty_like and options["order"] == "C"
        # In the same stream, as a library does whose current stream that is.
        return DeviceArray(self.gpu, np.full(options["shape"], 77, self.dtype), self.stream)


class StandardArray(Memory):
    """An array of a library that keeps to the Python array API standard."""

    def __array_namespace__(self) -> StandardArray:
        return self

    def empty(self, shape: tuple[int, ...], dtype: Any) -> StandardArray:
        return StandardArray(self.gpu, np.full(shape, 77, dtype), self.stream)
