"""The ways to sum tensors over all ranks that torch's processes race, each through its public Python call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist

import ringtune.torch as hvd
from ringtune import session
from ringtune.benchmarks.comm.exchanges import gloo_exchange, open_exchange, ringtune_exchange
from ringtune.benchmarks.comm.tensors import as_tensor, dtype_of
from ringtune.benchmarks.harness import devices
from ringtune.benchmarks.harness.race.bursts import Contest, SumContest, in_turn
from ringtune.benchmarks.harness.race.patterns import Array, Buffers, Task, item_bytes
from ringtune.benchmarks.harness.race.rank import Opener, Unsupported
from ringtune.operations import Allreduce
from ringtune.torch.compression import Compressor, wire_number
from ringtune.torch.devices import device_of, join
from ringtune.torch.handles import dtype_number

# The defaults of torch's DDP: `bucket_cap_mb=25`, and a smaller first bucket so that the first reduction starts early.
BUCKET_BYTES = 25 * 1024 * 1024
FIRST_BUCKET_BYTES = 1024 * 1024

Tensors = Sequence[torch.Tensor]


def ringtune_blocking(tensors: Tensors) -> Callable[[], object]:
    """Returns one blocking `hvd.allreduce_` per tensor."""
    # By position, as in the peers' calls: `partial` needs 0.1 µs to pass keywords on, a direct call does not.
    return in_turn([partial(hvd.allreduce_, tensor, None, name, hvd.Sum) for tensor, name in _named(tensors)])


def ringtune_async(tensors: Tensors) -> Callable[[], object]:
    """Returns a call that submits all tensors in order and then waits for them."""
    named = _named(tensors)

    def reduce() -> None:
        handles = [hvd.allreduce_async_(tensor, name=name, op=hvd.Sum) for tensor, name in named]
        for handle in handles:
            hvd.synchronize(handle)

    return reduce


def ringtune_group(tensors: Tensors) -> Callable[[], object]:
    """Returns a call that submits all tensors as one group and then waits for it."""

    def reduce() -> None:
        hvd.synchronize(hvd.grouped_allreduce_async_(tensors, name="group", op=hvd.Sum))

    return reduce


def ringtune_cast(compression: type[Compressor], tensors: Tensors) -> Callable[[], object]:
    """As `ringtune_async`, but the runtime casts while it copies: what `DistributedOptimizer` does."""
    wire = wire_number(compression, hvd.Sum)
    now = session.require()
    operations = [
        Allreduce(name, at, at, tuple(tensor.shape), dtype_number(tensor), hvd.Sum, wire=wire, device=device_of(tensor))
        for tensor, name in _named(tensors)
        for at in [tensor.data_ptr()]
    ]

    def reduce() -> None:
        tickets = [now.submit(operation) for operation in operations]
        for ticket, tensor in zip(tickets, tensors, strict=True):
            now.wait(ticket)
            join(ticket, tensor)
            now.release(ticket)

    return reduce


def ringtune_passes(tensors: Tensors) -> Callable[[], object]:
    """Casts by hand around an allreduce of float16, as Horovod's compression does."""
    named = _named(tensors)

    def reduce() -> None:
        handles = [hvd.allreduce_async_(tensor.to(torch.float16), name=name, op=hvd.Sum) for tensor, name in named]
        for handle, (tensor, _) in zip(handles, named, strict=True):
            tensor.copy_(hvd.synchronize(handle))

    return reduce


def _named(tensors: Tensors) -> list[tuple[torch.Tensor, str]]:
    return [(tensor, f"bench.{index}") for index, tensor in enumerate(tensors)]


def gloo_blocking(tensors: Tensors) -> Callable[[], object]:
    """Returns one blocking `torch.distributed.all_reduce` per tensor."""
    return in_turn([partial(dist.all_reduce, tensor) for tensor in tensors])


def gloo_async(tensors: Tensors) -> Callable[[], object]:
    """Returns a call that submits all tensors in order with `async_op=True` and then waits for them."""
    fixed = list(tensors)

    def reduce() -> None:
        _wait([dist.all_reduce(tensor, async_op=True) for tensor in fixed])

    return reduce


def gloo_buckets(tensors: Tensors) -> Callable[[], object]:
    """As torch's DDP: tensors are copied into 25 MB buckets, each bucket is reduced as soon as it is full."""
    buckets = []
    for members in plan_buckets(tensors):
        flat = members[0].new_empty(sum(tensor.numel() for tensor in members))
        views = flat.split([tensor.numel() for tensor in members])
        buckets.append((flat, list(zip(members, views, strict=True))))

    def reduce() -> None:
        works = []
        for flat, members in buckets:
            for tensor, view in members:
                view.copy_(tensor)
            works.append(dist.all_reduce(flat, async_op=True))
        for work, (_, members) in zip(works, buckets, strict=True):
            _wait([work])
            for tensor, view in members:
                tensor.copy_(view)

    return reduce


def _wait(works: Sequence[dist.Work | None]) -> None:
    for work in works:
        assert work is not None
        work.wait()


def plan_buckets(tensors: Tensors) -> list[list[torch.Tensor]]:
    """Returns `tensors` in order, cut where a bucket has reached its size (1 MiB the first, 25 MiB all others)."""
    buckets: list[list[torch.Tensor]] = [[]]
    filled_bytes = 0
    for tensor in tensors:
        limit_bytes = FIRST_BUCKET_BYTES if len(buckets) == 1 else BUCKET_BYTES
        if filled_bytes >= limit_bytes:
            buckets.append([])
            filled_bytes = 0
        buckets[-1].append(tensor)
        filled_bytes += tensor.nbytes
    return buckets


def open_sum(make: Callable[[Tensors], Callable[[], object]], task: Task) -> Contest:
    """Returns the contest of `make` over tensors in memory of their own each."""
    buffers = Buffers(task)
    tensors = [as_tensor(array, task.dtype) for array in buffers.arrays]
    if task.device == devices.CPU:
        return SumContest(buffers, make(tensors))
    there = [tensor.to(task.device) for tensor in tensors]
    return DeviceContest(buffers, list(zip(tensors, there, strict=True)), make(there))


class DeviceContest:
    """Sums tensors on a device; `buffers` is their image on the host, from which they are filled and checked.

    Args:
        buffers: the image.
        pairs: tensors of the image, each with the one on the device.
        call: sums those on the device in place.
    """

    def __init__(
        self, buffers: Buffers, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], call: Callable[[], object]
    ) -> None:
        self.call = call
        self.max_calls = buffers.max_sums
        self.settle = devices.settle_of(pairs[0][1].device.type)
        self._buffers = buffers
        self._pairs = pairs

    def fill(self) -> None:
        """Puts the input in place."""
        self._buffers.fill()
        for host, there in self._pairs:
            there.copy_(host)

    def check(self, calls: int) -> None:
        """Raises ArithmeticError unless every element is as it must be after `calls` sums."""
        for host, there in self._pairs:
            host.copy_(there)
        self._buffers.check(calls)


def open_cast(make: Callable[[Tensors], Callable[[], object]], travels: str, task: Task) -> Contest:
    """Returns the contest of `make` over numbers that are exact in the dtype which they travel as."""
    if task.dtype != "float32":
        raise Unsupported("it sends float32 as a shorter dtype")
    return open_sum(make, replace(task, travels=travels))


def open_float32(task: Task) -> Contest:
    """Returns ringtune's contest over as many bytes of float32: the ratio to it is what another dtype costs."""
    if task.dtype == "float32":
        raise Unsupported("ringtune sends float32 as float32 anyway")
    if any(size_bytes % item_bytes("float32") for size_bytes in task.sizes_bytes):
        raise Unsupported("these bytes are no whole float32")
    return open_sum(ringtune_blocking, replace(task, dtype="float32"))


def open_bucket_views(task: Task) -> Contest:
    """As torch's DDP with `gradient_as_bucket_view`: tensors are parts of the buckets, nothing is copied."""
    if task.device != devices.CPU:
        return open_sum(gloo_async, _whole_buckets(task))
    shapes = plan_buckets([torch.empty(length, dtype=dtype_of(task.dtype), device="meta") for length in task.lengths])
    arrays: list[Array] = []
    flats = []
    for members in shapes:
        lengths = [tensor.numel() for tensor in members]
        flat = Buffers(Task([task.itemsize * sum(lengths)], task.dtype, task.rank, task.size)).arrays[0]
        flats.append(as_tensor(flat, task.dtype))
        ends = [sum(lengths[: index + 1]) for index in range(len(lengths))]
        arrays += [flat[end - length : end] for end, length in zip(ends, lengths, strict=True)]
    return SumContest(Buffers(task, arrays), gloo_async(flats))


def _whole_buckets(task: Task) -> Task:
    """Returns the task with each bucket as one tensor; the same bytes travel."""
    shapes = plan_buckets([torch.empty(length, dtype=dtype_of(task.dtype), device="meta") for length in task.lengths])
    return replace(task, sizes_bytes=[sum(tensor.nbytes for tensor in members) for members in shapes])


_SUMS = {
    "ringtune": ringtune_blocking,
    "ringtune-async": ringtune_async,
    "ringtune-group": ringtune_group,
    "gloo": gloo_blocking,
    "gloo-async": gloo_async,
    "gloo-buckets": gloo_buckets,
    # The same calls of torch.distributed, on its other backend.
    "nccl": gloo_blocking,
    "nccl-async": gloo_async,
    "nccl-buckets": gloo_buckets,
}
# The contenders that `comm/micro_worker.py` can open.
CONTENDERS: Mapping[str, Opener] = {
    **{name: partial(open_sum, make) for name, make in _SUMS.items()},
    "gloo-bucket-views": open_bucket_views,
    "nccl-bucket-views": open_bucket_views,
    "ringtune-collectives": partial(open_exchange, ringtune_exchange),
    "gloo-collectives": partial(open_exchange, gloo_exchange),
    "nccl-collectives": partial(open_exchange, gloo_exchange),
    "ringtune-float32": open_float32,
    "ringtune-fp16": partial(open_cast, partial(ringtune_cast, hvd.Compression.fp16), "float16"),
    "ringtune-bf16": partial(open_cast, partial(ringtune_cast, hvd.Compression.bf16), "bfloat16"),
    "ringtune-fp16-passes": partial(open_cast, ringtune_passes, "float16"),
}
