"""What a session can be asked to do: descriptions of operations, and named ranges of the timeline."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple

_HOST = (-1, 0)
"""Device of a tensor in host memory, as the native runtime takes it."""


class Allreduce(NamedTuple):
    """An allreduce to submit: addresses of contiguous memory, numbers as in ``native/base/dtype.h``.

    A floating tensor travels as the dtype ``wire``, -1: as it is. ``device``: number of the GPU whose memory it is,
    and the stream that writes it; empty for host memory. ``timeout_ns``: how long it may wait for missing ranks before
    the job ends; 0: as the settings say.
    """

    name: str
    input: int
    output: int
    shape: Sequence[int]
    dtype: int
    op: int = 0
    prescale: float = 1.0
    postscale: float = 1.0
    group: str = ""
    group_size: int = 0
    process_set: int = 0
    wire: int = -1
    device: tuple[()] | tuple[int, int] = ()
    timeout_ns: int = 0

    def arguments(self) -> tuple[Any, ...]:
        """Return what the native runtime takes."""
        if self.timeout_ns == 0:
            return *self[:-2], *self.device
        return *self[:-2], *(self.device or _HOST), self.timeout_ns


class Broadcast(NamedTuple):
    """A broadcast to submit."""

    name: str
    input: int
    output: int
    shape: Sequence[int]
    dtype: int
    root: int
    process_set: int = 0
    device: tuple[()] | tuple[int, int] = ()
    timeout_ns: int = 0

    def arguments(self) -> tuple[Any, ...]:
        """Return what the native runtime takes."""
        if self.timeout_ns == 0:
            return *self[:-2], *self.device
        return *self[:-2], *(self.device or _HOST), self.timeout_ns


class Range:
    """Records the time spent in its body as a span of the timeline; costs little when nothing records."""

    __slots__ = ("_begin_ns", "_name", "_runtime")

    def __init__(self, runtime: Any, name: str) -> None:
        self._runtime = runtime
        self._name = name
        self._begin_ns = 0

    def __enter__(self) -> Range:
        self._begin_ns = time.monotonic_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runtime is not None and self._runtime.recording:
            self._runtime.record_range(self._name, self._begin_ns, time.monotonic_ns())
