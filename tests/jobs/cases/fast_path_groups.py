"""What ranks do in the tests of the fast path of groups: those that repeat themselves, and what is not quite alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import ringtune.torch as hvd
from ringtune.errors import InvalidArgument, Mismatch, RingtuneError
from tests.jobs.cases.fast_path import Subclass, fill, frames, messages_of, total

_KINDS = ((3, 5), torch.float32), ((4,), torch.int64), ((2, 2), torch.float32), ((), torch.float64)


def tensors(number: int = 0) -> list[torch.Tensor]:
    """Return new tensors of several shapes and dtypes, filled."""
    return [fill(torch.empty(shape, dtype=dtype), number) for shape, dtype in _KINDS]


def reduced(group: Sequence[torch.Tensor], name: str, **how: Any) -> Any:
    """Reduce a group in place and return what `synchronize` does."""
    return hvd.synchronize(hvd.grouped_allreduce_async_(group, name=name, **how))


def expect(group: Sequence[torch.Tensor], value: float) -> None:
    for tensor in group:
        assert torch.equal(tensor, torch.full_like(tensor, value)), (tensor, value)


def alike(blocking: bool) -> None:
    """Groups that repeat themselves enter no function of ringtune, and return the tensors themselves."""
    name = f"group.alike.{blocking}"
    for number in range(30):
        group = tensors(number)  # other tensors, other addresses, the same shapes
        given = tuple(group) if number % 2 else group
        results: list[Any] = []
        if blocking:
            entered = frames(lambda g=given, r=results: r.append(hvd.grouped_allreduce_(g, name=name, op=hvd.Sum)))  # type: ignore[misc]
        else:
            entered = frames(lambda g=given, r=results: r.append(reduced(g, name, op=hvd.Sum)))  # type: ignore[misc]
        assert all(one is tensor for one, tensor in zip(results[0], group, strict=True))
        expect(group, total(number))
        assert (set(entered) <= {"reduced", "grouped_allreduce_", "at_once"}) == (number > 0), (number, entered)


def _of(change: Callable[[list[torch.Tensor]], Any]) -> Callable[[], Any]:
    return lambda: change(tensors())


_UNLIKE: dict[str, tuple[Callable[[], Any], dict[str, Any], Callable[[int], float]]] = {
    "fewer": (_of(lambda g: g[:-1]), {"op": hvd.Sum}, lambda _: total()),
    "more": (_of(lambda g: [*g, fill(torch.empty(2))]), {"op": hvd.Sum}, lambda _: total()),
    "order": (_of(lambda g: g[::-1]), {"op": hvd.Sum}, lambda _: total()),
    "shape": (_of(lambda g: [fill(torch.empty(5, 3)), *g[1:]]), {"op": hvd.Sum}, lambda _: total()),
    "dtype": (_of(lambda g: [*g[:-1], fill(torch.empty(()))]), {"op": hvd.Sum}, lambda _: total()),
    "transposed": (_of(lambda g: [fill(torch.empty(5, 3).t()), *g[1:]]), {"op": hvd.Sum}, lambda _: total()),
    "subclass": (_of(lambda g: [g[0].as_subclass(Subclass), *g[1:]]), {"op": hvd.Sum}, lambda _: total()),
    "operation": (tensors, {"op": hvd.Max}, float),
    "factor": (tensors, {"op": hvd.Sum, "postscale_factor": 2.0}, lambda _: 2 * total()),
}
UNLIKE = tuple(_UNLIKE)


def unlike(what: str) -> list[str]:
    """A group that differs from the one before goes the long way, with the right result; return what it entered."""
    name = f"group.unlike.{what}"
    for _ in range(5):
        reduced(tensors(), name, op=hvd.Sum)
    make, how, expected = _UNLIKE[what]
    group = make()
    entered = frames(lambda: reduced(group, name, **how))
    expect([one.as_subclass(torch.Tensor) for one in group], expected(hvd.size()))
    again = tensors()
    reduced(again, name, op=hvd.Sum)  # the one before is still right
    expect(again, total())
    return entered


def refused() -> list[str]:
    """What no call may ask for is refused as by the function behind the fast path; return the messages."""
    for _ in range(5):
        reduced(tensors(), "group.refused", op=hvd.Sum)
    group = tensors()
    calls: list[Callable[[], Any]] = [
        lambda: hvd.grouped_allreduce_async_(tensor=group, name="group.refused", op=hvd.Sum),
        lambda: hvd.grouped_allreduce_async_([], name="group.refused", op=hvd.Sum),
        lambda: hvd.grouped_allreduce_async_([torch.ones(3).to_sparse()], name="group.refused", op=hvd.Sum),
    ]
    messages = messages_of(calls)
    again = tensors()
    reduced(again, "group.refused", op=hvd.Sum)
    expect(again, total())
    return messages


def in_flight_twice() -> str:
    """On rank 0 a group is in flight until the others come: a second one is refused, and nothing of it is submitted."""
    for _ in range(5):
        reduced(tensors(), "group.twice", op=hvd.Sum)
    if hvd.rank() != 0:
        hvd.barrier()
    group, message = tensors(), ""
    handle = hvd.grouped_allreduce_async_(group, name="group.twice", op=hvd.Sum)
    if hvd.rank() == 0:
        assert not hvd.poll(handle)
        try:
            hvd.grouped_allreduce_async_(tensors(), name="group.twice", op=hvd.Sum)
        except InvalidArgument as error:
            message = str(error)
        hvd.barrier()
    while not hvd.poll(handle):
        pass
    hvd.synchronize(handle)
    expect(group, total())
    return message


def the_callers_list_is_the_callers() -> None:
    """What becomes of the list after the call is no matter."""
    for number in range(10):
        given = tensors(number)
        group = list(given)
        handle = hvd.grouped_allreduce_async_(given, name="group.list", op=hvd.Sum)
        given.clear()
        results = hvd.synchronize(handle)
        assert all(one is tensor for one, tensor in zip(results, group, strict=True))
        expect(group, total(number))


def disagree() -> str:
    """In the steady state one rank asks for something else in one of the tensors: all learn, and the job goes on."""
    for _ in range(20):
        reduced(tensors(), "group.disagree", op=hvd.Sum)
    group = tensors()
    if hvd.rank():
        group[2] = torch.ones(3, 3)
    message = ""
    try:
        reduced(group, "group.disagree", op=hvd.Sum)
    except Mismatch as error:
        message = str(error)
    for _ in range(20):
        again = tensors()
        reduced(again, "group.disagree", op=hvd.Sum)
        expect(again, total())
    return message


def again_after_shutdown() -> list[str]:
    """After shutdown nothing of the fast path is left; after init it comes back."""
    found = []
    for _ in range(2):
        for _ in range(5):
            reduced(tensors(), "group.again", op=hvd.Sum)
        hvd.shutdown()
        try:
            reduced(tensors(), "group.again", op=hvd.Sum)
        except RingtuneError as error:
            found.append(type(error).__name__)
        hvd.init()
        group = tensors()
        reduced(group, "group.again", op=hvd.Sum)
        expect(group, total())
    return found


def sets_come_and_go() -> list[str]:
    """A set that was removed is unknown to the fast path; under a new number it works again."""
    found = []
    members = hvd.ProcessSet(range(hvd.size() - 1))
    for _ in range(2):
        hvd.add_process_set(members)
        if members.included():
            for _ in range(5):
                group = tensors()
                reduced(group, "group.set", op=hvd.Sum, process_set=members)
                expect(group, sum(range(1, hvd.size())))
        hvd.remove_process_set(members)
        try:
            reduced(tensors(), "group.set", op=hvd.Sum, process_set=members)
        except TypeError as error:
            found.append(type(error).__name__)
    return found
