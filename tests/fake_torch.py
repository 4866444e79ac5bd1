"""A stand-in for torch's CUDA on the fake driver, for a torch without CUDA: streams, events and tensors.

A tensor lies in the fake driver's memory, of which a program sees the address alone. An operation on it does what a
kernel put into the current stream does: it comes after everything that this stream holds, and after nothing else. The
driver does only what somebody waits for, so whoever forgot to make the current stream wait finds what was there before.
What is below torch's Python (autograd, DDP's reducer, futures) does not know of the stand-in.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from tests.fake_cuda import Gpu

DEVICE = torch.device("cuda", 0)
_PLAIN = torch._C.DisableTorchFunctionSubclass


class Stream:
    """`torch.cuda.Stream`."""

    def __init__(self, device: Any = None, handle: int = 0) -> None:
        self.cuda_stream = handle or cuda.gpu.stream()

    def wait_event(self, event: Event) -> None:
        """What comes from now on waits for the event."""
        cuda.call("cuStreamWaitEvent", ctypes.c_void_p(self.cuda_stream), event.handle, 0)

    def fill(self, tensor: torch.Tensor, value: float) -> None:
        """Put a kernel into the stream that writes one value everywhere; contiguous float32 only."""
        bits = int(torch.tensor([value], dtype=torch.float32).view(torch.int32))
        count = ctypes.c_size_t(tensor.numel())
        address = ctypes.c_uint64(tensor.data_ptr())
        stream = ctypes.c_void_p(self.cuda_stream)
        cuda.call("cuMemsetD32Async", address, ctypes.c_uint(bits & 0xFFFFFFFF), count, stream)


class Event:
    """`torch.cuda.Event`."""

    def __init__(self) -> None:
        self.handle = ctypes.c_void_p()
        cuda.call("cuEventCreate", ctypes.byref(self.handle), 2)

    def record(self, stream: Stream | None = None) -> None:
        """It stands for what the stream holds now."""
        stream = stream or cuda.current_stream()
        cuda.call("cuEventRecord", self.handle, ctypes.c_void_p(stream.cuda_stream))

    def query(self) -> bool:
        """Return whether that is done."""
        cuda.enter()
        return bool(cuda.gpu.driver.cuEventQuery(self.handle) == 0)


class Cuda:
    """What stands in for `torch.cuda`."""

    def __init__(self) -> None:
        self.gpu: Any = None
        self._thread = threading.local()
        self._default: Any = None
        self.recorded: list[tuple[int, int]] = []
        """(address, stream) of every `record_stream`."""

    def install(self) -> None:
        """Put the stand-ins into torch, for good: the process is a test's rank."""
        self.gpu = Gpu()
        self._thread.entered = True
        self._default = Stream()
        made: Any = torch.cuda
        made.current_stream = lambda device=None: self.current_stream()
        made.default_stream = lambda device=None: self._default
        made.stream, made.Stream, made.Event = self.stream, Stream, Event
        made.get_device_capability = lambda device=None: (8, 0)
        c10d: Any = dist.distributed_c10d
        c10d.has_torch_function = lambda arguments: False  # its functions are no kernels
        plain = torch.empty

        def empty(*arguments: Any, device: Any = None, **options: Any) -> torch.Tensor:
            on_gpu = device is not None and torch.device(device).type == "cuda"
            tensor: torch.Tensor = plain(*arguments, **options, **({} if on_gpu else {"device": device}))
            return to_gpu(tensor) if on_gpu else tensor

        torch.empty = empty  # type: ignore[assignment]

    def enter(self) -> None:
        """Make the device's context this thread's."""
        if not getattr(self._thread, "entered", False):
            context = ctypes.c_void_p()
            self.gpu.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
            self.gpu.call("cuCtxPushCurrent_v2", context)
            self._thread.entered = True

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver that must succeed."""
        self.enter()
        self.gpu.call(name, *arguments)

    def current_stream(self) -> Stream:
        """Return the stream of this thread."""
        found: Stream = getattr(self._thread, "stream", self._default)
        return found

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        """`torch.cuda.stream`."""
        before = self.current_stream()
        self._thread.stream = stream
        try:
            yield
        finally:
            self._thread.stream = before

    def wait_here(self) -> None:
        """Do what the current stream holds: the next operation comes after that."""
        self.call("cuStreamSynchronize", ctypes.c_void_p(self.current_stream().cuda_stream))

    def allocate(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of a CPU tensor in the driver's memory; a plain tensor as yet."""
        self.enter()
        count = max(1, tensor.numel() * tensor.element_size())
        address = ctypes.c_uint64()
        self.gpu.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(count))
        behind = self.gpu.driver.fake_cuda_behind
        behind.restype, behind.argtypes = ctypes.c_void_p, [ctypes.c_uint64]
        real = behind(address)
        self.shift = address.value - real
        self.low, self.high = min(getattr(self, "low", real), real), max(getattr(self, "high", 0), real + count)
        memory = (ctypes.c_char * count).from_address(real)
        made = torch.frombuffer(memory, dtype=torch.uint8)[: tensor.numel() * tensor.element_size()]
        return made.view(tensor.dtype).view(tensor.shape).copy_(tensor)

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether a plain tensor lies in the driver's memory."""
        return bool(getattr(self, "low", 1) <= tensor.untyped_storage().data_ptr() < getattr(self, "high", 0))


cuda = Cuda()


class OnGpu(torch.Tensor):
    """A tensor that says of itself what one on a GPU says."""

    is_cpu = False
    is_cuda = True
    device = DEVICE

    def data_ptr(self) -> int:
        """Return the address in the GPU's memory."""
        with _PLAIN():
            return int(torch.Tensor.data_ptr(self)) + cuda.shift

    def record_stream(self, stream: Stream) -> None:
        """Note the call."""
        cuda.recorded.append((self.data_ptr(), stream.cuda_stream))

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with _PLAIN():
            if getattr(func, "__name__", "") not in _ASKS:
                cuda.wait_here()
            options = dict(kwargs or {})
            if "device" in options and options["device"] is not None:
                options.pop("device")
            return _wrapped(func(*args, **options))


_ASKS = {
    *("size", "dim", "numel", "stride", "is_contiguous", "is_complex", "is_floating_point", "element_size", "__get__"),
    *("new_empty", "view", "detach", "chunk", "split", "untyped_storage", "view_as_real", "__len__", "empty_like"),
}
"""What no kernel is needed for."""


def _wrapped(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        held = result if cuda.holds(result) else cuda.allocate(result)
        return held if isinstance(held, OnGpu) else held.as_subclass(OnGpu)
    if isinstance(result, list | tuple) and type(result) in (list, tuple):
        return type(result)(_wrapped(one) for one in result)
    return result


def to_gpu(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a CPU tensor on the stand-in's GPU."""
    with _PLAIN():
        return cuda.allocate(tensor).as_subclass(OnGpu)


def to_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy on the CPU: what the program finds that asks in its current stream."""
    with _PLAIN():
        cuda.wait_here()
        return tensor.as_subclass(torch.Tensor).clone()
