"""What ranks do with arrays and tensors in the memory of the fake driver's GPU. Sums are exact."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

import ringtune.numpy as np_hvd
import ringtune.torch as hvd
from ringtune.errors import InvalidArgument, Mismatch
from tests.fake_cuda import Gpu, Memory, StandardArray


def arrays() -> None:
    """Every collective on arrays of a library that computes in a stream of its own."""
    gpu, rank, size = Gpu(), np_hvd.rank(), np_hvd.size()
    stream = gpu.stream()
    for step in range(4):  # from the third on by a plan
        values = gpu.array(np.full((3, 5), -1.0, np.float32), stream)
        values.fill(rank + step)
        assert np_hvd.allreduce_(values, op=np_hvd.Sum, name="in place") is values
        assert np.all(values.values() == sum(range(size)) + size * step)
        fresh = np_hvd.allreduce(values, op=np_hvd.Average, name="fresh")
        assert fresh is not values and np.array_equal(fresh.values(), values.values())
    both = [gpu.array(np.full(4, rank + i, np.int32), stream) for i in range(2)]
    np_hvd.grouped_allreduce_(both, op=np_hvd.Max, name="group")
    assert [int(one.values()[0]) for one in both] == [size - 1, size]
    root = gpu.array(np.full(3, rank, np.int64), stream)
    assert np.all(np_hvd.broadcast(root, 1, name="b").values() == 1) and np.all(root.values() == rank)
    rows = gpu.array(np.full((rank + 1, 2), rank, np.int32), stream)
    joined = np_hvd.allgather(rows, name="g").values()
    assert joined.tolist() == [[r, r] for r in range(size) for _ in range(r + 1)]
    sent = gpu.array(np.arange(4, dtype=np.float64) + 10 * rank, stream)
    got, counts = np_hvd.alltoall(sent, splits=[3, 1], name="a")
    assert counts.tolist() == [3, 3] if rank == 0 else [1, 1]
    assert got.values().tolist() == ([0, 1, 2, 10, 11, 12] if rank == 0 else [3, 13])
    own = np_hvd.reducescatter(sent, op=np_hvd.Sum, name="r").values()
    assert own.tolist() == ([10, 12] if rank == 0 else [14, 16])
    standard = np_hvd.allreduce(StandardArray(gpu, np.ones(3, np.float32), stream), op=np_hvd.Sum, name="standard")
    assert isinstance(standard, StandardArray) and np.all(standard.values() == size)
    assert gpu.calls("cuCtxSynchronize") == 0


def refused() -> list[str]:
    """What is said to a program that asks for what cannot be, or unlike the others."""
    gpu, rank = Gpu(), np_hvd.rank()
    stream, said = gpu.stream(), []
    array: Any = gpu.array(np.ones(3, np.float32), stream) if rank == 0 else np.ones(3, np.float32)
    for act in (
        lambda: np_hvd.allreduce_(array, name="here and there"),
        lambda: np_hvd.allreduce_(SimpleNamespace(__dlpack_device__=lambda: (2, 0)), name="dlpack"),
        lambda: np_hvd.allreduce(Memory(gpu, np.ones(3, np.float32), stream), name="no other"),
    ):
        try:
            act()
        except (Mismatch, InvalidArgument) as error:
            said.append(str(error))
    return said


def refused_driver() -> None:
    """Reduces an array although there is no driver."""
    np_hvd.allreduce_(Gpu().array(np.ones(3, np.float32), 0), name="t")


class OnGpu(torch.Tensor):
    """A tensor that says of itself what one on a GPU says: this torch has none."""

    memory: Any
    is_cpu = False
    is_cuda = True
    device = torch.device("cuda", 0)

    def data_ptr(self) -> int:
        return int(self.memory.address)

    def record_stream(self, stream: Any) -> None:
        assert stream.cuda_stream == self.memory.stream


def tensors() -> None:
    """Torch's forms in place, the current stream being the fake's."""
    gpu, rank, size = Gpu(), hvd.rank(), hvd.size()
    stream = gpu.stream()
    torch.cuda.current_stream = lambda device=None: SimpleNamespace(cuda_stream=stream)  # type: ignore[assignment]

    def tensor(count: int, dtype: Any = np.float32) -> OnGpu:
        memory = gpu.array(np.zeros(count, dtype), stream)
        made = torch.empty(count, dtype=torch.from_numpy(np.zeros(1, dtype)).dtype).as_subclass(OnGpu)
        made.memory = memory
        return made

    for step in range(4):
        one = tensor(1000)
        one.memory.fill(step + rank)
        handle = hvd.allreduce_async_(one, op=hvd.Sum, name="t")
        assert hvd.synchronize(handle) is one
        assert np.all(one.memory.values() == size * step + sum(range(size)))
    group = [tensor(3), tensor(4)]
    for i, member in enumerate(group):
        member.memory.fill(rank + i)
    hvd.grouped_allreduce_(group, op=hvd.Average, name="g")
    assert [float(member.memory.values()[0]) for member in group] == [(size - 1) / 2, (size - 1) / 2 + 1]
    root = tensor(5, np.int32)
    root.memory.fill(rank)
    hvd.broadcast_(root, 1, name="b")
    assert np.all(root.memory.values() == 1)
