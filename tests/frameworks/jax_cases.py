"""What the ranks do with programs of JAX. Small integers: every result is exact."""

from __future__ import annotations

import os
import signal
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ringtune.jax as hvd
from ringtune import session
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


def steps_of_programs(mark: bool, count: int) -> dict[str, int]:
    """Run a training's steps in a program; return how many steps the session has counted."""
    import optax

    seen: list[Any] = []
    now = session.require()
    told = now._step_ended
    now._steps._ended = lambda stats: (seen.append(stats), told(stats))  # type: ignore[assignment]
    now._steps.watch()
    chain = optax.chain(hvd.average_gradients(), optax.sgd(0.5)) if mark else optax.sgd(0.5)

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        loss, gradients = jax.value_and_grad(lambda p: sum((one**2).sum() for one in p))(params)
        if not mark:
            gradients = hvd.allreduce(gradients, name="grads")
        updates, state = chain.update(gradients, state)
        return optax.apply_updates(params, updates), state, hvd.allreduce(loss, name="loss")

    params = [jnp.ones(1000), jnp.ones(3)]
    state = chain.init(params)
    for _ in range(count):
        params, state, loss = step(params, state)
        loss.block_until_ready()
    jax.effects_barrier()
    now._steps.close()
    return {"steps": len(seen), "detected": sum(one.detected for one in seen), "bytes": seen[-1].bytes if seen else 0}


def flax_training() -> tuple[float, float]:
    """Train a flax model in a ``TrainState`` on this rank's rows; return the loss over all rows, here and on one rank
    alone.
    """
    import optax
    from flax import linen
    from flax.training.train_state import TrainState

    class Network(linen.Module):
        @linen.compact
        def __call__(self, rows: Any) -> Any:
            return linen.Dense(1, param_dtype=jnp.float64)(
                linen.tanh(linen.Dense(16, param_dtype=jnp.float64, name="hidden")(rows))
            )

    network = Network()
    rows = jax.random.normal(jax.random.key(1), (48, 6), jnp.float64)
    targets = (rows[:, :1] * rows[:, 1:2]) + rows[:, 2:3]

    def loss_of(params: Any, rows: Any, targets: Any) -> Any:
        return ((network.apply(params, rows) - targets) ** 2).mean()

    def train(chain: Any, seed: int, share: slice, sync: Any) -> Any:
        state = TrainState.create(apply_fn=network.apply, params=network.init(jax.random.key(seed), rows[:1]), tx=chain)
        state = sync(state)

        @jax.jit
        def step(state: Any) -> Any:
            return state.apply_gradients(grads=jax.grad(loss_of)(state.params, rows[share], targets[share]))

        for _ in range(40):
            state = step(state)
        assert int(state.step) == 40
        return loss_of(state.params, rows, targets)

    share = slice(hvd.rank(), None, hvd.size())
    ours = train(
        optax.chain(hvd.average_gradients(), optax.adam(0.02)), 7 + hvd.rank(), share, hvd.broadcast_parameters
    )
    alone = train(optax.adam(0.02), 7, slice(None), lambda state: state)
    return float(ours), float(alone)


def elastic_state() -> None:
    """A state comes back as it was committed, also where a program has taken over its memory, and follows rank 0."""
    rank = hvd.rank()
    state = hvd.elastic.JaxState(
        params={"w": mine(), "n": np.arange(2)}, key=jax.random.key(rank), epoch=rank, names=["a"], rate=None
    )
    state.epoch = 5 + rank
    state.commit()
    double = jax.jit(lambda tree: jax.tree.map(lambda x: 2 * x, tree), donate_argnums=0)
    for _ in range(2):
        state.params = double(state.params)
        state.names.append("b")
        state.epoch, state.key = 9, jax.random.split(state.key)[0]
        state.restore()
        equal(state.params["w"], mine())
        equal(state.params["n"], [0, 1])
        equal(jax.random.key_data(state.key), jax.random.key_data(jax.random.key(rank)))
        assert (state.epoch, state.names, state.rate) == (5 + rank, ["a"], None)
    state.sync()
    equal(state.params["w"], jnp.arange(4.0))
    equal(jax.random.key_data(state.key), jax.random.key_data(jax.random.key(0)))
    assert state.epoch == 5
    state.epoch = 0
    state.restore()
    assert state.epoch == 5, "what is synchronised is saved"


def through_python() -> list[str]:
    """Refuse the handler as an unknown jaxlib might; return what is said."""
    from ringtune.jax.errors import translate
    from tests.frameworks import cases

    def refuse(_: Any) -> None:
        raise RuntimeError("unknown API version")

    handler._register = refuse
    handler.in_use.cache_clear()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert not handler.in_use()
    for dtype in ("float32", "bfloat16"):
        cases.reduced("jax", "compiled", dtype)
        cases.moved("jax", "compiled", dtype)
    cases.scattered("jax", "compiled", "int32")
    gradients(compiled=True)
    batches()
    order(rounds=2)
    message = ""
    try:
        jax.block_until_ready(jax.jit(lambda x: hvd.allreduce(x, name="bad"))(jnp.ones(1 + hvd.rank())))
    except jax.errors.JaxRuntimeError as error:
        message = f"{type(translate(error)).__name__}: {translate(error)}"
    return [*(str(one.message) for one in said), message]


def lost() -> str:
    """Lose rank 1 in the middle of programs; return what the elastic loop of a job with fixed ranks raises."""

    @jax.jit
    def step(x: Any) -> Any:
        return hvd.allreduce(x, name="x") + 1

    @hvd.elastic.run
    def train(state: Any) -> None:
        while state.batch < 100_000:
            state.x = step(state.x)
            state.batch += 1
            if state.batch == 5 and hvd.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if state.batch % 3 == 0:
                state.commit()

    state = hvd.elastic.JaxState(x=jnp.zeros(3), batch=0)
    try:
        train(state)
    except hvd.HorovodInternalError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def other_errors() -> str:
    """Return which error leaves the elastic loop when it is none of ringtune's."""
    from jax.experimental import io_callback

    def fail() -> None:
        raise ValueError("of the script")

    @hvd.elastic.run
    def train(state: Any) -> None:
        jax.block_until_ready(jax.jit(lambda: io_callback(fail, None))())
        jax.effects_barrier()

    try:
        train(hvd.elastic.JaxState(batch=0))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
