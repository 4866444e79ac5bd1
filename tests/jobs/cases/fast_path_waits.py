"""What ranks do in the tests of the fast path of every collective: waits that last, ranks that fail, sets, records."""

from __future__ import annotations

import glob
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

import ringtune.torch as hvd
from ringtune import session
from ringtune.errors import InvalidArgument, Mismatch, RingtuneError
from tests.jobs.cases.fast_path import _wait_for, frames
from tests.jobs.cases.fast_path_kinds import CALLS, REPEATS, call_usual, expect, expected, given, parts_of, usual

SHAPE = (6, 400)
_OF_SETS = ["process_set_id"]
"""What repeated calls on a set of some ranks enter: it may have another number since."""


def call_any(kind: str, name: str, number: int) -> Any:
    """Make a call of any kind, a barrier among them, and see that it is right."""
    if kind == "barrier":
        hvd.barrier()
    else:
        call_usual(kind, name, number, SHAPE)


def late(kind: str, folder: str, large: bool) -> int:
    """Rank 0 waits for the others, who come when another thread of it has run for 300 ms; return its turns.

    Args:
        kind: Which collective.
        folder: Where rank 0 says so.
        large: Tensors of 3 MiB.
    """
    shape = (6, 1 << 17) if large else SHAPE
    for number in range(5):
        hvd.barrier() if kind == "barrier" else call_usual(kind, f"late.{kind}.{large}", number, shape)
    turns, enough = 0, f"{folder}/enough"

    def run() -> None:
        nonlocal turns
        begin = time.monotonic()
        while turns < 20 or time.monotonic() < begin + 0.3:
            turns += 1
            time.sleep(0.001)
        open(enough, "x").close()

    thread = threading.Thread(target=run)
    if hvd.rank() == 0:
        thread.start()
    else:
        _wait_for(enough)
    hvd.barrier() if kind == "barrier" else call_usual(kind, f"late.{kind}.{large}", 6, shape)
    if hvd.rank() == 0:
        assert os.path.exists(enough), "done before the others came"
        thread.join()
    for number in range(5):
        call_any(kind, f"late.{kind}", number)
    return turns


def rows_while_late(folder: str) -> None:
    """A late rank brings more rows than before, or none."""
    for number, rows in enumerate([3, 3, 3, 7, 0]):
        parts = [given(0, number, (3, 5)), given(1, number, (rows, 5))]
        ready = f"{folder}/{number}"
        if hvd.rank() == 0:
            threading.Timer(0.2, lambda file=ready: open(file, "x").close()).start()
        else:
            _wait_for(ready)
        expect(hvd.allgather(parts[hvd.rank()], name="rows.late"), torch.cat(parts))


def _interrupt_after(seconds: float) -> None:
    while not session.require().open_operations:
        time.sleep(0.001)
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGINT)


def _is_interrupted(call: Callable[[], Any], after_s: float) -> bool:
    sender = threading.Thread(target=_interrupt_after, args=(after_s,))
    try:
        sender.start()
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sender.join()
    return False


def interrupted(kind: str, after_s: float, folder: str) -> dict[str, Any]:
    """SIGINT ends the wait of rank 0, not the operation, which goes on and writes into nobody else's memory.

    Args:
        kind: Which collective.
        after_s: When the signal comes, counted from when the operation is under way.
        folder: Where rank 0 says that it has been interrupted.
    """
    for number in range(10):
        call_any(kind, "interrupted", number)
    tensor, found = given(hvd.rank(), 11, SHAPE), {"interrupted": True, "after_s": 0.0, "damaged": 0}
    call = hvd.barrier if kind == "barrier" else lambda: CALLS[kind](tensor, name="interrupted", **usual(kind))
    noticed, others = f"{folder}/noticed", []
    if hvd.rank() == 0:
        begin = time.monotonic()
        found["interrupted"] = _is_interrupted(call, after_s)
        found["after_s"] = time.monotonic() - begin
        others = [torch.full((rows, 400), -1.0) for rows in (3, 6, 12) for _ in range(20)]
        open(noticed, "x").close()
    else:
        _wait_for(noticed)
        result: Any = call()
        if kind != "barrier":
            expect(result, expected(kind, parts_of(11, SHAPE), hvd.rank(), usual(kind)))
    # Of other names and kinds, and enough of them for the one that was left to have ended.
    for _ in range(5):
        assert hvd.allreduce_(torch.ones(4), name="after", op=hvd.Sum).tolist() == [hvd.size()] * 4
    found["damaged"] = sum(not torch.equal(one, torch.full_like(one, -1.0)) for one in others)
    for number in range(10):
        call_any(kind, "interrupted", number)
    return found


def _told(kind: str, name: str, tensor: torch.Tensor) -> str:
    try:
        CALLS[kind](tensor, name=name, **usual(kind))
    except Mismatch as error:
        return str(error).replace(name, "NAME")
    return "nothing"


def mismatch(kind: str) -> list[list[str]]:
    """Return what ranks that disagree learn where no call came before, and where 20 did: about dtype and shape."""
    found = []
    for what in ("dtype", "columns"):
        other = {"dtype": torch.ones(6, 4, dtype=torch.int64), "columns": torch.ones(6, 3)}[what]
        tensor = other if hvd.rank() else torch.ones(6, 4)
        messages = [_told(kind, f"mismatch.{kind}.{what}.new", tensor)]
        for number in range(REPEATS):
            call_usual(kind, f"mismatch.{kind}.{what}", number)
        messages.append(_told(kind, f"mismatch.{kind}.{what}", tensor))
        for number in range(REPEATS):
            call_usual(kind, f"mismatch.{kind}.{what}", number)
        found.append(messages)
    return found


def in_flight_twice(kind: str) -> str:
    """On rank 0 a name is in flight until the others come: a call with it is refused, the first goes on."""
    name = f"twice.{kind}"
    start = getattr(hvd, "broadcast_async_" if kind == "broadcast_" else f"{kind}_async")
    for number in range(5):
        call_usual(kind, name, number)
    if hvd.rank() != 0:
        hvd.barrier()
    message, parts = "", parts_of(6, (6, 4))
    handle = start(parts[hvd.rank()].clone(), name=name, **usual(kind))
    if hvd.rank() == 0:
        try:
            call_usual(kind, name, 7)
        except InvalidArgument as error:
            message = str(error)
        hvd.barrier()
    found = hvd.synchronize(handle)
    expect(found[0] if kind == "alltoall" else found, expected(kind, parts, hvd.rank(), usual(kind)))
    call_usual(kind, name, 8)
    return message


def again_after_shutdown() -> list[str]:
    """After shutdown nothing of the fast path is left; after init it comes back. Return what was raised."""
    found = []
    for _ in range(2):
        for kind in (*CALLS, "barrier"):
            for number in range(3):
                call_any(kind, f"again.{kind}", number)
        hvd.shutdown()
        for kind, call in CALLS.items():
            how = {"root_rank": 1} if kind.startswith("broadcast") else {}
            found.append(_raised(lambda c=call, k=kind, h=how: c(torch.ones(6, 4), name=f"again.{k}", **h)))  # type: ignore[misc]
        found.append(_raised(hvd.barrier))
        hvd.init()
    return found


def _raised(call: Callable[[], Any]) -> str:
    try:
        call()
    except (RingtuneError, TypeError) as error:
        return type(error).__name__
    return "nothing"


def in_sets(kind: str) -> None:
    """Calls on a set of some ranks repeat themselves; those of all ranks under the same name are others."""
    members = hvd.add_process_set([0, 2])
    how = usual(kind) | {"process_set": members}
    for number in range(12):
        if number % 4 == 0:
            call_usual(kind, f"set.{kind}", number)
        if not members.included():
            continue
        parts, index = [given(rank, number, (6, 4)) for rank in (0, 2)], hvd.rank() // 2
        results: list[Any] = []
        tensor = parts[index].clone()
        entered = frames(lambda t=tensor, r=results: r.append(CALLS[kind](t, name=f"set.{kind}", **how)))  # type: ignore[misc]
        expect(results[0], expected(kind, parts, index, how | {"root_rank": 1}))  # the root's index in the set
        assert (entered == _OF_SETS) == (number % 4 != 0), (number, entered)
    hvd.remove_process_set(members)


def barriers_in_sets() -> None:
    """Repeated barriers of a set take the fast path; only its members wait for one another."""
    members = hvd.add_process_set([0, 2])
    if members.included():
        for number in range(5):
            entered = frames(lambda: hvd.barrier(members))
            assert number == 0 or entered == _OF_SETS, entered
    hvd.barrier()
    hvd.remove_process_set(members)


def sets_come_and_go() -> list[str]:
    """A set that was removed is unknown, also when another has its number; with a new number it works again."""
    found, members, other = [], hvd.ProcessSet([0, 1]), hvd.ProcessSet([2])
    calls: list[Callable[[], Any]] = [lambda: hvd.barrier(members)]
    for kind, call in CALLS.items():
        how = {"root_rank": 1} if kind.startswith("broadcast") else {}
        calls.append(lambda c=call, k=kind, h=how: c(torch.ones(6, 4), name=f"go.{k}", process_set=members, **h))  # type: ignore[misc]
    for turn in range(2):
        hvd.add_process_set(members)
        for call in calls if members.included() else []:
            assert len(frames(call)) > 1 or turn > 0  # the set has its number again
            assert frames(call) == frames(call) == _OF_SETS
        hvd.remove_process_set(members)
        found += [_raised(call) for call in calls]
        hvd.add_process_set(other)  # takes the number
        found += [_raised(call) for call in calls]
        hvd.remove_process_set(other)
    return found


def killed(kind: str, victim: int) -> dict[str, Any]:
    """A rank dies among repeated calls; return how the others learn of it, and how long after their last call."""
    begin = time.monotonic()
    try:
        for number in range(100_000):
            if hvd.rank() == victim and number == 50:
                os.kill(os.getpid(), signal.SIGKILL)
            call_any(kind, "killed", 3)
            begin = time.monotonic()
    except RingtuneError as error:
        return {"kind": type(error).__name__, "after_s": time.monotonic() - begin}
    return {"kind": "none", "after_s": 0.0}


def counted(kind: str, folder: str) -> dict[str, Any]:
    """Return what counters say of 50 calls, and the timeline of 10."""
    now, tensor, name = session.require(), torch.ones(6, 4), f"counted.{kind}"
    call = hvd.barrier if kind == "barrier" else lambda: CALLS[kind](tensor, name=name, **usual(kind))
    for _ in range(REPEATS):
        call()
    before = now.counters()
    for _ in range(50):
        call()
    after = now.counters()
    path = f"{folder}/{kind}-{hvd.rank()}"
    now.start_part(f"{path}.spans")
    for _ in range(10):
        call()
    now.stop_part()
    (timeline,) = glob.glob(f"{path}*.spans")  # numbered when the session has had others
    changes: dict[str, Any] = {key: after[key] - before[key] for key in after}
    return changes | {"timeline": timeline}


def many_threads() -> None:
    """Threads repeat calls of their own kinds and names at the same time; every result is checked."""
    wrong: list[BaseException] = []

    def run(kind: str) -> None:
        try:
            for number in range(60):
                tensor = given(hvd.rank(), number, (6, 4))
                result = CALLS[kind](tensor, name=f"thread.{kind}", **usual(kind))
                expect(result, expected(kind, parts_of(number, (6, 4)), hvd.rank(), usual(kind)))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(kind,)) for kind in CALLS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        raise wrong[0]


def a_barrier_waits(folder: str) -> None:
    """Who comes out of a repeated barrier knows that all have come into it."""
    for number in range(REPEATS):
        late = number % hvd.size()
        if hvd.rank() == late:
            open(f"{folder}/{number}", "x").close()
        hvd.barrier()
        assert os.path.exists(f"{folder}/{number}"), number
