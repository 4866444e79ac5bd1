"""The life of a rank in a race: does what the driver says, one order at a time, and sleeps in between."""

from __future__ import annotations

import gc
import os
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ringtune.benchmarks.workers.race.bursts import Burst, Contest, run_burst
from ringtune.benchmarks.workers.race.patterns import Task
from ringtune.benchmarks.workers.race.wire import dial

Opener = Callable[[Task], Contest]


class Unsupported(Exception):
    """The contender cannot do this task at all; the message says why."""


@dataclass(frozen=True)
class Seat:
    """Who this rank is.

    Args:
        join: where the driver listens and the word that it expects: ``host:port/token``.
        rank: this rank.
        size: number of ranks.
        about: name and version of what is measured.
    """

    join: str
    rank: int
    size: int
    about: str


def serve(seat: Seat, openers: Mapping[str, Opener]) -> None:
    """Follows the driver's orders until it ends the race.

    Args:
        seat: who this rank is.
        openers: contender -> what opens it for a task.
    """
    address, _, token = seat.join.rpartition("/")
    wire = dial(address)
    wire.send(token=token, rank=seat.rank, size=seat.size, pid=os.getpid(), about=seat.about)
    gc.disable()
    contests: dict[str, Contest] = {}
    while (order := wire.receive()) is not None and order["do"] != "exit":
        try:
            answer = _obey(order, seat, openers, contests)
        except Unsupported as error:
            answer = {"unsupported": str(error)}
        except Exception as error:
            traceback.print_exc()
            answer = {"failed": f"rank {seat.rank}: {type(error).__name__}: {error}"}
        wire.send(**answer)
    wire.close()


def _obey(
    order: dict[str, Any], seat: Seat, openers: Mapping[str, Opener], contests: dict[str, Contest]
) -> dict[str, Any]:
    if order["do"] == "open":
        name = order["contender"]
        contests[name] = openers[name](Task(order["sizes_bytes"], order["dtype"], seat.rank, seat.size))
        return {"max_calls": contests[name].max_calls}
    if order["do"] == "burst":
        return {"ns": run_burst(contests[order["contender"]], Burst(order["loops"], order["calls"]))}
    if order["do"] == "close":
        contests.clear()
        gc.collect()
        return {}
    raise ValueError(f"unknown order {order['do']!r}")
