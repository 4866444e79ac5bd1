"""What ranks do in the tests of ``out=``: results that go into tensors of the caller's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import ringtune.torch as hvd
from tests.jobs.cases.fast_path import fill, frames, messages_of, total

Call = Callable[..., Any]

CALLS: dict[str, Call] = {
    "allgather": lambda tensor, name, **how: hvd.allgather(tensor, name=name, **how),
    "alltoall": lambda tensor, name, **how: hvd.alltoall(tensor, name=name, **how),
    "reducescatter": lambda tensor, name, **how: hvd.reducescatter(tensor, name=name, op=hvd.Sum, **how),
}
_ROWS = 6
"""Of what a rank gives: all sizes of jobs in the tests divide it."""


def _expected(what: str, number: int) -> torch.Tensor:
    size = hvd.size()
    if what == "reducescatter":
        return torch.full((_ROWS // size, 5), float(total(number)))
    rows = _ROWS if what == "allgather" else _ROWS // size
    return torch.cat([torch.full((rows, 5), float(rank + 1 + number)) for rank in range(size)])


def repeated(what: str) -> None:
    """Results lie where they are to, and calls that repeat themselves enter no function of ringtune."""
    call = CALLS[what]
    for number in range(20):
        tensor = fill(torch.empty(_ROWS, 5), number)
        out = torch.zeros_like(_expected(what, number))
        results: list[torch.Tensor] = []
        entered = frames(lambda t=tensor, o=out, r=results: r.append(call(t, f"out.{what}", out=o)))  # type: ignore[misc]
        assert results[0] is out
        assert torch.equal(out, _expected(what, number)), number
        assert torch.equal(tensor, fill(torch.empty(_ROWS, 5), number))
        assert (set(entered) <= {"<lambda>"}) == (number > 0), (number, entered)
        fresh = call(tensor, f"out.{what}")  # the same call with a new tensor is alike
        assert fresh is not out and torch.equal(fresh, out)


_AWKWARD: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda like: torch.zeros(like.shape[1], like.shape[0]).t(),
    "part of a storage": lambda like: torch.zeros(like.shape[0] + 3, like.shape[1])[3:],
    "every second column": lambda like: torch.zeros(like.shape[0], 2 * like.shape[1])[:, ::2],
}
AWKWARD = tuple(_AWKWARD)


def awkward(what: str, kind: str) -> None:
    """Tensors that lie oddly in memory are filled all the same."""
    for number in range(6):
        out = _AWKWARD[kind](_expected(what, number))
        assert CALLS[what](fill(torch.empty(_ROWS, 5), number), f"awkward.{what}.{kind}", out=out) is out
        assert torch.equal(out, _expected(what, number)), number


def overlapping(what: str) -> None:
    """A result that overlaps what was sent is right."""
    for number in range(6):
        expected = _expected(what, number)
        memory = torch.zeros(_ROWS + len(expected), 5)
        tensor, out = fill(memory[:_ROWS], number), memory[2 : 2 + len(expected)]
        CALLS[what](tensor, f"overlap.{what}", out=out)
        assert torch.equal(out, expected), number


def refused(what: str) -> list[str]:
    """What cannot be: in words, on the rank that asks for it; the calls after it are right."""
    call, like = CALLS[what], _expected(what, 0)
    tensor = fill(torch.empty(_ROWS, 5))
    grows = tensor.clone().requires_grad_()
    for _ in range(3):
        call(tensor, f"refused.{what}", out=torch.empty_like(like))
    messages = messages_of(
        [
            lambda: call(tensor, f"refused.{what}", out=torch.empty(len(like) + 1, 5)),
            lambda: call(tensor, f"refused.{what}", out=torch.empty_like(like, dtype=torch.float64)),
            lambda: call(grows, f"refused.{what}", out=torch.empty_like(like)),
            lambda: call(tensor, f"refused.{what}", out=torch.empty_like(like).requires_grad_()),
            lambda: call(tensor, f"refused.{what}", torch.empty_like(like)),
        ]
    )
    with torch.no_grad():
        assert torch.equal(call(grows, f"refused.{what}", out=torch.empty_like(like)), like)
    return messages


def changing_rows() -> list[str]:
    """Rows of another rank change from call to call: only a result that fits is written."""
    messages: list[str] = []
    for number in range(8):
        rows = 2 + (number % 3 if hvd.rank() > 0 else 0)
        out = torch.zeros(2 + 2 * (hvd.size() - 1), 3)
        found = messages_of([lambda r=rows, o=out: hvd.allgather(fill(torch.empty(r, 3)), name="rows", out=o)])  # type: ignore[misc]
        messages += found
        if found == ["nothing"]:
            expected = [torch.full((2, 3), float(rank + 1)) for rank in range(hvd.size())]
            assert number % 3 == 0 and torch.equal(out, torch.cat(expected))
    return messages


def with_splits() -> None:
    """Rows that the ranks share unequally, into memory that is at hand."""
    rank, size = hvd.rank(), hvd.size()
    splits = [to + 1 for to in range(size)]
    out = torch.zeros(size * (rank + 1))
    result, received = hvd.alltoall(fill(torch.empty(sum(splits))), splits, name="split", out=out)
    assert result is out and received.tolist() == [rank + 1] * size
    assert out.tolist() == [float(source + 1) for source in range(size) for _ in range(rank + 1)]
