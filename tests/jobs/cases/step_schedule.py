"""What ranks do in the tests of the steady state: the same tensors step after step, and what breaks that."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import torch

import ringtune.torch as hvd
from ringtune import session
from ringtune.errors import RingtuneError


def control_traffic() -> tuple[int, int]:
    """Return the control messages of this rank since the start, and their bytes."""
    counters = session.require().counters()
    return int(counters["control_messages"]), int(counters["control_bytes"])


def step(number: int, tensors: int, count: int = 1000, skip: int = -1, order: list[int] | None = None) -> None:
    """One step: reduce tensors asynchronously; every element is checked."""
    rank, size = hvd.rank(), hvd.size()
    indices = [i for i in (order or list(range(tensors))) if i != skip]
    data = {i: torch.full((count + i,), float(rank + i + number)) for i in indices}
    handles = {i: hvd.allreduce_async_(data[i], name=f"plan.{i}", op=hvd.Sum) for i in indices}
    for i in sorted(indices):
        hvd.synchronize(handles[i])
        expected = size * (i + number) + size * (size - 1) // 2
        assert torch.equal(data[i], torch.full((count + i,), float(expected))), (number, i)


def steady(tensors: int, count: int = 1000, windows: int = 8, attempts: int = 20) -> list[tuple[int, int]]:
    """Return the control messages and bytes of each of some windows of 20 steps, until one has none on every rank."""
    return until_silent(lambda number: step(number, tensors, count=count), windows, attempts)


def blocking(windows: int = 8) -> list[tuple[int, int]]:
    """The same with one blocking call a step."""

    def one(number: int) -> None:
        tensor = torch.full((64,), float(hvd.rank() + number))
        hvd.allreduce_(tensor, name="blocking", op=hvd.Sum)
        assert tensor[5].item() == hvd.size() * number + hvd.size() * (hvd.size() - 1) // 2

    return until_silent(one, windows, attempts=20)


def every_collective(windows: int = 8) -> list[tuple[int, int]]:
    """The same with every kind of collective in each step; every element is checked."""
    return until_silent(_step_of_every_collective, windows, attempts=20)


def _step_of_every_collective(number: int) -> None:
    rank, size = hvd.rank(), hvd.size()
    step(number, 3)
    found = hvd.allgather(torch.full((rank + 1,), float(rank + number)), name="every.gather")
    assert found.tolist() == [float(r + number) for r in range(size) for _ in range(r + 1)]
    found = hvd.broadcast(torch.full((3,), float(rank + number)), size - 1, name="every.broadcast")
    assert found.tolist() == [size - 1.0 + number] * 3
    rows = torch.arange(float(size + 1)) + rank + number
    total = size * number + size * (size - 1) // 2
    mine = {0: [0.0, 1.0]}.get(rank, [rank + 1.0])
    assert hvd.reducescatter(rows, name="every.scatter", op=hvd.Sum).tolist() == [size * i + total for i in mine]
    splits = torch.tensor([(rank + to + number) % 3 for to in range(size)], dtype=torch.int32)
    found, came = hvd.alltoall(torch.full((2 * size,), float(rank)), splits, name="every.exchange")
    assert came.tolist() == [(of + rank + number) % 3 for of in range(size)]
    assert found.tolist() == [float(of) for of in range(size) for _ in range((of + rank + number) % 3)]
    if size & (size - 1) == 0:
        found = hvd.allreduce(torch.full((5,), float(number)), name="every.adasum", op=hvd.Adasum)
        assert found.tolist() == [float(number)] * 5
    hvd.barrier()


def until_silent(one: Callable[[int], None], windows: int, attempts: int) -> list[tuple[int, int]]:
    """Count some windows of 20 steps, and as many again, but not for ever, while no window of some rank was silent.

    A starved rank may break a plan at any time: how often the steps are tried is no matter, that they come to need no
    message is.
    """
    found = []
    for _ in range(attempts):
        found += [traffic_of(one) for _ in range(windows)]
        if hvd.allreduce(torch.tensor([int((0, 0) in found)]), name="plan.silent", op=hvd.Min).item():
            break
    return found


def traffic_of(one: Callable[[int], None]) -> tuple[int, int]:
    messages, size = control_traffic()
    for number in range(20):
        one(number)
    messages_now, size_now = control_traffic()
    return messages_now - messages, size_now - size


def enter_plan() -> bool:
    """Step until steps need no message; say whether that came. The last steps follow a plan unless a rank starves."""
    entered = (0, 0) in steady(4)
    traffic_of(lambda number: step(number, 4))
    return entered


def idle_in_the_plan(seconds: float) -> tuple[bool, float]:
    """Follow a plan, then do nothing; return whether it was followed, and processor seconds per second."""
    in_plan = enter_plan()
    hvd.barrier()
    in_plan = enter_plan() and in_plan
    time.sleep(0.3)
    begin = time.process_time()
    time.sleep(seconds)
    return in_plan, (time.process_time() - begin) / seconds


def waiting_in_the_plan(seconds: float) -> float:
    """Rank 0 waits in a round for the others, which come late; return its processor seconds per second."""
    enter_plan()
    begin = time.process_time()
    if hvd.rank() != 0:
        time.sleep(seconds)
    step(0, 4)
    return (time.process_time() - begin) / seconds


def disturbed(seed: int, steps: int = 60) -> str:
    """Steady steps with surprises between them, the same on all ranks; rank-local order and lateness differ."""
    shared, own = random.Random(seed), random.Random(seed * 100 + hvd.rank())
    rank, size = hvd.rank(), hvd.size()
    for number in range(steps):
        surprise = shared.choice(
            ["", "", "", "", "new", "shape", "barrier", "gather", "missing", "order", "late", "broadcast"]
        )
        order = list(range(6))
        if surprise == "order":
            own.shuffle(order)
        if surprise == "late" and own.random() < 0.5:
            time.sleep(0.01)
        if surprise == "barrier":
            hvd.barrier()
        if surprise == "gather":
            found = hvd.allgather(torch.full((rank + 1,), float(rank)), name="surprise.gather")
            assert found.tolist() == [float(r) for r in range(size) for _ in range(r + 1)]
        if surprise == "broadcast":
            assert (
                hvd.broadcast(torch.full((3,), float(rank)), size - 1, name="surprise.b").tolist() == [size - 1.0] * 3
            )
        if surprise == "new":
            extra = hvd.allreduce(torch.ones(7) * rank, name=f"surprise.{number}", op=hvd.Sum)
            assert extra[0].item() == size * (size - 1) // 2
        missing = shared.randrange(6) if surprise == "missing" else -1
        step(number, 6, count=500 if surprise == "shape" else 1000, skip=missing, order=order)
    return "done"


def killed_in_the_plan(victim: int) -> dict[str, Any]:
    """Step on; one rank dies within a plan. The others return how long after their last step they learned of it."""
    in_plan, kind, number = enter_plan(), "none", 0
    begin = time.monotonic()
    try:
        while number < 10_000:
            # Not before its second step: the others are past what went before when its first has come to an end.
            if hvd.rank() == victim and number == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            step(number, 4)
            begin = time.monotonic()
            number += 1
    except RingtuneError as error:
        kind = type(error).__name__
    return {"in_plan": in_plan, "kind": kind, "after_s": time.monotonic() - begin}


def change_knobs_in_the_plan() -> tuple[bool, int, int, bool]:
    """Rank 0 proposes another setting in the midst of a plan; all follow, and a new plan begins."""
    from ringtune.knobs import Knobs

    before = enter_plan()
    now = session.require()
    if now.rank == 0:
        now.propose_knobs(Knobs(fusion_bytes=4096))
    for number in range(40):
        step(number, 4)
    return before, now.knobs_version, now.knobs.fusion_bytes, enter_plan()


def join_in_the_plan() -> int:
    """The last rank stops early and joins; the others go on with its zeros."""
    rank, size = hvd.rank(), hvd.size()
    for number in range(20):
        step(number, 3)
    if rank != size - 1:
        for _ in range(5):
            tensor = torch.full((100,), float(rank + 1))
            hvd.allreduce_(tensor, name="plan.join", op=hvd.Sum)
            assert tensor[0].item() == size * (size - 1) // 2
    last = hvd.join()
    for number in range(20):
        step(number, 3)
    return int(last)
