"""One rank that plays a step's gradients: sleeps until each is ready, submits it, waits for all at backward's end.

Started as ``python -m ringtune.benchmarks.netlab.replay_worker JOIN`` with the job in the environment; JOIN is where
the driver listens (`harness/race/wire.py`). It computes nothing, so that ranks do not compete for cores: only the
runtime and the links are measured. Orders, beside `exit`:

| order | fields | answer |
|---|---|---|
| `knobs` | `knobs`: all of them by name | `{}` when every rank has them |
| `play` | `work`: `name`, `ready_ns`, `bytes`, `backward_end_ns`, `after_ns`; `steps`; `record` | `wall_ns` of each |
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ringtune
from ringtune import session
from ringtune.benchmarks.harness.race.wire import dial
from ringtune.knobs import Knobs
from ringtune.operations import Allreduce
from ringtune.session import Session

_FLOAT32, _SUM, _MIN = 7, 1, 3
"""Numbers of native/base/dtype.h."""

Floats = NDArray[np.float32]


def main(join: str) -> None:
    """Follows the driver's orders until it ends the job."""
    current = session.init()
    address, _, token = join.rpartition("/")
    wire = dial(address)
    wire.send(
        token=token, rank=current.rank, size=current.size, pid=os.getpid(), about=f"ringtune {ringtune.__version__}"
    )
    while (order := wire.receive()) is not None and order["do"] != "exit":
        try:
            answer = _set_knobs(current, order) if order["do"] == "knobs" else _play(current, order)
        except Exception as error:
            traceback.print_exc()
            answer = {"failed": f"rank {current.rank}: {type(error).__name__}: {error}"}
        wire.send(**answer)
    wire.close()
    session.shutdown()


def _set_knobs(current: Session, order: dict[str, Any]) -> dict[str, Any]:
    wanted = Knobs.from_dict(order["knobs"])
    if current.rank == 0 and current.knobs != wanted:
        current.propose_knobs(wanted)
    while not _all_have(current, wanted):
        time.sleep(1e-3)
    return {}


def _all_have(current: Session, wanted: Knobs) -> bool:
    """Whether all ranks have these knobs: the same answer everywhere."""
    arrived = np.array([current.knobs == wanted], dtype=np.float32)
    address = arrived.ctypes.data
    ticket = current.submit(Allreduce("knobs", address, address, arrived.shape, _FLOAT32, _MIN))
    current.wait(ticket)
    current.release(ticket)
    return bool(arrived[0])


def operations_of(work: dict[str, Any]) -> list[tuple[Allreduce, Floats]]:
    """The step's operations, each with the memory that it reduces in place."""
    arrays = [np.zeros(size // 4, dtype=np.float32) for size in work["bytes"]]
    return [
        (Allreduce(f"{work['name']}.{index}", array.ctypes.data, array.ctypes.data, array.shape, _FLOAT32, _SUM), array)
        for index, array in enumerate(arrays)
    ]


def _play(current: Session, order: dict[str, Any]) -> dict[str, Any]:
    work = order["work"]
    operations = operations_of(work)
    if order["record"]:
        current.start_timeline()
    current.end_step()
    wall_ns = [play_step(current, work, operations) for _ in range(order["steps"])]
    if order["record"]:
        current.stop_timeline()
    return {"wall_ns": wall_ns}


def play_step(current: Session, work: dict[str, Any], operations: list[tuple[Allreduce, Floats]]) -> int:
    """Play one step and mark its end; returns its length in ns."""
    begin = time.monotonic_ns()
    tickets = []
    for ready, (operation, _) in zip(work["ready_ns"], operations, strict=True):
        _sleep_until(begin + ready)
        tickets.append(current.submit(operation))
    _sleep_until(begin + work["backward_end_ns"])
    for ticket in tickets:
        current.wait(ticket)
        current.release(ticket)
    time.sleep(work["after_ns"] / 1e9)
    return current.end_step().wall_ns


def _sleep_until(moment_ns: float) -> None:
    left = moment_ns - time.monotonic_ns()
    if left > 0:
        time.sleep(left / 1e9)


if __name__ == "__main__":
    main(*sys.argv[1:])
