"""What a session can be asked to do: one class for each operation, for `Session.submit`; named ranges of the timeline.

Fields that several classes have mean the same everywhere:

- ``name``: by which the ranks match the operation. A name may be used again when its operation is done, and a loop
  should use it again: what repeats itself is agreed about without messages.
- ``input``, ``output``: addresses of contiguous memory, which must stay alive until the ticket is done; they may be
  the same.
- ``shape``, ``dtype``: of the input; numbers of dtypes as in ``native/base/dtype.h``.
- ``op``, ``prescale``, ``postscale``: the reduction, as in `ringtune.common.reductions`, and factors before and after.
- ``group``, ``group_size``: operations that run only when so many of the group are ready on all ranks; ``""``: none.
- ``process_set``: number of the ranks that take part; 0: all.
- ``wire``: number of the dtype that a floating tensor travels as; -1: its own.
- ``device``: the GPU whose memory it is, and the stream that writes it.
- ``timeout_ns``: how long it may wait for missing ranks before the job ends; 0: as the settings say.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from numbers import Real
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from ringtune.errors import InvalidArgument

if TYPE_CHECKING:
    from ringtune.runtime import Runtime, Ticket

Device = tuple[int, int]
"""Number of a GPU, and one of its streams (a CUstream as a number)."""

HOST: Device = (-1, 0)
"""Memory of the host."""


class Operation(Protocol):
    """What `Session.submit` takes."""

    def start(self, runtime: Runtime) -> Ticket:
        """Hand the operation to the runtime."""


@dataclass(slots=True)
class Allreduce:
    """Reduces the tensors of all ranks; each gets the result. Adasum is one of the reductions."""

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
    device: Device = HOST
    timeout_ns: int = 0

    def start(self, runtime: Runtime) -> Ticket:
        return runtime.allreduce(
            self.name, self.input, self.output, self.shape, self.dtype, self.op, self.prescale, self.postscale,
            self.group, self.group_size, self.process_set, self.wire, *self.device, self.timeout_ns,
        )  # fmt: skip


@dataclass(slots=True)
class GradientReport:
    """Stands for an allreduce on a rank that has no dense tensor for it: none at all, or a ``sparse`` one."""

    name: str
    sparse: bool
    dtype: int
    op: int = 0
    prescale: float = 1.0
    postscale: float = 1.0
    group: str = ""
    group_size: int = 0
    process_set: int = 0
    wire: int = -1

    def start(self, runtime: Runtime) -> Ticket:
        return runtime.report_gradient(
            self.name, self.sparse, self.dtype, self.op, self.prescale, self.postscale, self.group, self.group_size,
            self.process_set, self.wire,
        )  # fmt: skip


@dataclass(slots=True)
class Allgather:
    """Joins the ranks' tensors along the first dimension, which may differ; see `Session.take_gathered`."""

    name: str
    input: int
    shape: Sequence[int]
    dtype: int
    process_set: int = 0
    device: Device = HOST
    timeout_ns: int = 0

    def start(self, runtime: Runtime) -> Ticket:
        return runtime.allgather(
            self.name, self.input, self.shape, self.dtype, self.process_set, *self.device, self.timeout_ns
        )


@dataclass(slots=True)
class Broadcast:
    """Gives all ranks the tensor of rank ``root``, a rank of the job whatever the process set."""

    name: str
    input: int
    output: int
    shape: Sequence[int]
    dtype: int
    root: int
    process_set: int = 0
    device: Device = HOST
    timeout_ns: int = 0

    def start(self, runtime: Runtime) -> Ticket:
        return runtime.broadcast(
            self.name, self.input, self.output, self.shape, self.dtype, self.root, self.process_set, *self.device,
            self.timeout_ns,
        )  # fmt: skip


@dataclass(slots=True)
class Alltoall:
    """Sends ``splits`` rows to each rank (empty: equal shares) and joins what comes; see `Session.take_gathered`."""

    name: str
    input: int
    shape: Sequence[int]
    dtype: int
    splits: Sequence[int] = ()
    process_set: int = 0
    device: Device = HOST
    timeout_ns: int = 0

    def start(self, runtime: Runtime) -> Ticket:
        return runtime.alltoall(
            self.name, self.input, self.shape, self.dtype, self.splits, self.process_set, *self.device, self.timeout_ns
        )


@dataclass(slots=True)
class Reducescatter:
    """Reduces the tensors of all ranks; each gets its share of the rows, the first ranks one more if need be."""

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
    device: Device = HOST
    timeout_ns: int = 0

    def start(self, runtime: Runtime) -> Ticket:
        return runtime.reducescatter(
            self.name, self.input, self.output, self.shape, self.dtype, self.op, self.prescale, self.postscale,
            self.group, self.group_size, self.process_set, *self.device, self.timeout_ns,
        )  # fmt: skip


def group_names(group: str, size: int) -> list[str]:
    """Return the names on the wire of a group's tensors."""
    return [f"{group}_{index}of{size}" for index in range(1, size + 1)]


@dataclass(slots=True)
class Barrier:
    """Is done when all ranks of the set have submitted it."""

    name: str
    process_set: int = 0
    timeout_ns: int = 0

    def start(self, runtime: Runtime) -> Ticket:
        return runtime.barrier(self.name, self.process_set, self.timeout_ns)


@dataclass(slots=True)
class Join:
    """Is done when all ranks have joined: until then this one contributes neutral elements. Decides who came last."""

    name: str = "join.noname"

    def start(self, runtime: Runtime) -> Ticket:
        return runtime.join(self.name)


@dataclass(slots=True)
class AddProcessSet:
    """Decides the number of a new process set of these ranks of the job; all ranks submit it alike."""

    ranks: Sequence[int]

    def start(self, runtime: Runtime) -> Ticket:
        return runtime.add_process_set(self.ranks)


@dataclass(slots=True)
class RemoveProcessSet:
    """Removes a process set by its number; all ranks submit it alike."""

    number: int

    def start(self, runtime: Runtime) -> Ticket:
        return runtime.remove_process_set(self.number)


_RANGES = {
    **dict.fromkeys(("input", "output"), (0, 1 << 64)),
    **dict.fromkeys(("group_size", "process_set", "number"), (0, 1 << 32)),
    **dict.fromkeys(("shape", "splits", "timeout_ns"), (-1 << 63, 1 << 63)),
    "device": (-1, 1 << 64),
}
"""Least value of whole numbers that the runtime can take, and their end; of all others `_INT`."""
_INT = (-1 << 31, 1 << 31)


def check_fields(operation: Any) -> None:
    """Say which field of an operation the runtime cannot take, once it has refused one.

    Raises:
        InvalidArgument: A field is of the wrong type, or beyond its range.
    """
    for field in fields(operation):
        value = getattr(operation, field.name)
        fault = _fault(str(field.type), value, *_RANGES.get(field.name, _INT))
        if fault:
            raise InvalidArgument(f"{type(operation).__name__}: {field.name}={value!r} is {fault}")


def _fault(kind: str, value: Any, least: int, end: int) -> str:
    if kind == "str":
        return "" if isinstance(value, str) and _encodes(value) else "no text that can be written as UTF-8"
    if kind == "float":
        return "" if isinstance(value, Real) else "no number"
    single = kind in ("int", "bool")
    try:
        numbers = [operator.index(one) for one in ((value,) if single else value)]
    except TypeError:
        return "no whole number" if single else "no list of whole numbers"
    if kind == "Device" and len(numbers) != 2:
        return "no pair of a GPU and a stream"
    return "" if all(least <= one < end for one in numbers) else f"not in the range from {least} to {end - 1}"


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class Range:
    """Records the time spent in its body as a span of the timeline; costs little when nothing records."""

    __slots__ = ("_begin_ns", "_name", "_runtime")

    def __init__(self, runtime: Runtime | None, name: str) -> None:
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
