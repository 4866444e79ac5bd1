"""What ranks do in the tests of the fast path of every collective: repeated calls, and those not quite alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import ringtune.torch as hvd
from tests.jobs.cases.fast_path import Subclass, frames

CALLS: dict[str, Callable[..., Any]] = {
    "allreduce": hvd.allreduce,
    "broadcast": hvd.broadcast,
    "broadcast_": hvd.broadcast_,
    "allgather": hvd.allgather,
    "alltoall": hvd.alltoall,
    "reducescatter": hvd.reducescatter,
}
REDUCING = ("allreduce", "reducescatter")
DTYPES = {"float32": torch.float32, "int32": torch.int32, "bfloat16": torch.bfloat16, "bool": torch.bool}

REPEATS = 20
LARGE_BYTES = 1 << 20
"""Memory of results from this size on is used again, which Python code sees to."""
_MAKES_LARGE = {"_large_like", "require", "_adopt"}


def usual(kind: str) -> dict[str, Any]:
    """Return the arguments of the calls that repeat themselves, but for tensor and name."""
    if kind in REDUCING:
        return {"op": hvd.Sum}
    return {"root_rank": hvd.size() - 1} if kind.startswith("broadcast") else {}


def given(rank: int, number: int, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return what a rank gives to a call: small integers, so that sums are exact in every dtype."""
    index, count = torch.arange(1010), torch.Size(shape).numel()  # a multiple of 2 and 5: it can be repeated
    values = (index + rank + number) % 2 if dtype is torch.bool else index % 5 + 2 * rank + number % 7
    return values.to(dtype).repeat(count // 1010 + 1)[:count].clone().reshape(tuple(shape))


def parts_of(number: int, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Return what all ranks give."""
    return [given(rank, number, shape, dtype) for rank in range(hvd.size())]


def rows_from(parts: Sequence[torch.Tensor], index: int, splits: Sequence[Sequence[int]] | None = None) -> torch.Tensor:
    """Return what the member at an index gets of an alltoall; `splits`: of each member."""
    size = len(parts)
    found = []
    for member, part in enumerate(parts):
        rows = [part.shape[0] // size] * size if splits is None else list(splits[member])
        begin = sum(rows[:index])
        found.append(part[begin : begin + rows[index]])
    return torch.cat(found)


def reduced(parts: Sequence[torch.Tensor], how: dict[str, Any]) -> torch.Tensor:
    """Return what a reduction of all parts is."""
    stacked, size = torch.stack(list(parts)), len(parts)
    if how.get("op") == hvd.Max:
        return stacked.amax(0)
    summed: torch.Tensor = (
        stacked.sum(0).to(stacked.dtype) * how.get("prescale_factor", 1) * how.get("postscale_factor", 1)
    )
    return summed / size if how.get("op", hvd.Average) == hvd.Average else summed


def expected(kind: str, parts: Sequence[torch.Tensor], index: int, how: dict[str, Any]) -> torch.Tensor:
    """Return what the member at an index gets; parts in order of the members, a root counted among them."""
    size = len(parts)
    if kind.startswith("broadcast"):
        root: int = how["root_rank"]
        return parts[root]
    if kind == "allgather":
        return torch.cat(list(parts))
    if kind == "alltoall":
        return rows_from(parts, index)
    whole = reduced(parts, how)
    if kind == "allreduce":
        return whole
    rows = [whole.shape[0] // size + (member < whole.shape[0] % size) for member in range(size)]
    return whole[sum(rows[:index]) : sum(rows[: index + 1])]


def expect(result: torch.Tensor, want: torch.Tensor) -> None:
    assert result.dtype == want.dtype and result.shape == want.shape, (result.dtype, result.shape, want.shape)
    assert torch.equal(result.detach().as_subclass(torch.Tensor), want), (result, want)


def call_usual(kind: str, name: str, number: int, shape: Sequence[int] = (6, 4)) -> list[str]:
    """Make one of the calls that repeat themselves and see that it is right; return what it entered."""
    tensor, how, results = given(hvd.rank(), number, shape), usual(kind), []
    entered = frames(lambda: results.append(CALLS[kind](tensor, name=name, **how)))
    expect(results[0], expected(kind, parts_of(number, shape), hvd.rank(), how))
    return entered


def shapes_of(kind: str, dtype: torch.dtype) -> list[tuple[int, ...]]:
    """Return a small shape, one beyond what is moved while the interpreter is held, and one of 3 MiB."""
    large = ((3 << 20) // dtype.itemsize,)
    return [(6, 5), (70_002,), large] if kind == "alltoall" else [(3, 5), (70_000,), large]


def repeated(kind: str, dtype: str) -> None:
    """Calls that repeat themselves enter no function of ringtune; their results are right, and stay so."""
    how = usual(kind)
    for shape in shapes_of(kind, DTYPES[dtype]):
        name = f"repeated.{kind}.{dtype}.{shape}"
        held: list[tuple[torch.Tensor, torch.Tensor]] = []
        for number in range(REPEATS):
            parts = parts_of(number, shape, DTYPES[dtype])
            results: list[Any] = []
            tensor = parts[hvd.rank()].clone()
            entered = frames(lambda t=tensor, r=results, n=name: r.append(CALLS[kind](t, name=n, **how)))  # type: ignore[misc]
            want = expected(kind, parts, hvd.rank(), how)
            held.append((results[0], want))
            large = want.nbytes >= LARGE_BYTES
            assert number == 0 or set(entered) <= (_MAKES_LARGE if large else set()), (shape, number, entered)
            assert (results[0] is tensor) == (kind == "broadcast_")
            assert kind == "broadcast_" or torch.equal(tensor, parts[hvd.rank()])
            held = held[-3:] if large else held
            for result, value in held:
                expect(result, value)
        assert len({result.data_ptr() for result, _ in held}) == len(held)


def odd_shapes(kind: str) -> None:
    """Dimensions of one, of many, and of which not every rank gets a row, take the fast path too."""
    shapes = [(6, 1), (6, 1, 1, 2), (1, 6) if kind != "alltoall" else (12, 6), (6, 2, 1, 3, 1)]
    for shape in shapes:
        for number in range(4):
            entered = call_usual(kind, f"odd.{kind}.{shape}", number, shape)
            without = kind == "reducescatter" and shape[0] <= hvd.rank()  # nothing for this rank: no result to make
            assert number == 0 or without or entered == [], (shape, entered)


def barriers() -> None:
    """Repeated barriers enter no function of ringtune, with the set of all ranks given or not."""
    for number in range(REPEATS):
        entered = frames(hvd.barrier) if number % 2 else frames(lambda: hvd.barrier(process_set=hvd.global_process_set))
        assert number == 0 or entered == [], (number, entered)


_ALL = tuple(CALLS)
_MAKE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "double": lambda values: values.double(),
    "integers": lambda values: values.to(torch.int64),
    "transposed": lambda values: values.t().contiguous().t(),
    "every second column": lambda values: values.repeat_interleave(2, dim=1)[:, ::2],
    "subclass": lambda values: values.clone().as_subclass(Subclass),
    "longer": lambda values: torch.cat([values, values]),
    "wider": lambda values: torch.cat([values, values], 1),
    "flat": lambda values: values.reshape(-1),
    "third dimension": lambda values: values.reshape(6, 2, 2),
}
_HOW: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "root": (("broadcast", "broadcast_"), {"root_rank": 0}),
    "maximum": (("allreduce",), {"op": hvd.Max}),
    "average": (REDUCING, {"op": hvd.Average}),
    "prescale": (REDUCING, {"prescale_factor": 2.0}),
    "postscale": (REDUCING, {"postscale_factor": 0.5}),
    "factor of another type": (REDUCING, {"prescale_factor": 1}),
    "half": (REDUCING, {"compression": hvd.Compression.fp16}),
    "no name": (_ALL, {"name": None}),
}
UNLIKE = [(kind, what) for what in _MAKE for kind in _ALL]
UNLIKE += [(kind, what) for what, (kinds, _) in _HOW.items() for kind in kinds]


def unlike(kind: str, what: str) -> list[str]:
    """A call that differs from the ones before goes the long way and is right; return what it entered."""
    name = f"unlike.{kind}.{what}"
    for number in range(5):
        call_usual(kind, name, number)
    make, more = _MAKE.get(what, torch.clone), _HOW.get(what, ((), {}))[1]
    how = usual(kind) | more
    parts = [make(part) for part in parts_of(7, (6, 4))]
    before, results = parts[hvd.rank()].clone(), []
    mine = parts[hvd.rank()]
    entered = frames(lambda: results.append(CALLS[kind](mine, **({"name": name} | how))))
    assert kind == "broadcast_" or torch.equal(parts[hvd.rank()], before)
    originals = [make(part).as_subclass(torch.Tensor).contiguous() for part in parts_of(7, (6, 4))]
    expect(results[0], expected(kind, originals, hvd.rank(), how))
    assert (results[0] is parts[hvd.rank()]) == (kind == "broadcast_")
    call_usual(kind, name, 8)
    assert call_usual(kind, name, 9) == []
    return entered


def splits_differ() -> None:
    """An alltoall with splits, as a list or a tensor, under a name whose calls had none, is no repetition of them."""
    name, size, rank = "splits", hvd.size(), hvd.rank()
    uneven = [[member + 1 if to == 0 else 1 for to in range(size)] for member in range(size)]
    for number in range(12):
        call_usual("alltoall", name, number)
        mine: Any = uneven[rank] if number % 2 else torch.tensor(uneven[rank], dtype=torch.int32)
        results: list[Any] = []
        tensor = given(rank, number, (6, 4))
        entered = frames(lambda t=tensor, m=mine, r=results: r.append(hvd.alltoall(t, m, name=name)))  # type: ignore[misc]
        output, received = results[0]
        assert "alltoall" in entered
        expect(output, rows_from(parts_of(number, (6, 4)), rank, uneven))
        assert received.tolist() == [splits[rank] for splits in uneven]


def peer_splits() -> list[list[str]]:
    """Rank 0 calls alltoall without splits; others send it other numbers of rows each time. Return what it entered."""
    name, size, rank = "peer.splits", hvd.size(), hvd.rank()
    found, even = [], [6 // size] * size
    for number, rows in enumerate([6 // size, 6 // size, 1, 0, 5, 6 // size, 2, 2, 0, 0, 6, 3]):
        splits = [even] + [[rows] + [0] * (size - 1)] * (size - 1)
        results: list[Any] = []
        tensor = given(rank, number, (6, 4))
        with_splits = {"splits": splits[rank]} if rank else {}
        call = lambda t=tensor, r=results, s=with_splits: r.append(hvd.alltoall(t, name=name, **s))  # noqa: E731
        found.append(frames(call))
        output = results[0][0] if rank else results[0]
        expect(output, rows_from(parts_of(number, (6, 4)), rank, splits))
    return found


def peer_rows(own: int, others: Sequence[Sequence[int]]) -> list[list[str]]:
    """Rank 0 gathers the same number of rows each time, the others other ones; return what rank 0 entered.

    Args:
        own: Rows of rank 0.
        others: By call: rows of each other rank.
    """
    name, found = f"peer.rows.{own}.{len(others)}", []
    held: list[tuple[torch.Tensor, torch.Tensor]] = []
    for number, more in enumerate(others):
        parts = [given(rank, number, (rows, 5)) for rank, rows in enumerate([own, *more])]
        results: list[Any] = []
        tensor = parts[hvd.rank()]
        found.append(frames(lambda t=tensor, r=results: r.append(hvd.allgather(t, name=name))))  # type: ignore[misc]
        held.append((results[0], torch.cat(parts)))
        for result, want in held:
            expect(result, want)
    return found


def few_rows() -> None:
    """Of a reducescatter of fewer rows than ranks some get none, each time."""
    for number in range(REPEATS):
        entered = call_usual("reducescatter", "few", number, (hvd.size() - 1, 3))
        assert number == 0 or hvd.rank() == hvd.size() - 1 or entered == []


def half_repeated(kind: str) -> None:
    """Calls whose tensors travel as float16 repeat themselves, for tensors that are cast and others."""
    for dtype in (torch.float32, torch.float16, torch.int32):
        for number in range(6):
            parts = parts_of(number, (6, 4), dtype)
            how: dict[str, Any] = {"op": hvd.Sum, "compression": hvd.Compression.fp16}
            result = CALLS[kind](parts[hvd.rank()], name=f"half.{kind}.{dtype}", **how)
            expect(result, expected(kind, parts, hvd.rank(), how))


class Halved:
    """A compressor that needs to do nothing before the tensor travels, but something afterwards."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, float]:
        return tensor, 2.0

    @staticmethod
    def decompress(tensor: torch.Tensor, context: float) -> torch.Tensor:
        return tensor / context


def own_compressor(kind: str) -> None:
    """A compressor of the caller's own is asked each time."""
    for number in range(6):
        parts = parts_of(number, (6, 4))
        result = CALLS[kind](parts[hvd.rank()], name=f"own.{kind}", op=hvd.Sum, compression=Halved)
        expect(result, expected(kind, parts, hvd.rank(), {"op": hvd.Sum}) / 2)


def mixed(kind: str) -> None:
    """Ranks that take the fast path, and others that start the same and wait for it, are alike to each other."""
    start = getattr(hvd, "broadcast_async_" if kind == "broadcast_" else f"{kind}_async")
    for number in range(REPEATS):
        parts = parts_of(number, (6, 4))
        if (hvd.rank() + number // 4) % 2:
            call_usual(kind, f"mixed.{kind}", number)
            continue
        found = hvd.synchronize(start(parts[hvd.rank()].clone(), name=f"mixed.{kind}", **usual(kind)))
        expect(found[0] if kind == "alltoall" else found, expected(kind, parts, hvd.rank(), usual(kind)))


def gradients_of(kind: str) -> torch.Tensor:
    """Return the gradient of this rank's tensor when every element of rank r's result has the gradient r + 1."""
    size, rank = hvd.size(), hvd.rank()
    summed = float(sum(range(1, size + 1)))
    if kind == "allreduce":
        return torch.full((6, 4), summed)
    if kind == "allgather":
        return torch.full((6, 4), summed / size)
    if kind == "broadcast":
        return torch.full((6, 4), summed / size if rank == size - 1 else 0.0)
    shares = torch.arange(1.0, size + 1).repeat_interleave(6 // size)  # of rows, by who got them
    return (shares * (size if kind == "reducescatter" else 1))[:, None].expand(6, 4)


def grows(kind: str) -> None:
    """Gradients flow through a call that only its tensor's `requires_grad` tells from those before, where they may."""
    how = usual(kind)
    for number in range(4):
        call_usual(kind, f"grows.{kind}", number)
        results: list[Any] = []
        parts = parts_of(number, (6, 4))
        tensor = parts[hvd.rank()].clone().requires_grad_()
        call = lambda t=tensor, r=results: r.append(CALLS[kind](t, name=f"grows.{kind}", **how))  # noqa: E731
        assert kind in frames(call)
        expect(results[0], expected(kind, parts, hvd.rank(), usual(kind)))
        assert results[0].requires_grad
        results[0].backward(torch.full_like(results[0], hvd.rank() + 1.0))
        assert tensor.grad is not None
        expect(tensor.grad, gradients_of(kind))
        with torch.no_grad():
            call()
        assert not results[1].requires_grad
        expect(results[1], expected(kind, parts, hvd.rank(), usual(kind)))


def modes(kind: str) -> None:
    """What a call was in inference mode, or under another default device, is nothing to the calls after it."""
    made: list[Callable[[], Any]] = [torch.inference_mode, torch.no_grad, lambda: torch.device("meta")]
    for number, mode in enumerate(made):
        name = f"modes.{kind}.{number}"
        parts = parts_of(number, (6, 4))
        how = usual(kind)
        for _ in range(3):
            with mode():
                result = CALLS[kind](parts[hvd.rank()].clone(), name=name, **how)
            expect(result, expected(kind, parts, hvd.rank(), how))
        for again in range(3):
            tensor = given(hvd.rank(), number, (6, 4))
            result = CALLS[kind](tensor, name=name, **how)
            expect(result, expected(kind, parts, hvd.rank(), how))
            assert not result.is_inference() and result.device.type == "cpu", again
