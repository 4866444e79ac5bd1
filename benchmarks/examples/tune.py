"""A job that gains from tuning: many small updates, one after the other, in an order that changes.

    ringtune tune -np 2 python tune.py

Randomized block coordinate descent: a step updates every block of the parameters once, in a random order, and each
update depends on the ones before it. So a block's gradient travels alone, and no order repeats that the runtime could
learn. The rank does other work (here: it sleeps) until `poll` says that the gradient is there; as no caller waits for
it, the runtime holds it back for up to a cycle time, 1 ms by default, in case others join it. A shorter cycle time is
better for this job, and `ringtune tune` finds it while the job runs.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import ringtune
import ringtune.numpy as hvd

BLOCKS, COLUMNS, ROWS = 20, 16, 512
POLL_S = 2e-5


def main() -> None:
    """Solves a least-squares problem and prints its residual and the time of a step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1500)
    args = parser.parse_args()
    session = ringtune.init()
    data = np.random.default_rng(hvd.rank())
    rows = data.normal(size=(ROWS, BLOCKS, COLUMNS)) / np.sqrt(ROWS)
    residual = rows.sum(axis=(1, 2))  # the solution is one everywhere
    order = np.random.default_rng(0)  # the same order on every rank

    times_s = []
    for _ in range(args.steps):
        begin = time.perf_counter()
        for block in order.permutation(BLOCKS):
            handle = hvd.allreduce_async(rows[:, block].T @ residual, name=f"block.{block}")
            while not hvd.poll(handle):
                time.sleep(POLL_S)
            residual -= rows[:, block] @ (0.5 * hvd.synchronize(handle))
        session.end_step()  # without an optimizer the script has to mark where a step ends
        times_s.append(time.perf_counter() - begin)
    if hvd.rank() == 0:
        median_ms = 1e3 * float(np.median(times_s[-50:]))
        print(f"ranks {hvd.size()}, residual {np.linalg.norm(residual):.2e}, last steps {median_ms:.2f} ms", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
