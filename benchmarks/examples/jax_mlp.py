"""Data-parallel training of a small network with JAX and optax: gradients averaged inside the compiled step.

    ringtune run -np 2 python jax_mlp.py

Each rank holds a share of the rows. `hvd.average_gradients()` stands first in the chain of transformations, so the step
of all ranks is that of one process with all rows.
"""

from __future__ import annotations

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import ringtune.jax as hvd

ROWS, COLUMNS, HIDDEN, CLASSES = 1536, 32, 64, 10


def make_rows(count: int) -> tuple[Any, Any]:
    """Return rows and their classes: noisy copies of one pattern for each class."""
    random = np.random.default_rng(0)
    patterns = random.normal(size=(CLASSES, COLUMNS))
    labels = random.integers(0, CLASSES, count)
    return patterns[labels] + 0.5 * random.normal(size=(count, COLUMNS)), labels


def make_params(key: Any) -> Any:
    """Return the weights of two layers."""
    first, second = jax.random.split(key)
    return {
        "hidden": {"w": jax.random.normal(first, (COLUMNS, HIDDEN)) / COLUMNS**0.5, "b": jnp.zeros(HIDDEN)},
        "output": {"w": jax.random.normal(second, (HIDDEN, CLASSES)) / HIDDEN**0.5, "b": jnp.zeros(CLASSES)},
    }


def scores_of(params: Any, rows: Any) -> Any:
    """Return a score for each row and class."""
    hidden = jax.nn.relu(rows @ params["hidden"]["w"] + params["hidden"]["b"])
    return hidden @ params["output"]["w"] + params["output"]["b"]


def loss_of(params: Any, rows: Any, labels: Any) -> Any:
    """Return the mean cross-entropy."""
    return optax.softmax_cross_entropy_with_integer_labels(scores_of(params, rows), labels).mean()


def main() -> None:
    """Trains, and prints loss and accuracy over the rows of all ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--float64", action="store_true", help="compute in double precision")
    args = parser.parse_args()
    if args.float64:
        jax.config.update("jax_enable_x64", True)
    hvd.init()
    rows, labels = (jnp.asarray(one[hvd.rank() :: hvd.size()]) for one in make_rows(ROWS))
    params = hvd.broadcast_parameters(make_params(jax.random.key(hvd.rank())))
    chain = optax.chain(hvd.average_gradients(), optax.adam(0.01))
    state = chain.init(params)

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(params, rows, labels)
        updates, state = chain.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, hvd.allreduce(loss, name="loss")

    loss = jnp.zeros(())
    for _ in range(args.steps):
        params, state, loss = step(params, state)
    right = hvd.allreduce(jnp.mean(scores_of(params, rows).argmax(1) == labels), name="right")
    if hvd.rank() == 0:
        print(f"ranks {hvd.size()}, loss {float(loss):.9f}, accuracy {float(right):.3f}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
