"""A script whose rank raises while the others wait for it: what they learn, in `test_raising.py`."""

SCRIPT = """
import json, sys, time
from pathlib import Path

import numpy as np

import ringtune.numpy as hvd
from ringtune.errors import RuntimeFailure

phase, victim, late, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
hvd.init()
rank, size = hvd.rank(), hvd.size()


def step() -> None:
    for number in range(4):
        hvd.allreduce(np.ones(100, np.float32), name=f"grad.{number}")


for _ in range(40 if phase == "repeated steps" else 0):
    step()
if phase == "ring":
    begun = hvd.allreduce_async(np.ones(1 << 20, np.float32), name="begun")
if rank == victim:
    raise ValueError("bad batch")
if rank == late:  # until another rank has ended because of the first
    while not all((folder / str(other)).exists() for other in range(size) if other not in (victim, late)):
        time.sleep(0.01)
try:
    for _ in range(3):
        step()
except RuntimeFailure as error:
    (folder / str(rank)).write_text(json.dumps([type(error).__name__, str(error)]))
    raise
"""
