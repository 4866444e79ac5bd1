"""One rank in a network namespace: joins one world after another and reduces exactly; a JSON line per world.

Run as `python -m tests.jobs.namespace_rank RANK STORE_ADDRESS FIRST_PORT WORLDS` with `WORLDS` like `1,2,3`.
Variables of the environment choose sockets and algorithm; `RINGTUNE_HOSTNAME` puts several ranks on one host.
"""

from __future__ import annotations

import json
import os
import sys

import torch

import ringtune.torch as hvd
from ringtune.session import Session
from tests.jobs import cases, plan_cases

COUNTS = (0, 1, 1001, (1 << 18) + 3)  # the last: 1 MiB and 3 elements of float32
CHOICES = ("RINGTUNE_SOCKETS_PER_PEER", "RINGTUNE_ALGORITHM", "RINGTUNE_HIERARCHICAL_ALLREDUCE")
DTYPES = ("float32", "bfloat16", "int64", "uint8")


def current_transports() -> list[str]:
    session = Session.current()
    assert session is not None
    return list(session.runtime.transports)


def main() -> None:
    rank, address, port, worlds = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    for number, size in enumerate(int(word) for word in worlds.split(",")):
        if rank >= size:
            continue
        environ = {
            "RINGTUNE_RANK": str(rank),
            "RINGTUNE_SIZE": str(size),
            "RINGTUNE_STORE": f"{address}:{port + number}",
            "RINGTUNE_START_TIMEOUT": "120",
            "RINGTUNE_HOSTNAME": os.environ.get("RINGTUNE_HOSTNAME", f"namespace-{rank}"),
            **{name: os.environ[name] for name in CHOICES if name in os.environ},
        }
        cases.open_session(environ)
        transports = sorted(set(current_transports()) - {"self"})
        digests = [
            cases.allreduce(dtype=dtype, count=count, op=op)
            for dtype in DTYPES
            for count in COUNTS
            for op in (hvd.Sum, hvd.Average, hvd.Max)
        ]
        digests.append(cases.broadcast(dtype="float32", count=1001, root=size - 1))
        digests.append(cases.allgather(dtype="float32", rows=[0, 3, 1, 2, 7], width=3))
        windows = plan_cases.steady(tensors=5)
        answer = {"size": size, "rank": rank, "transports": transports, "digests": digests, "windows": windows}
        print(json.dumps(answer), flush=True)
        cases.close_session()


if __name__ == "__main__":
    main()
