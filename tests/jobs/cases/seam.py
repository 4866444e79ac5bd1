"""What ranks do in the tests of `Session.submit`."""

from __future__ import annotations

from array import array
from dataclasses import fields
from types import ModuleType
from typing import Any

import numpy as np

from ringtune import operations, session
from ringtune.errors import InvalidArgument, Mismatch, RingtuneError
from ringtune.operations import HOST, Allreduce, Operation

FLOAT32, SUM = 7, 1


def described(kind: str, name: str, source: np.ndarray[Any, Any], target: np.ndarray[Any, Any]) -> Operation:
    """Return an operation of that kind on arrays of float32, every field of it given."""
    known = {
        "name": name, "input": source.ctypes.data, "output": target.ctypes.data, "shape": source.shape,
        "dtype": FLOAT32, "op": SUM, "prescale": 1.0, "postscale": 1.0, "group": "", "group_size": 0,
        "process_set": 0, "wire": -1, "device": HOST, "timeout_ns": 0, "root": 0, "splits": (), "sparse": False,
        "ranks": [0, 1], "number": 1,
    }  # fmt: skip
    made = getattr(operations, kind)
    operation: Operation = made(**{field.name: known[field.name] for field in fields(made)})
    return operation


def refused(faults: list[tuple[str, str, Any]]) -> list[str]:
    """Give each kind of operation each wrong field; return what is said. All of it is said before anything starts."""
    now, said = session.require(), []
    source = np.ones(4, np.float32)
    before = now.open_operations
    for kind, name, value in faults:
        operation = described(kind, "wrong", source, source.copy())
        setattr(operation, name, value)
        try:
            now.release(now.submit(operation))
            said.append("")
        except RingtuneError as error:
            said.append(str(error))
    assert now.open_operations == before
    return said


def grouped(sizes: list[int]) -> list[tuple[str, str, int]]:
    """Reduce arrays of these sizes as a group; return how its members are called, after their results were right."""
    now = session.require()
    arrays = [np.full(size, now.rank + index, np.float32) for index, size in enumerate(sizes)]
    members = [Allreduce("", one.ctypes.data, one.ctypes.data, one.shape, FLOAT32, SUM) for one in arrays]
    for ticket in now.submit_group("several", members):
        now.wait(ticket)
        now.release(ticket)
    for index, one in enumerate(arrays):
        assert (one == sum(rank + index for rank in range(now.size))).all()
    return [(one.name, one.group, one.group_size) for one in members]


def no_group() -> None:
    """Submit a group of nothing."""
    try:
        session.require().submit_group("nobody", [])
    except InvalidArgument as error:
        assert str(error) == "group 'nobody' has no members, expected at least one"
        return
    raise AssertionError("a group without members was taken")


FOLLOWING: dict[str, tuple[int, ...]] = {
    "poll": (), "wait": (), "wait_for": (1,), "attend": (1,), "awaited": (1,), "output_of": (), "take_gathered": (),
    "received_splits": (), "gathered_shape": (), "deliver": (0, 0), "join_stream": (0,),
}  # fmt: skip
"""Methods that take a ticket, and what else they take."""


def follow(ticket: int) -> dict[str, str]:
    """Ask for a ticket that nothing belongs to, in every way; return what is raised."""
    now, raised = session.require(), {}
    for name, rest in FOLLOWING.items():
        try:
            getattr(now, name)(ticket, *rest)
        except RingtuneError as error:
            raised[name] = f"{type(error).__name__}: {error}"
    now.release(ticket)  # of what is over already there is nothing to say
    return raised


def front_end(source: str) -> tuple[str, str]:
    """Use the front end for `array.array` in a job of two ranks; return what it says of wrong calls."""
    module = ModuleType("array_front_end")
    exec(compile(source, "array_front_end.py", "exec"), module.__dict__)
    now: Any = module
    now.init()
    rank, size = now.rank(), now.size()
    assert size == 2

    mine = array("f", [rank + 1.0, 2.0 * rank])
    assert now.allreduce(mine, name="mean") == array("f", [1.5, 1.0])
    assert now.allreduce(mine, op=now.Max) == array("f", [2.0, 2.0])
    kept = now.allreduce_async(array("q", [rank, 1 << 40]), op=now.Sum)  # nobody else holds the array
    assert now.synchronize(kept) == array("q", [1, 1 << 41])
    group = [array("i", [rank] * count) for count in (1, 0, 5)]
    assert now.grouped_allreduce(group, op=now.Sum) == [array("i", [1] * count) for count in (1, 0, 5)]
    assert now.broadcast(array("d", [rank + 0.5]), 1) == array("d", [1.5])
    assert now.reducescatter(array("h", [rank, 1, 2]), op=now.Sum) == array("h", [[1, 2], [4]][rank])
    assert now.allgather(array("b", [rank] * (rank + 1))) == array("b", [0, 1, 1])
    rows, received = now.alltoall(array("B", [10 * rank, 10 * rank + 1, 10 * rank + 2]), splits=[1, 2])
    assert (rows, received) == ([array("B", [0, 10]), array("B", [1, 2, 11, 12])][rank], [[1, 1], [2, 2]][rank])
    now.barrier()
    assert now.join() in (0, 1)

    said = []
    for wrong in (lambda: now.allreduce([1.0, 2.0]), lambda: now.synchronize(kept)):
        try:
            wrong()
        except InvalidArgument as error:
            said.append(str(error))
    try:
        now.allreduce(array("f", [1.0] * (rank + 1)), name="other")
    except Mismatch as error:
        said.append(str(error))
    assert now.handles._table == {} and session.require().open_operations == 0
    wrong_array, unknown_handle, mismatch = said
    assert "Handle" in unknown_handle
    return wrong_array, mismatch
