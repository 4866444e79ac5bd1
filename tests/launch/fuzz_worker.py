"""A rank of the job beside which listeners are fuzzed: sums known numbers, and notes how long each step took."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

import ringtune.numpy as hvd
from ringtune.session import Session

STEP_S = 0.02


def main() -> None:
    folder = Path(sys.argv[1])
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    session = Session.current()
    assert session is not None
    numbers = np.arange(40_000, dtype=np.float64)
    wrong = number = 0
    with (folder / f"steps-{rank}").open("w", encoding="utf-8", buffering=1) as notes:
        (folder / f"pid-{rank}").write_text(str(os.getpid()))
        while True:
            began = time.monotonic()
            time.sleep(STEP_S)  # what a model would compute meanwhile
            mine = np.append(numbers + rank + number, float((folder / "stop").exists()))
            *sums, stop = hvd.allreduce(mine, op=hvd.Sum, name="gradient")
            wrong += not np.array_equal(sums, size * (numbers + number) + size * (size - 1) / 2)
            session.end_step()
            notes.write(f"{began} {time.monotonic() - began}\n")
            number += 1
            if stop:
                break
    (folder / f"end-{rank}").write_text(json.dumps({"steps": number, "wrong": wrong}))
    hvd.shutdown()


if __name__ == "__main__":
    main()
