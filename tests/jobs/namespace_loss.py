"""A rank in a network namespace that reduces until a peer is lost, and says when it noticed.

Run as `python -m tests.jobs.namespace_loss RANK SIZE STORE`. It prints ``ready`` once everybody reduces, and at the end
a JSON line with the error's type and message and the moment on the machine's monotonic clock.
"""

from __future__ import annotations

import json
import os
import sys
import time

import torch

import ringtune.torch as hvd
from ringtune.errors import RingtuneError


def main() -> None:
    rank, size, store = sys.argv[1:]
    os.environ.update(
        RINGTUNE_RANK=rank, RINGTUNE_SIZE=size, RINGTUNE_STORE=store, RINGTUNE_HOSTNAME=f"namespace-{rank}"
    )
    torch.set_num_threads(1)
    hvd.init()
    tensor = torch.ones(4 << 20)
    try:
        hvd.allreduce(tensor, op=hvd.Max, name="big")
        print("ready", flush=True)
        while True:
            hvd.allreduce(tensor, op=hvd.Max, name="big")
    except RingtuneError as error:
        print(json.dumps({"type": type(error).__name__, "message": str(error), "at": time.monotonic()}), flush=True)


if __name__ == "__main__":
    main()
