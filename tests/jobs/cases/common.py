"""What the ranks of the tests' jobs do. Values are small integers, so that every sum is exact."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable
from typing import Any

import torch

import ringtune.torch as hvd
from ringtune import session
from ringtune.errors import RuntimeFailure
from ringtune.operations import Allreduce, Broadcast
from ringtune.torch.handles import DTYPES


def open_session(environ: dict[str, str] | None = None) -> tuple[int, int]:
    """Leave the present session and join a new one with these variables."""
    hvd.shutdown()
    for name in [name for name in os.environ if name.startswith("RINGTUNE_")]:
        if environ is not None:
            del os.environ[name]
    os.environ.update(environ or {})
    hvd.init()
    return hvd.rank(), hvd.size()


def open_session_in(folder: str) -> tuple[int, int]:
    """Join from another working directory."""
    os.chdir(folder)
    return open_session()


def close_session() -> bool:
    hvd.shutdown()
    return hvd.is_initialized()


def digest(tensor: torch.Tensor) -> str:
    """Return a fingerprint of the tensor's bits."""
    return hashlib.sha256(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


def contribution(rank: int, count: int, dtype: torch.dtype, op: int) -> torch.Tensor:
    """Return what a rank contributes: small integers that depend on rank and index."""
    index = torch.arange(count, dtype=torch.int64)
    if op == hvd.Product:
        return ((index + rank) % 2 + 1).to(dtype)
    return (index % 7 + 2 * rank).to(dtype)


def expectation(size: int, count: int, dtype: torch.dtype, op: int) -> torch.Tensor:
    """Return the exact result of the reduction of all contributions."""
    parts = torch.stack([contribution(rank, count, torch.int64, op) for rank in range(size)])
    if op == hvd.Average:  # the ranks' sum is a multiple of the size: 2 (0 + ... + n-1) = n (n-1)
        return torch.div(parts.sum(0), size, rounding_mode="trunc").to(dtype)
    if op == hvd.Min:
        return parts.min(0).values.to(dtype)
    if op == hvd.Max:
        return parts.max(0).values.to(dtype)
    return (parts.prod(0) if op == hvd.Product else parts.sum(0)).to(dtype)


def allreduce(dtype: str, count: int, op: int, repeat: int = 2) -> str:
    """Reduce exactly, the second time from the response cache; return the fingerprint."""
    kind = getattr(torch, dtype)
    result = torch.empty(0)
    for _ in range(repeat):
        tensor = contribution(hvd.rank(), count, kind, op)
        before = digest(tensor)
        result = hvd.allreduce(tensor, name=f"{dtype}.{count}.{op}", op=op)
        assert result.dtype is kind and torch.equal(result, expectation(hvd.size(), count, kind, op))
        assert digest(tensor) == before, "the input was changed"
    return digest(result)


def integer_average(values: list[list[int]], dtype: str) -> list[int]:
    """Average integers; the result is truncated toward zero."""
    found: list[int] = hvd.allreduce(torch.tensor(values[hvd.rank()], dtype=getattr(torch, dtype))).tolist()
    return found


def scaled(dtype: str, op: int, prescale: float, postscale: float) -> list[float]:
    """Reduce [2, 4, 8] (times rank + 1) with factors."""
    tensor = (torch.tensor([2, 4, 8]) * (hvd.rank() + 1)).to(getattr(torch, dtype))
    result = hvd.allreduce(tensor, op=op, prescale_factor=prescale, postscale_factor=postscale)
    found: list[float] = result.double().tolist()
    return found


def broadcast(dtype: str, count: int, root: int) -> str:
    """Send the root's values; in place and out of place."""
    kind = getattr(torch, dtype)
    tensor = contribution(hvd.rank(), count, kind, hvd.Sum)
    expected = contribution(root, count, kind, hvd.Sum)
    result = hvd.broadcast(tensor, root, name=f"o.{dtype}.{count}.{root}")
    assert torch.equal(result, expected)
    hvd.broadcast_(tensor, root, name=f"i.{dtype}.{count}.{root}")
    assert torch.equal(tensor, expected)
    return digest(result)


def allgather(dtype: str, rows: list[int], width: int) -> str:
    """Gather differing numbers of rows."""
    kind = getattr(torch, dtype)

    def part(rank: int) -> torch.Tensor:
        return contribution(rank, rows[rank] * width, kind, hvd.Sum).view(rows[rank], width)

    result = hvd.allgather(part(hvd.rank()), name=f"{dtype}.{width}.{len(rows)}")
    assert result.dtype is kind and torch.equal(result, torch.cat([part(rank) for rank in range(hvd.size())]))
    return digest(result)


def barrier(slow_rank: int, delay_s: float) -> tuple[float, float]:
    """Come to a barrier, one rank late; return when this rank came and left, on the common monotonic clock."""
    if hvd.rank() == slow_rank:
        time.sleep(delay_s)
    came = time.monotonic()
    hvd.barrier()
    return came, time.monotonic()


def many(seed: int, count: int) -> str:
    """Submit many tensors of all sizes in an order of this rank's own; return the fingerprint of all results."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 5000, (count,), generator=generator).tolist()
    kinds = [list(DTYPES)[i] for i in torch.randint(5, 9, (count,), generator=generator).tolist()]
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed * 100 + hvd.rank())).tolist()
    handles = {
        i: hvd.allreduce_async(contribution(hvd.rank(), lengths[i], kinds[i], hvd.Sum), name=f"m.{i}", op=hvd.Sum)
        for i in order
    }
    for i in range(count):
        result = hvd.synchronize(handles[i])
        assert torch.equal(result, expectation(hvd.size(), lengths[i], kinds[i], hvd.Sum)), f"tensor {i}"
        handles[i] = digest(result)
    return hashlib.sha256("".join(str(handles[i]) for i in range(count)).encode()).hexdigest()


def group(rows: list[int]) -> list[str]:
    """Reduce a group whose members have several dtypes."""
    kinds = [torch.float32, torch.int64, torch.bfloat16]
    tensors = [contribution(hvd.rank(), n, kinds[i % 3], hvd.Sum) for i, n in enumerate(rows)]
    results = hvd.grouped_allreduce(tensors, name="group", op=hvd.Sum)
    for i, result in enumerate(results):
        assert torch.equal(result, expectation(hvd.size(), rows[i], kinds[i % 3], hvd.Sum))
    return [digest(result) for result in results]


def group_needs_all() -> bool:
    """A member of a group that is ready everywhere waits for the others."""
    now = session.require()
    values = [torch.ones(4), torch.ones(4)]

    def submit(i: int) -> int:
        address = values[i].data_ptr()
        return now.submit(Allreduce(f"part.{i}", address, address, (4,), 7, hvd.Sum, 1.0, 1.0, "pair", 2))

    first = submit(0)
    time.sleep(0.1)
    early = now.poll(first)
    second = submit(1)
    now.wait(first)
    now.wait(second)
    assert torch.equal(values[0], torch.full((4,), float(hvd.size()))) and torch.equal(values[0], values[1])
    return early


def mismatch(what: str) -> str:
    """Disagree with rank 1 about something, check that the error says so, and show that the job goes on."""
    odd = hvd.rank() == 1
    tensor = torch.ones(4, 3)
    other = torch.ones(5, 3) if odd else tensor
    wider = tensor.double() if odd else tensor
    calls: dict[str, Callable[[], Any]] = {
        "shape": lambda: hvd.allreduce(other, name="w"),
        "dtype": lambda: hvd.allreduce(wider, name="w"),
        "op": lambda: hvd.allreduce(tensor, name="w", op=hvd.Max if odd else hvd.Sum),
        "prescale": lambda: hvd.allreduce(tensor, name="w", prescale_factor=2.0 if odd else 1.0),
        "postscale": lambda: hvd.allreduce(tensor, name="w", postscale_factor=2.0 if odd else 1.0),
        "root": lambda: hvd.broadcast(tensor, 1 if odd else 0, name="w"),
        "columns": lambda: hvd.allgather(torch.ones(2, 4) if odd else torch.ones(2, 3), name="w"),
        "dimensions": lambda: hvd.allgather(torch.ones(6) if odd else torch.ones(2, 3), name="w"),
        "gathered dtype": lambda: hvd.allgather(wider, name="w"),
        "broadcast shape": lambda: hvd.broadcast(other, 0, name="w"),
        "broadcast dtype": lambda: hvd.broadcast(wider, 0, name="w"),
        "kind": lambda: _other_kind(odd),
    }
    message = ""
    try:
        calls[what]()
    except RuntimeFailure as error:
        message = f"{type(error).__name__}: {error}"
    assert torch.equal(hvd.allreduce(tensor, name="w2", op=hvd.Sum), tensor * hvd.size()), "the job is not usable"
    return message


def _other_kind(odd: bool) -> None:
    now = session.require()
    tensor = torch.ones(4)
    address = tensor.data_ptr()
    if odd:
        ticket = now.submit(Broadcast("w", address, address, (4,), 7, 0))
    else:
        ticket = now.submit(Allreduce("w", address, address, (4,), 7, hvd.Sum))
    now.wait(ticket)


_STARTS: dict[str, Callable[[torch.Tensor], int]] = {
    "allreduce": lambda tensor: hvd.allreduce_async(tensor, name="twice", op=hvd.Sum),
    "allgather": lambda tensor: hvd.allgather_async(tensor, name="twice"),
    "broadcast": lambda tensor: hvd.broadcast_async(tensor, 0, name="twice"),
    "alltoall": lambda tensor: hvd.alltoall_async(tensor, name="twice"),
    "reducescatter": lambda tensor: hvd.reducescatter_async(tensor, name="twice"),
    "grouped_allreduce": lambda tensor: hvd.grouped_allreduce_async([tensor, tensor], name="twice"),
}
STARTS = tuple(_STARTS)


def duplicate_name(what: str) -> tuple[str, str]:
    """Use a name that is in flight: the others submit it only when rank 0 has tried it twice."""
    tensor = torch.ones(6)
    if hvd.rank() != 0:
        hvd.barrier()
    first = _STARTS[what](tensor)
    kind = message = ""
    if hvd.rank() == 0:
        try:
            _STARTS[what](tensor)
        except ValueError as error:
            kind, message = type(error).__name__, str(error)
        hvd.barrier()
    hvd.synchronize(first)
    total = hvd.allreduce(torch.ones(3), name="after", op=hvd.Sum)
    assert torch.equal(total, torch.full((3,), float(hvd.size()))), "the job is not usable"
    return kind, message


def until_failure() -> tuple[str, str, float]:
    """Reduce until the job fails; return the error and when it was raised."""
    tensor = torch.ones(1000)
    try:
        while True:
            hvd.allreduce(tensor, name="loop")
    except RuntimeFailure as error:
        return type(error).__name__, str(error), time.monotonic()


def after_failure() -> tuple[str, float]:
    """Submit after the job has failed; return the error and how long it took."""
    begin = time.monotonic()
    try:
        hvd.allreduce(torch.ones(3))
    except RuntimeFailure as error:
        return type(error).__name__, time.monotonic() - begin
    return "", 0.0


def wait_for_all(name: str, patience_s: float = 0.0) -> list[float]:
    """Reduce one tensor, perhaps after a pause."""
    time.sleep(patience_s)
    found: list[float] = hvd.allreduce(torch.ones(2), name=name, op=hvd.Sum).tolist()
    return found


def submit_only(name: str) -> int:
    return hvd.allreduce_async(torch.ones(2), name=name, op=hvd.Sum)


def finish(handle: int) -> list[float]:
    found: list[float] = hvd.synchronize(handle).tolist()
    return found


def interrupted_wait(name: str) -> float:
    """Wait for an operation that others do not submit until Ctrl-C; return when it came through.

    From when it says that it waits on stderr on, Ctrl-C may come.
    """
    handle = hvd.allreduce_async(torch.ones(2), name=name, op=hvd.Sum)
    with contextlib.suppress(KeyboardInterrupt):
        os.write(2, b"waiting\n")
        hvd.synchronize(handle)
        raise AssertionError("the wait ended by itself")
    at = time.monotonic()
    _kept.append(handle)
    return at


def finish_kept() -> list[float]:
    return finish(_kept.pop())


_kept: list[int] = []


def cpu_while_idle(seconds: float) -> float:
    """Return the share of one core this process uses while it does nothing."""
    hvd.allreduce(torch.ones(10), name="before")
    time.sleep(0.3)
    begin, cpu = time.monotonic(), time.process_time()
    time.sleep(seconds)
    return (time.process_time() - cpu) / (time.monotonic() - begin)


def leave(delay_s: float) -> float:
    """Shut down after a pause; return how long the shutdown took."""
    hvd.allreduce(torch.ones(1), name="together")
    time.sleep(delay_s)
    begin = time.monotonic()
    hvd.shutdown()
    return time.monotonic() - begin


def many_sessions(rounds: int) -> list[float]:
    """Init and shut down again and again."""
    found = []
    for _ in range(rounds):
        hvd.init()
        found.append(float(hvd.allreduce(torch.ones(1), op=hvd.Sum).item()))
        hvd.shutdown()
    return found


def join_and_sum() -> tuple[int, int, float]:
    """Join whatever job the environment describes."""
    hvd.init()
    total = float(hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum).item())
    result = hvd.rank(), hvd.size(), total
    hvd.shutdown()
    return result
