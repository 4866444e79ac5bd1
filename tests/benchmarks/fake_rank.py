"""A rank of a peer that needs no library: ``python -m tests.benchmarks.fake_rank JOIN RANK SIZE BEHAVIOUR``.

Its call does nothing, which is the exact sum over one rank and a wrong one over more.
"""

from __future__ import annotations

import os
import sys
import time
from functools import partial

from ringtune.benchmarks.harness.race.bursts import Contest, SumContest
from ringtune.benchmarks.harness.race.patterns import Buffers, Task
from ringtune.benchmarks.harness.race.rank import Seat, Unsupported, serve
from ringtune.benchmarks.harness.race.wire import dial


def nothing() -> None:
    pass


def die() -> None:
    print("its last words", flush=True)
    os._exit(3)


CALLS = {"good": nothing, "dies": die, "hangs": partial(time.sleep, 600)}


def open_fake(behaviour: str, task: Task) -> Contest:
    if behaviour == "cannot":
        raise Unsupported(f"no {task.dtype} here")
    return SumContest(Buffers(task), CALLS[behaviour])


def main(join: str, rank: str, size: str, behaviour: str) -> None:
    if behaviour == "stays away":
        time.sleep(600)
    if behaviour == "leaves at once":
        sys.exit("no such fabric")
    if behaviour == "counts wrong":
        size = "7"
    if behaviour == "babbles":
        address, _, token = join.rpartition("/")
        wire = dial(address)
        wire.send(token=token, rank=int(rank), size=int(size), pid=os.getpid(), about="babble")
        wire.receive()
        wire._connection.sendall(b"what?\n")
        time.sleep(600)
    serve(Seat(join, int(rank), int(size), f"fake {behaviour}"), {"way": partial(open_fake, behaviour)})


if __name__ == "__main__":
    main(*sys.argv[1:])
