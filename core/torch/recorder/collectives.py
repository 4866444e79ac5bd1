"""Spans of every collective of every process group, whoever calls it: Python, or the C++ of DDP and DTensor.

All of them pass torch's dispatcher as operations ``c10d::allreduce_`` and so on. A kernel at the dispatch key
BackendSelect, which is looked at before any backend and in inference mode too, notes the call and hands it on. The
process groups and their works are torch's own.

A collective of tensors on the CPU is ``negotiate`` when it is called (its rank has come) and ``communicate`` until it
is done, waits for other ranks included. Its number is the group's name and how many the group has had: the same on all
members. A send or receive has a number of its own, equal on both ends, and one from any rank gets it once it has come.
Of one in a stream of a GPU the times are the GPU's (`ringtune.torch.recorder.gpu_times`), beside a range with
the time that the host took to enqueue it.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from ringtune import session
from ringtune.torch import steps
from ringtune.torch.distributed.traced import (
    COMMUNICATE,
    KINDS,
    NEGOTIATE,
    NO_DTYPE,
    WAIT,
    MessageNumbers,
    label_of,
)
from ringtune.torch.handles import DTYPES
from ringtune.torch.recorder import buckets, gpu_times
from ringtune.torch.recorder.replacing import Replaced

_MOST_OPEN = 4096
"""Works that are kept until they are done; a script that never waits must not fill the memory."""

_PAYLOADS: dict[str, tuple[str, int]] = {
    "allreduce_": ("ALLREDUCE", 0),
    "allreduce_coalesced_": ("ALLREDUCE", 0),
    "broadcast_": ("BROADCAST", 0),
    "reduce_": ("REDUCE", 0),
    "allgather_": ("ALLGATHER", 0),
    "_allgather_base_": ("ALLGATHER", 0),
    "allgather_coalesced_": ("ALLGATHER", 0),
    "allgather_into_tensor_coalesced_": ("ALLGATHER", 0),
    "reduce_scatter_": ("REDUCESCATTER", 1),
    "_reduce_scatter_base_": ("REDUCESCATTER", 1),
    "reduce_scatter_tensor_coalesced_": ("REDUCESCATTER", 1),
    "alltoall_": ("ALLTOALL", 1),
    "alltoall_base_": ("ALLTOALL", 1),
    "gather_": ("GATHER", 1),
    "scatter_": ("SCATTER", 0),
    "barrier": ("BARRIER", 0),
    "send": ("SEND", 0),
    "recv_": ("RECV", 0),
    "recv_any_source_": ("RECV", 0),
}
"""Kind of each operation, and which argument holds what travels: inputs, of a gathering one outputs."""
_BETWEEN_TWO = frozenset({"SEND", "RECV"})


def watch() -> list[Any]:
    """Note every collective from now on, until what is returned is removed."""
    library = torch.library.Library("c10d", "IMPL")
    for name, (kind, payload) in _PAYLOADS.items():
        with suppress(AttributeError, RuntimeError):  # a version of torch without that operation
            overload = getattr(torch.ops.c10d, name).default
            library.impl(name, _kernel(overload, kind, payload), "BackendSelect", with_keyset=True)
    functional = torch.library.Library("_c10d_functional", "IMPL")
    functional.impl("wait_tensor", _wait_kernel(), "BackendSelect", with_keyset=True)
    return [
        *map(_Kernels, (library, functional)),
        Replaced(dist.Work, "wait", _waited),
        *gpu_times.watch_coalescing(),
        register_optimizer_step_post_hook(lambda *_: _in_step.clear()),
    ]


class _Kernels:
    """Kernels of a library, which live as long as it does."""

    def __init__(self, library: torch.library.Library) -> None:
        self._library = library

    def remove(self) -> None:
        self._library._destroy()


class _Group:
    """What is known of a process group: its number, the same on all members, and how many collectives it has had."""

    def __init__(self, group: Any) -> None:
        self.number, self.label = label_of(str(group.group_name), str(getattr(group, "group_desc", "") or ""))
        self.calls = itertools.count()
        self.messages = MessageNumbers(str(group.group_name))
        self.watcher: _Watcher | None = None

    def next_batch(self) -> int:
        """Return the next collective's number, unique in the job: of the world by 2^29, of other groups by 2^20.

        They begin at `ringtune.timeline.vocabulary.FOREIGN_BATCHES`.
        """
        call = next(self.calls)
        if self.number == 0:
            return 0x4000_0000 | call & 0x1FFF_FFFF
        # Groups 512, 1024 ... share numbers with this one. They begin as far apart as they can: their bits mirrored.
        first = int(f"{self.number >> 9:020b}"[::-1], 2)
        return 0x6000_0000 | (self.number & 0x1FF) << 20 | (call + first) & 0xF_FFFF


_groups: dict[str, _Group] = {}
_in_step: Counter[tuple[int, str]] = Counter()
"""Collectives of each group and kind in this step: they name a collective alike in all steps and on all ranks."""
_open: dict[int, _Call] = {}
"""Calls that are not done, by the id of their work: torch gives Python the same object while one is held."""


class _Call:
    """One collective that is under way."""

    def __init__(self, now: Any, kind: str, name: str, tensors: list[torch.Tensor], group: _Group) -> None:
        self.session, self.kind, self.name = now, KINDS[kind], name
        self.bytes = 0 if kind == "BARRIER" else sum(one.numel() * one.element_size() for one in tensors)
        self.dtype = DTYPES.get(tensors[0].dtype, NO_DTYPE) if tensors and kind != "BARRIER" else NO_DTYPE
        self.group, self.batch = group, 0
        self.arrives: tuple[int, int] | None = None  # from any rank: this rank's number in the group, and the tag
        self.begin_ns = time.monotonic_ns()
        self.end_ns = 0
        self.result = 0  # address of the first tensor that it fills
        self.task = -1  # the backward pass that calls it
        self.work: Any = None
        self.future: Any = None
        self.times: gpu_times.GpuTimes | None = None

    @property
    def about(self) -> tuple[int, int, int, int]:
        return self.bytes, self.batch, self.group.number, self.dtype

    def record(self, stage: int, begin_ns: int, end_ns: int) -> None:
        if not self.session.closed:
            self.session.foreign.record(stage, self.kind, self.name, begin_ns, end_ns, *self.about)

    def learn_source(self) -> None:
        """Give a message from any rank, which has come, its sender and its number."""
        if self.arrives is not None and self.work is not None:
            source = self.work._source_rank()
            self.name = f"{self.group.label}: recv from {source}"
            self.batch, self.arrives = self.group.messages.next(source, *self.arrives), None

    def done(self, at_ns: int) -> None:
        """Record its end; the first that sees it counts."""
        if self.end_ns == 0:
            self.end_ns = at_ns
            self.record(COMMUNICATE, self.begin_ns, at_ns)
            self.forget()

    def forget(self) -> None:
        _open.pop(id(self.work), None)
        self.work = self.future = None


class _Watcher:
    """A thread that sees the ends of a group's collectives for which no caller waits at once, in their order."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="ringtune-recorder", daemon=True).start()

    def add(self, call: _Call) -> None:
        self._calls.put(call)

    def _run(self) -> None:
        while True:
            call = self._calls.get()
            future = call.future
            if future is None:
                continue
            try:
                future.wait()
                call.done(time.monotonic_ns())
            except Exception:  # the job's own business: its caller is told
                call.forget()


def _keys_after() -> Any:
    """The dispatch keys that come after the one of the kernels here."""
    return torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)


def _kernel(overload: Any, kind: str, payload: int) -> Callable[..., Any]:
    """Return the kernel of an operation."""
    names = [argument.name for argument in overload._schema.arguments]
    group_at = names.index("process_group")
    peer_at = names.index("dst") if "dst" in names else names.index("src") if "src" in names else -1
    tag_at = names.index("tag") if "tag" in names else -1
    sync_at = names.index("asyncOp") if "asyncOp" in names else names.index("async_op") if "async_op" in names else -1
    after = _keys_after()

    def kernel(keyset: Any, *arguments: Any, **options: Any) -> Any:
        now = session.state.current
        if now is None:
            return overload.redispatch(keyset & after, *arguments, **options)
        tensors = list(_tensors(arguments[payload]))
        found: Any = dist.ProcessGroup.unbox(arguments[group_at])
        group = _groups.get(found.group_name) or _groups.setdefault(found.group_name, _Group(found))
        task = _running_pass()
        name = f"{group.label}: {kind.lower()}"
        peer = arguments[peer_at] if peer_at >= 0 else None
        if kind in _BETWEEN_TWO:
            name += f" {'to' if kind == 'SEND' else 'from'} {'any' if peer is None else peer}"
        else:
            count = _in_step[group.number, kind]
            _in_step[group.number, kind] = count + 1
            name = _bucket_name(group, tensors, task) or f"{name} {count}"
        steps.communicated()
        call = _Call(now, kind, name, tensors, group)
        if kind not in _BETWEEN_TWO:
            call.batch = group.next_batch()
        elif peer is None:
            call.arrives = found.rank(), arguments[tag_at]
        else:
            ends = (found.rank(), peer) if kind == "SEND" else (peer, found.rank())
            call.batch = group.messages.next(*ends, arguments[tag_at])
        call.task = task
        call.result = next((one.data_ptr() for one in _tensors(arguments[0])), 0)
        blocks = sync_at >= 0 and len(arguments) > sync_at and not arguments[sync_at]
        gpu = next((one.device.index for one in tensors if one.is_cuda), None)
        call.record(NEGOTIATE, call.begin_ns, call.begin_ns)
        call.times = None if gpu is None else gpu_times.GpuTimes(call, gpu, blocks)
        try:
            result = overload.redispatch(keyset & after, *arguments, **options)
        except BaseException:
            if call.times is not None:
                call.times.drop()
            raise
        if any(not one.is_cpu for one in tensors):
            now.record_range(f"{name} (enqueue)", call.begin_ns, time.monotonic_ns())
            if call.times is None:  # a device of another kind
                return result
        boxed = result[1] if isinstance(result, (tuple, list)) else result
        _follow(call, None if boxed is None else dist.Work.unbox(boxed), blocks, found)
        return result

    return kernel


def _follow(call: _Call, work: Any, blocks: bool, group: Any) -> None:
    """See that the end of a call is recorded: by the GPU's events, its caller's wait, or the group's watcher."""
    if call.times is not None and not call.times.follow(group, work):
        call.times = None
    if work is None or (call.times is not None and not call.times.taken):
        return
    _forget_done()
    while len(_open) >= _MOST_OPEN:
        _open.pop(next(iter(_open)))
    call.work = work
    _open[id(work)] = call
    if call.times is not None and not blocks:
        _watch_backward(call)
    if call.times is not None or blocks:
        return
    try:
        call.future = call.work.get_future()
    except RuntimeError:  # a send or receive: only a wait tells
        return
    if call.group.watcher is None:
        call.group.watcher = _Watcher()
    call.group.watcher.add(call)
    _watch_backward(call)


def _forget_done() -> None:
    """Let go of works on GPUs for which nobody waits in Python: they hold their tensors."""
    for call in list(itertools.islice(_open.values(), 2)):
        with suppress(RuntimeError):  # the job's own business: its caller is told
            if call.times is not None and call.work.is_completed():
                call.forget()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    else:
        for one in value:
            yield from _tensors(one)


def _waited(original: Any) -> Callable[..., Any]:
    """Return ``Work.wait`` that records how long callers in Python wait."""

    def wait(self: Any, *arguments: Any, **options: Any) -> Any:
        return _record_wait(_open.get(id(self)), lambda: original(self, *arguments, **options))

    wait.__doc__ = original.__doc__
    return wait


def _wait_kernel() -> Callable[..., Any]:
    """Return the kernel of ``wait_tensor``, by which functional collectives are waited for."""
    overload = torch.ops._c10d_functional.wait_tensor.default
    after = _keys_after()

    def kernel(keyset: Any, tensor: torch.Tensor) -> Any:
        address = tensor.data_ptr() if _open else 0
        call = next((one for one in list(_open.values()) if one.result == address), None) if address else None
        return _record_wait(call, lambda: overload.redispatch(keyset & after, tensor))

    return kernel


def _record_wait(call: _Call | None, wait: Callable[[], Any]) -> Any:
    """Wait, and record how long; `call` is what is waited for, None where it is done or not recorded."""
    if call is None:
        return wait()
    begin_ns = time.monotonic_ns()
    ended = None if call.times is None else call.times.begin_wait(begin_ns)
    result = wait()
    end_ns = time.monotonic_ns()
    call.learn_source()
    call.record(WAIT, begin_ns, end_ns)
    if ended is None:
        call.done(end_ns)
    else:
        ended()
        call.forget()
    return result


_MOST_PASSES = 32
_passes: dict[int, list[_Call]] = {}
"""Calls that each backward pass has started, by the graph's task."""


def _running_pass() -> int:
    """Return the number of the backward pass in which this thread is; -1 for none."""
    return -1 if torch._C._current_autograd_node() is None else torch._C._current_graph_task_id()


def _bucket_name(group: _Group, tensors: list[torch.Tensor], task: int) -> str | None:
    """Return the name of a bucket of DDP's, if that is what is reduced: the same on all ranks."""
    if task == -1 or len(tensors) != 1:
        return None
    name = buckets.find_name(len(_passes.get(task, ())), tensors[0].numel())
    return name and f"{group.label}: {name}"


def _watch_backward(call: _Call) -> None:
    """Record what the end of a backward pass waits: DDP's C++ waits there, and says nothing of it."""
    task = call.task
    if task == -1:
        return
    if task in _passes:
        _passes[task].append(call)
        return
    if len(_passes) == _MOST_PASSES:  # a pass that fails never calls back
        _passes.clear()
    _passes[task] = [call]
    engine: Any = torch.autograd.Variable._execution_engine
    # DDP queues its own end behind this one, and what this one queues comes behind DDP's.
    engine.queue_callback(lambda: _pass_ends(task, engine))


def _pass_ends(task: int, engine: Any) -> None:
    begin_ns = time.monotonic_ns()
    calls = _passes.pop(task, [])
    on_gpu = [call for call in calls if call.times is not None]
    if on_gpu and on_gpu[-1].times is not None:
        engine.queue_callback(on_gpu[-1].times.begin_wait(begin_ns))
    late = [call for call in calls if call.end_ns == 0 and call.future and not call.future.done()]
    if late:
        engine.queue_callback(lambda: _pass_has_ended(late, begin_ns))


def _pass_has_ended(late: list[_Call], begin_ns: int) -> None:
    now_ns = time.monotonic_ns()
    late[-1].record(WAIT, begin_ns, min(now_ns, max(call.end_ns or now_ns for call in late)))
