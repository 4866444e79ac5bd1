"""A rank in a race: follows the driver's orders one at a time, and sleeps in between."""

from __future__ import annotations

import gc
import os
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ringtune.benchmarks.harness.race.bursts import Burst, Contest, run_burst
from ringtune.benchmarks.harness.race.patterns import Task
from ringtune.benchmarks.harness.race.wire import dial

# Opens a contender for the task that the driver's order describes.
Opener = Callable[[Any], Contest]


class Unsupported(Exception):
    """The contender cannot do this task at all; the message says why."""


@dataclass(frozen=True)
class Seat:
    """The place of a rank in a race.

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


def tensors_of(order: Mapping[str, Any], seat: Seat) -> Task:
    """Returns the task of an order that names sizes and a dtype."""
    how = {name: order[name] for name in ("device", "collective") if name in order}
    return Task(order["sizes_bytes"], order["dtype"], seat.rank, seat.size, **how)


def serve(
    seat: Seat, openers: Mapping[str, Opener], read_task: Callable[[Mapping[str, Any], Seat], Any] = tensors_of
) -> None:
    """Follows the driver's orders until it ends the race.

    Args:
        seat: the place of this rank.
        openers: contender -> what opens it for a task.
        read_task: gives the task that an order describes.
    """
    address, _, token = seat.join.rpartition("/")
    wire = dial(address)
    wire.send(token=token, rank=seat.rank, size=seat.size, pid=os.getpid(), about=seat.about)
    gc.disable()
    contests: dict[str, Contest] = {}
    while (order := wire.receive()) is not None and order["do"] != "exit":
        try:
            if order["do"] == "open":
                contests[order["contender"]] = openers[order["contender"]](read_task(order, seat))
            answer = _obey(order, contests)
        except Unsupported as error:
            answer = {"unsupported": str(error)}
        except Exception as error:
            traceback.print_exc()
            answer = {"failed": f"rank {seat.rank}: {type(error).__name__}: {error}"}
        wire.send(**answer)
    wire.close()


def _obey(order: dict[str, Any], contests: dict[str, Contest]) -> dict[str, Any]:
    if order["do"] == "open":
        return {"max_calls": contests[order["contender"]].max_calls}
    if order["do"] == "burst":
        burst = Burst(order["loops"], order["calls"], order["lead_in"])
        return {"ns": run_burst(contests[order["contender"]], burst)}
    if order["do"] == "close":
        contests.clear()
        gc.collect()
        return {}
    raise ValueError(f"unknown order {order['do']!r}")
