"""A native runtime in plain Python: a world whose other ranks contribute exactly what this rank does."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from ringtune.session import Session
from ringtune.stats import StepStats
from ringtune.torch.handles import DTYPES

_TORCH = {number: dtype for dtype, number in DTYPES.items()}


class Error(RuntimeError):
    pass


class InvalidArgument(Error):
    pass


class Mismatch(Error):
    pass


class ShutDown(Error):
    pass


class RuntimeOptions(SimpleNamespace):
    def __init__(self) -> None:
        super().__init__(rank=0, size=1)

    def set_gpu_kernels(self, kernels: Callable[[int], bytes]) -> None:
        self.gpu_kernels = kernels


class FakeRuntime:
    """Finishes operations at once unless their name is in `held`; fails those in `failing`.

    What operations say last (device, stream, timeout) has no meaning here.
    """

    def __init__(self, options: Any) -> None:
        self.options = options
        self.step_repeated: Callable[[], None] | None = None
        self.told: list[bool] = []
        self.rank, self.size = options.rank, options.size
        self.local_rank, self.local_size, self.cross_rank, self.cross_size = options.rank, options.size, 0, 1
        self.homogeneous = True
        self.hosts = ["here"] * options.size
        self.calls: list[tuple[Any, ...]] = []
        self.travelled: list[int] = []  # dtypes of allreduces on the wire
        self.blocking = 0  # callers between begin and end
        self.awaited: list[bool] = []  # of each operation, whether it was submitted by such a caller
        self.held: set[str] = set()
        self.failing: set[str] = set()
        self.ranges: list[str] = []
        self.timelines: list[dict[str, object]] = []
        self.recording = False
        self.down = False
        self.departure = ("", False)
        self.steps = 0
        self._knobs = dict(options.knobs)
        self._knobs_version = 0
        self._names: dict[int, str] = {}
        self._targets: dict[int, int] = {}
        self._gathered: dict[int, Any] = {}
        self._splits: dict[int, list[int]] = {}
        self._sets: dict[int, list[int]] = {}
        self._numbers: dict[int, int] = {}

    @staticmethod
    def result_memory(count: int) -> np.ndarray[Any, Any]:
        return np.empty(count, np.uint8)

    def begin_blocking(self) -> None:
        self.blocking += 1

    def end_blocking(self) -> None:
        self.blocking -= 1

    def set_compute_threads(self, threads: int) -> None:
        self.compute_threads = threads

    def allreduce(
        self, name: str, source: int, target: int, shape: Sequence[int], dtype: int, op: int,
        prescale: float, postscale: float, group: str = "", group_size: int = 0, process_set: int = 0, wire: int = -1,
        *where: int,
    ) -> int:  # fmt: skip
        travels = wire if wire != -1 and _TORCH[dtype].is_floating_point else dtype
        values = _tensor(source, shape, dtype).to(_TORCH[travels]).to(_TORCH[dtype], copy=True)
        factor = prescale * postscale * (self.size if op == 1 else 1)
        result = values if factor == 1 else (values.double() * factor).to(values.dtype)
        _tensor(target, shape, dtype).copy_(result)
        self.travelled.append(travels)
        ticket = self._ticket(("allreduce", name, tuple(shape), dtype, op, prescale, postscale, group, group_size))
        self._targets[ticket] = target
        return ticket

    def report_gradient(
        self, name: str, sparse: bool, dtype: int, op: int, prescale: float, postscale: float, group: str = "",
        group_size: int = 0, process_set: int = 0, wire: int = -1,
    ) -> int:  # fmt: skip
        return self._ticket(("report_gradient", name, sparse, group, group_size))

    def allgather(
        self, name: str, source: int, shape: Sequence[int], dtype: int, process_set: int = 0, *where: int
    ) -> int:
        ticket = self._ticket(("allgather", name, tuple(shape), dtype))
        joined = torch.cat([_tensor(source, shape, dtype)] * self.size)
        self._gathered[ticket] = tuple(joined.shape), joined.view(torch.uint8).reshape(-1).numpy().copy()
        return ticket

    def broadcast(
        self,
        name: str,
        source: int,
        target: int,
        shape: Sequence[int],
        dtype: int,
        root: int,
        process_set: int = 0,
        *where: int,
    ) -> int:
        _tensor(target, shape, dtype).copy_(_tensor(source, shape, dtype).clone())
        return self._ticket(("broadcast", name, tuple(shape), dtype, root))

    def barrier(self, name: str, process_set: int = 0, timeout_ns: int = 0) -> int:
        return self._ticket(("barrier", name))

    def alltoall(
        self,
        name: str,
        source: int,
        shape: Sequence[int],
        dtype: int,
        splits: Sequence[int],
        process_set: int = 0,
        *where: int,
    ) -> int:
        ticket = self._ticket(("alltoall", name, tuple(shape), dtype, tuple(splits)))
        counts = list(splits) or [shape[0] // self.size] * self.size
        begin = sum(counts[: self.rank])
        mine = _tensor(source, shape, dtype)[begin : begin + counts[self.rank]]
        joined = torch.cat([mine] * self.size)
        self._gathered[ticket] = tuple(joined.shape), joined.view(torch.uint8).reshape(-1).numpy().copy()
        self._splits[ticket] = [counts[self.rank]] * self.size
        return ticket

    def received_splits(self, ticket: int) -> list[int]:
        return self._splits.pop(ticket)

    def reducescatter(
        self, name: str, source: int, target: int, shape: Sequence[int], dtype: int, op: int,
        prescale: float, postscale: float, group: str = "", group_size: int = 0, process_set: int = 0, *where: int
    ) -> int:  # fmt: skip
        rows, more = divmod(shape[0], self.size)
        begin = self.rank * rows + min(self.rank, more)
        own = rows + (self.rank < more)
        factor = prescale * postscale * (self.size if op == 1 else 1)
        values = (_tensor(source, shape, dtype)[begin : begin + own].double() * factor).to(_TORCH[dtype])
        _tensor(target, (own, *shape[1:]), dtype).copy_(values)
        return self._ticket(("reducescatter", name, tuple(shape), dtype, op, prescale, postscale, group, group_size))

    def join(self, name: str) -> int:
        return self._decided(("join", name), self.size - 1)

    def process_sets(self) -> dict[int, list[int]]:
        return {0: list(range(self.size)), **self._sets}

    def add_process_set(self, ranks: Sequence[int]) -> int:
        number = max(self._sets, default=0) + 1
        self._sets[number] = list(ranks)
        return self._decided(("add_process_set", "add_process_set.noname", tuple(ranks)), number)

    def remove_process_set(self, number: int) -> int:
        del self._sets[number]
        return self._decided(("remove_process_set", "remove_process_set.noname", number), number)

    def decided_number(self, ticket: int) -> int:
        return self._numbers[ticket]

    def poll(self, ticket: int) -> bool:
        return self._name(ticket) not in self.held

    def wait(self, ticket: int, timeout_ns: int) -> bool:
        name = self._name(ticket)
        if name in self.failing:
            raise Mismatch(f"tensor '{name}': ranks disagree")
        if name in self.held:
            time.sleep(min(timeout_ns, 1_000_000) / 1e9)
            return False
        return True

    def take_gathered(self, ticket: int) -> tuple[tuple[int, ...], np.ndarray[Any, Any]]:
        found: tuple[tuple[int, ...], np.ndarray[Any, Any]] = self._gathered.pop(ticket)
        return found

    def output_of(self, ticket: int) -> int:
        return self._targets[ticket]

    def release(self, ticket: int) -> None:
        self._names.pop(ticket)

    def knobs(self) -> dict[str, int]:
        return {**self._knobs, "knobs_version": self._knobs_version}

    def propose_knobs(self, knobs: dict[str, int]) -> int:
        if self.rank != 0:
            raise InvalidArgument("only rank 0 proposes knobs")
        self._knobs.update(knobs)
        self._knobs_version += 1
        return self._knobs_version

    def watch_steps(self, ended: Callable[[], None] | None) -> None:
        self.step_repeated = ended

    def end_step(self, told: bool = True) -> dict[str, int]:
        self.told.append(told)
        self.steps += 1
        return {"step": self.steps - 1, "begin_ns": 10, "end_ns": 30, "bytes": 7, "world_step": self.steps - 1}

    def counters(self) -> dict[str, int]:
        return StepStats(bytes=7 * self.steps).as_dict()

    def traffic(self) -> dict[str, tuple[int, int]]:
        return {"ALLREDUCE": (self.steps, 7 * self.steps)}

    @property
    def stalls(self) -> int:
        return 0

    reported_stall: tuple[int, list[tuple[str, str, int, list[int]]]] = (0, [])

    @property
    def open_operations(self) -> int:
        return len(self.held)

    progress = (0, 0, 0, -1)

    def start_timeline(self, path: str, **how: object) -> None:
        self.timelines.append({"path": path, **how})
        Path(path).write_text("[]", encoding="utf-8")
        self.recording = True

    def stop_timeline(self) -> None:
        self.recording = False

    def record_range(self, name: str, begin_ns: int, end_ns: int) -> None:
        self.ranges.append(name)

    def open_to_frameworks(self) -> None:
        """No framework is near."""

    def close_to_frameworks(self) -> None:
        """No framework is near."""

    def follow_framework_steps(self, detect: bool) -> None:
        """No framework is near."""

    def next_framework_step(self) -> None:
        return None

    def stop_framework_steps(self) -> None:
        """No framework is near."""

    def shutdown(self, timeout_ns: int, how: str = "", failed: bool = False) -> None:
        self.down = True
        self.departure = (how, failed)

    @property
    def open_tickets(self) -> int:
        return len(self._names)

    def _ticket(self, call: tuple[Any, ...]) -> int:
        if call[1] in (self._names[ticket] for ticket in self._names) and call[1] in self.held:
            raise InvalidArgument(f"tensor '{call[1]}': the name is in flight")
        self.calls.append(call)
        self.awaited.append(self.blocking > 0)
        ticket = len(self.calls)
        self._names[ticket] = call[1]
        return ticket

    def _decided(self, call: tuple[Any, ...], number: int) -> int:
        ticket = self._ticket(call)
        self._numbers[ticket] = number
        return ticket

    def _name(self, ticket: int) -> str:
        if ticket not in self._names:
            raise InvalidArgument(f"ticket {ticket} is unknown")
        return self._names[ticket]


def fake_of(session: Session) -> FakeRuntime:
    """Return the fake that a session works with."""
    found = session.lend_runtime()
    assert isinstance(found, FakeRuntime)
    return found


class FakeStore:
    """Server and client at once, within the process."""

    values: dict[str, bytes] = {}  # noqa: RUF012 - shared on purpose

    def __init__(self, host: str = "", port: int = 0, secret: str = "", timeout_ns: int = 0, *who: str | int) -> None:
        self.port = port or 1

    def set(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def set_at_end(self, key: str, value: bytes) -> None:
        """A fake never ends."""

    def get(self, key: str, timeout_ns: int) -> bytes:
        return self.values[key]

    def get_all(self, keys: Sequence[str], timeout_ns: int) -> list[bytes | None]:
        return [self.values.get(key) for key in keys]


def _no_signal(number: int) -> int:
    raise Error(f"signal {number} has a handler already")


def module() -> Any:
    """Return what stands for ``ringtune._native``."""
    return SimpleNamespace(
        Error=Error,
        InvalidArgument=InvalidArgument,
        Mismatch=Mismatch,
        ShutDown=ShutDown,
        Runtime=FakeRuntime,
        RuntimeOptions=RuntimeOptions,
        StoreServer=FakeStore,
        StoreClient=FakeStore,
        open_stack_source=_no_signal,
        watch_exits=lambda: None,
        exit_code=lambda: None,
        build_info=lambda: {"version": "fake", "nccl": ""},
    )


def _tensor(address: int, shape: Sequence[int], dtype: int) -> torch.Tensor:
    kind = _TORCH[dtype]
    count = int(np.prod(shape, dtype=np.int64))
    if count == 0:
        return torch.empty(tuple(shape), dtype=kind)
    memory = (ctypes.c_char * (count * kind.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=kind).view(tuple(shape))
