"""When collectives of tensors on GPUs ran, by the GPU's clock, of process groups that put them into streams (NCCL).

Such a group's call returns at once; its future is done then and stands for the stream in which the collective runs.
The runtime records events around it and writes its spans once the GPU has reached them: nobody waits for that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist

from ringtune.torch.distributed.traced import COMMUNICATE, DEVICE_WAIT
from ringtune.torch.recorder.replacing import Replaced


class Timed(Protocol):
    """What a collective says of itself (`ringtune.torch.recorder.collectives`)."""

    session: Any
    kind: int
    name: str
    begin_ns: int

    @property
    def about(self) -> tuple[int, int, int, int]:
        """Bytes, batch, process set and dtype."""


class GpuTimes:
    """Events around one collective, from when its data is asked for. Made before it is handed on.

    Args:
        call: The collective.
        gpu: Number of the GPU.
        blocks: Whether the current stream holds or awaits it when the call returns.
    """

    def __init__(self, call: Timed, gpu: int, blocks: bool) -> None:
        self._call, self._gpu = call, gpu
        self._recorder = call.session.foreign
        self._work = self._begin(COMMUNICATE, call.begin_ns)
        # A blocking call in another stream than the program's own (FSDP2) holds up nobody who is known here.
        in_main = blocks and torch.cuda.current_stream(gpu) == torch.cuda.default_stream(gpu)
        self._wait = self._begin(DEVICE_WAIT, call.begin_ns) if in_main else 0

    @property
    def taken(self) -> bool:
        """Whether the runtime takes times: it records, and the stream records no CUDA graph."""
        return self._work != 0

    def follow(self, group: Any, work: Any) -> bool:
        """Time its end, once it was handed on; False where it runs in no stream, so that its end must be awaited.

        Args:
            group: Its process group.
            work: What the group returned; None: the current stream does all of it.
        """
        together = _together.get(id(group))
        if together is not None:
            together.append(self)
            return True
        if work is None:
            self._end()
            return True
        try:
            future = work.get_future()
        except RuntimeError:  # a backend without futures of what it sends
            future = None
        if future is None or not future.done():
            self.drop()
            return False
        self._recorder.drop(self._wait)  # the caller waits by the work
        self._wait = 0
        future.then(lambda _: self._end())  # called at once, in a stream that awaits the collective
        return True

    def _begin(self, stage: int, begin_ns: int) -> int:
        call = self._call
        where = (self._gpu, _stream(self._gpu))
        begun: int = self._recorder.begin(stage, call.kind, call.name, begin_ns, call.about, where)
        return begun

    def _end(self) -> None:
        for work in (self._work, self._wait):
            self._recorder.end(work, _stream(self._gpu))

    def drop(self) -> None:
        """Leave it untimed."""
        for work in (self._work, self._wait):
            self._recorder.drop(work)

    def begin_wait(self, begin_ns: int) -> Callable[[], None]:
        """Time how long the current stream waits from now on; return what ends that."""
        wait = self._begin(DEVICE_WAIT, begin_ns)
        return lambda: self._recorder.end(wait, _stream(self._gpu))


def _stream(gpu: int) -> int:
    stream: int = torch.cuda.current_stream(gpu).cuda_stream
    return stream


_together: dict[int, list[GpuTimes]] = {}
"""Collectives of groups that launch several at once, by the group's id: they run when the last one was called."""


def watch_coalescing() -> list[Replaced]:
    """See what groups launch together (``batch_isend_irecv``), until what is returned is removed."""
    return [
        Replaced(dist.ProcessGroup, "_start_coalescing", _starting),
        Replaced(dist.ProcessGroup, "_end_coalescing", _ending),
    ]


def _starting(original: Any) -> Callable[..., Any]:
    def start(self: Any, *arguments: Any) -> Any:
        _together[id(self)] = []
        return original(self, *arguments)

    return start


def _ending(original: Any) -> Callable[..., Any]:
    def end(self: Any, *arguments: Any) -> Any:
        held = _together.pop(id(self), [])
        try:
            work = original(self, *arguments)
        except BaseException:
            for times in held:
                times.drop()
            raise
        for times in held:
            times.follow(self, work)
        return work

    return end
