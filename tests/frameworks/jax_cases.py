"""What the ranks do with programs of JAX. Small integers: every result is exact."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ringtune.jax as hvd
from ringtune.jax import handler


def mine(rows: int = 4) -> Any:
    return jnp.arange(float(rows)) + hvd.rank()


def equal(found: Any, expected: Any, what: str = "") -> None:
    assert np.array_equal(np.asarray(found), np.asarray(expected)), (what, found, expected)


def gradients(compiled: bool) -> None:
    """The gradient of the sum of all ranks' results, where rank r's own is weighted by r + 1."""
    size, rank = hvd.size(), hvd.rank()
    weights = [np.arange(1.0, 5.0) * (one + 1) for one in range(size)]
    total, own = np.sum(weights, axis=0), weights[rank]
    x = mine()

    def gradient(function: Any, weight: Any) -> Any:
        def loss(x: Any) -> Any:
            return (function(x) * jnp.asarray(weight)).sum()

        made = jax.grad(loss)
        return (jax.jit(made) if compiled else made)(x)

    equal(gradient(lambda x: hvd.allreduce(x, op=hvd.Sum), own), total, "sum")
    equal(gradient(hvd.allreduce, own * size), total, "average")
    scaled = gradient(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=2, postscale_factor=4), own)
    equal(scaled, 8 * total, "factors")
    equal(gradient(lambda x: hvd.broadcast(x, 1), own), total if rank == 1 else 0 * total, "broadcast")
    long = [np.arange(4.0 * size) + one for one in range(size)]
    equal(gradient(hvd.allgather, long[rank]), np.sum(long, axis=0)[4 * rank : 4 * rank + 4], "allgather")
    if 4 % size == 0:
        rows = 4 // size
        back = np.concatenate([one[rank * rows : (rank + 1) * rows] for one in weights])
        equal(gradient(hvd.alltoall, own), back, "alltoall")
    counts = [4 // size + (one < 4 % size) for one in range(size)]
    parts = [weights[one][: counts[one]] for one in range(size)]
    equal(gradient(lambda x: hvd.reducescatter(x, op=hvd.Sum), parts[rank]), np.concatenate(parts), "reducescatter")
    averaged = gradient(hvd.reducescatter, parts[rank] * size)
    equal(averaged, np.concatenate(parts), "averaged reducescatter")


def higher() -> None:
    """Forward mode, second derivatives, trees of which a part has a gradient, and a second gradient of each kind."""
    size = hvd.size()
    x = mine()
    value, tangent = jax.jvp(lambda x: hvd.allreduce(x * x, op=hvd.Sum), (x,), (jnp.ones(4),))
    expected = sum((np.arange(4.0) + one) for one in range(size))
    equal(tangent, 2 * expected)
    equal(value, sum((np.arange(4.0) + one) ** 2 for one in range(size)))

    def loss(tree: Any) -> Any:
        found = hvd.allreduce(tree, op=hvd.Sum, name="tree")
        return (found["w"] ** 3).sum() * found["n"][0]

    tree = {"w": x, "n": jnp.ones(1, jnp.int32)}
    first = jax.jit(jax.grad(lambda w: loss({**tree, "w": w})))(x)
    equal(first, size * size * 3 * expected**2)
    second = jax.jit(jax.grad(lambda w: jax.grad(lambda v: loss({**tree, "w": v}))(w).sum()))(x)
    equal(second, size * size * size * 6 * expected)
    try:
        jax.jit(jax.grad(lambda x: hvd.allreduce(x, op=hvd.Max).sum()))(x)
    except NotImplementedError as error:
        assert "only Sum and Average have a gradient" in str(error)
    else:
        raise AssertionError("Max had a gradient")


def batches() -> None:
    """Every collective under vmap is that of each row."""
    size = hvd.size()
    batch = jnp.arange(12.0).reshape(3, 4) * (hvd.rank() + 1)
    calls = {
        "allreduce": lambda x: hvd.allreduce(x, op=hvd.Sum),
        "broadcast": lambda x: hvd.broadcast(x, size - 1),
        "allgather": hvd.allgather,
        "alltoall": hvd.alltoall,
        "reducescatter": lambda x: hvd.reducescatter(x, op=hvd.Sum),
    }
    for name, call in calls.items():
        if name == "alltoall" and 4 % size:
            continue
        rows = jnp.stack([call(row) for row in batch])
        equal(jax.vmap(call)(batch), rows, name)
        equal(jax.jit(jax.vmap(call))(batch), rows, name)
        equal(jax.jit(jax.vmap(call, in_axes=1))(batch.T), rows, name)
    both = jax.jit(jax.vmap(lambda x, y: hvd.allreduce((x, y), op=hvd.Sum), in_axes=(0, None)))(batch, batch[0])
    equal(both[0], hvd.allreduce(batch, op=hvd.Sum))


def order(rounds: int) -> int:
    """Collectives that do not depend on one another, in branches, loops and functions, among heavy work; return how
    many were right.
    """
    size = hvd.size()

    @jax.jit
    def inner(x: Any) -> Any:
        return hvd.allreduce(x, op=hvd.Sum) + hvd.allreduce(2 * x, op=hvd.Sum)

    @jax.jit
    def program(x: Any, heavy: Any) -> Any:
        found = [hvd.allreduce(x + number, op=hvd.Sum) for number in range(3)]
        found += [inner(x), inner(x + 1)]
        found.append(jax.lax.cond(heavy[0, 0] > 0, lambda x: hvd.allreduce(x, op=hvd.Sum), lambda x: x, x))
        _, sums = jax.lax.scan(lambda c, _: (c, hvd.allreduce(c, op=hvd.Sum)), x, None, length=3)
        whiled = jax.lax.fori_loop(0, 2, lambda _, c: hvd.allreduce(c, op=hvd.Average), x)
        saved = jax.checkpoint(lambda x: hvd.allreduce(x, op=hvd.Sum))(x)
        work = heavy
        for _ in range(3):
            work = work @ heavy
        hvd.barrier()
        return [*found, *sums, whiled, saved, hvd.allgather(x[:1])], work.sum()

    x, heavy = jnp.ones(8), jnp.full((128, 128), 1 / 128)
    right = 0
    for _ in range(rounds):
        results, _ = program(x, heavy)
        expected = [size, 2 * size, 3 * size, 3 * size, 6 * size, size, size, size, size, 1, size]
        assert [float(one[0]) for one in results[:-1]] == expected, results
        right += 1
    return right


def unlike_traces() -> list[float]:
    """Ranks trace a function differently often, and on other shapes before, and still name its collectives alike."""

    @jax.jit
    def step(x: Any) -> Any:
        return hvd.allreduce(x, op=hvd.Sum) + hvd.allreduce(x * 2, op=hvd.Sum)

    for count in range(3 * hvd.rank()):
        step.lower(jnp.ones(count + 1))
    found = [float(step(jnp.ones(3))[0])]
    if hvd.rank() == 1:
        jax.clear_caches()
    found += [float(step(jnp.ones(3))[0]) for _ in range(30)]
    return sorted(set(found))


def names() -> list[str]:
    """Return the names on the wire of a program's collectives."""
    from ringtune.jax.primitive import collective_p

    def program(tree: Any, x: Any) -> Any:
        return hvd.allreduce(tree, name="grads"), hvd.broadcast(x, 0), hvd.allreduce(x)

    made = jax.make_jaxpr(program)({"dense": {"kernel": jnp.ones(2), "bias": jnp.ones(1)}, "l": [jnp.ones(1)]}, mine())
    found: list[str] = []
    for equation in made.eqns:
        if equation.primitive is collective_p:
            found += equation.params["call"].names
    return found


def failures_in_programs() -> list[str]:
    """Return what programs say that cannot go on, and a sum after each."""
    said = []

    def attempt(function: Any, *given: Any) -> None:
        try:
            jax.block_until_ready(function(*given))
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
        else:
            said.append("")
        equal(jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum))(jnp.ones(2)), [hvd.size()] * 2)

    attempt(jax.jit(lambda x: hvd.allgather(x, name="rows")), jnp.ones(1 + hvd.rank()))
    attempt(jax.jit(lambda x: hvd.alltoall(x, splits=[1, 1])), jnp.ones(2))
    attempt(jax.jit(lambda x: hvd.alltoall(x)), jnp.ones(3))
    attempt(jax.jit(lambda x, factor: hvd.allreduce(x, prescale_factor=factor)), jnp.ones(2), 2.0)
    attempt(jax.jit(lambda x: hvd.join() + x), jnp.ones(2))
    attempt(jax.jit(lambda x: hvd.broadcast(x, 7)), jnp.ones(2))
    return said


def donated() -> None:
    """Programs may take over the memory of what they are given, in long chains that nobody waits for."""
    step = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Average) + 1, donate_argnums=0)
    x = jnp.zeros(1000)
    for _ in range(200):
        x = step(x)
    equal(x, np.full(1000, 200.0))
    if handler.in_use():  # what nothing else needs is replaced by its result
        place = x.unsafe_buffer_pointer()
        x = jax.jit(lambda x: hvd.broadcast(hvd.allreduce(x, op=hvd.Average), 1), donate_argnums=0)(x)
        assert x.unsafe_buffer_pointer() == place
        equal(x, np.full(1000, 200.0))
    needed, double = mine(), mine() * 2
    found = jax.jit(lambda x: (hvd.allreduce(x * 2, op=hvd.Sum), hvd.broadcast(x, 1), x, hvd.allreduce([x, x])))(needed)
    equal(found[0], sum((np.arange(4.0) + one) * 2 for one in range(hvd.size())))
    equal(found[1], np.arange(4.0) + 1)
    equal(found[2], double / 2)
    for mean in found[3]:
        equal(mean, np.arange(4.0) + (hvd.size() - 1) / 2)
    equal(needed, double / 2)


def parameters() -> None:
    """Trees of all kinds of leaves get the root's values."""
    rank = hvd.rank()
    tree = {
        "w": jnp.full(3, float(rank)), "n": np.full(2, rank), "step": rank, "name": f"rank {rank}", "none": None,
        "key": jax.random.key(rank), "old key": jax.random.PRNGKey(rank), "flag": rank == 1,
    }  # fmt: skip
    found = hvd.broadcast_parameters(tree, 1)
    equal(found["w"], np.ones(3))
    equal(found["n"], np.ones(2))
    assert (found["step"], found["name"], found["none"], found["flag"]) == (1, "rank 1", None, True)
    equal(jax.random.key_data(found["key"]), jax.random.key_data(jax.random.key(1)))
    equal(found["old key"], jax.random.PRNGKey(1))
    try:
        hvd.broadcast_parameters([1, 2] if rank == 0 else [1], 0)
    except ValueError as error:
        assert rank and "build the same tree on all ranks" in str(error)


def uses_handler() -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return handler.in_use()
