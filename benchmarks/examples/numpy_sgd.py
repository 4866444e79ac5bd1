"""Data-parallel logistic regression with NumPy alone: no framework, gradients averaged by `ringtune.numpy`.

    ringtune run -np 2 python numpy_sgd.py

Each rank holds a share of the rows. The averaged gradient is that of all rows, so every rank makes the same update.
"""

from __future__ import annotations

import argparse

import numpy as np

import ringtune.numpy as hvd

ROWS, COLUMNS = 2048, 20


def main() -> None:
    """Trains, and prints the accuracy over the rows of all ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    hvd.init()
    random = np.random.default_rng(0)  # the same data on every rank, of which each takes its share
    rows = random.normal(size=(ROWS, COLUMNS))
    labels = (rows @ random.normal(size=COLUMNS) > 0).astype(np.float64)
    rows, labels = rows[hvd.rank() :: hvd.size()], labels[hvd.rank() :: hvd.size()]

    weights = np.zeros(COLUMNS)
    for _ in range(args.steps):
        probabilities = 1.0 / (1.0 + np.exp(-(rows @ weights)))
        gradient = rows.T @ (probabilities - labels) / len(labels)
        weights -= hvd.allreduce(gradient, name="gradient", op=hvd.Average)
    right = hvd.allreduce(np.array([np.mean((rows @ weights > 0) == labels)]), name="right", op=hvd.Average)
    if hvd.rank() == 0:
        print(f"ranks {hvd.size()}, accuracy {right[0]:.3f}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
