"""What ranks that share the fake driver's GPU do by ringtune's own ring. Sums are exact."""

from __future__ import annotations

import os
import signal

import numpy as np

import ringtune.numpy as np_hvd
from ringtune.errors import RingtuneError
from ringtune.gpu import nvrtc
from tests.fake_cuda import Gpu

COPIES = ("cuMemcpyDtoHAsync_v2", "cuModuleLoadData")


def kept(folder: str) -> None:
    """Let the kernels be found on the disk instead of compiling them."""
    os.environ["XDG_CACHE_HOME"] = folder


def sums() -> list[int]:
    """Reduce and broadcast; return how often results came to the host, and kernels were loaded."""
    gpu, rank, size = Gpu(), np_hvd.rank(), np_hvd.size()
    stream = gpu.stream()
    ranks = sum(range(size))
    tensors = [gpu.array(np.zeros(count, np.float32), stream) for count in (1, 700, 33, 5000)]
    for step in range(8):  # from the third on by a plan
        for number, tensor in enumerate(tensors):
            tensor.fill(step + number + rank)
        handles = [np_hvd.allreduce_async_(t, op=np_hvd.Sum, name=f"t{i}") for i, t in enumerate(tensors)]
        for handle in handles:
            np_hvd.synchronize(handle)
        for number, tensor in enumerate(tensors):
            assert np.all(tensor.values() == size * (step + number) + ranks), (step, number)
    whole = gpu.array(np.full((2 * size, 3), rank, np.int32), stream)
    assert np.all(np_hvd.allreduce(whole, op=np_hvd.Max, name="max").values() == size - 1)
    own = np_hvd.reducescatter(whole, op=np_hvd.Sum, name="rows").values()
    assert own.shape == (2, 3) and np.all(own == ranks)
    assert np.all(np_hvd.broadcast(whole, 1, name="b").values() == 1)
    return [gpu.calls(name) for name in COPIES]


def loses_one() -> str:
    """Go on until a peer is gone; return what was said, when the own stream has come to its end."""
    gpu, rank = Gpu(), np_hvd.rank()
    stream = gpu.stream()
    tensor = gpu.array(np.zeros(100, np.float32), stream)
    np_hvd.allreduce_(tensor, name="first")
    assert np.all(tensor.values() == 0)
    try:
        for step in range(1000):
            if rank == 1 and step == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            np_hvd.allreduce_(tensor, name="t")
    except RingtuneError as error:
        tensor.values()  # no stream waits for ever
        return str(error)
    return "nobody was lost"


def without_compiler() -> None:
    """Reduce although nothing compiles kernels."""
    nvrtc._candidates = lambda: iter(())  # type: ignore[assignment]
    nvrtc.import_module = lambda name: __import__("no_such_module")  # type: ignore[assignment]
    os.environ["XDG_CACHE_HOME"] = os.path.join(os.getcwd(), "empty")
    gpu = Gpu()
    np_hvd.allreduce_(gpu.array(np.zeros(3, np.float32), gpu.stream()), name="t")
