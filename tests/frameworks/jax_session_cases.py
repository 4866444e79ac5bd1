"""Sessions, steps, elastic states and trainings around programs of JAX, in the ranks."""

from __future__ import annotations

import os
import pickle
import signal
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ringtune.jax as hvd
from ringtune import session
from ringtune.common.framework_errors import failure_of
from ringtune.jax import handler
from tests.frameworks import cases
from tests.frameworks.jax_cases import batches, equal, gradients, mine, order


def once_more() -> list[str]:
    """Leave the job and join it again: compiled programs work on, and between the two they say what is missing."""
    program = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum))
    said = []
    for _ in range(2):
        equal(program(jnp.ones(2)), [hvd.size()] * 2)
        hvd.shutdown()
        try:
            program(jnp.ones(2)).block_until_ready()
        except jax.errors.JaxRuntimeError as error:
            said.append(str(error))
        hvd.init()
    equal(program(jnp.ones(2)), [hvd.size()] * 2)
    return said


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
    # What a later process finds on the disk.
    later = hvd.elastic.JaxState(
        params={"w": jnp.zeros(4), "n": np.zeros(2, int)}, key=jax.random.key(9), epoch=0, names=[], rate=None
    )
    later.take_saved(pickle.loads(pickle.dumps(state.saved())))
    equal(later.params["w"], jnp.arange(4.0))
    assert isinstance(later.params["w"], jax.Array)
    equal(jax.random.key_data(later.key), jax.random.key_data(jax.random.key(0)))
    assert (later.epoch, later.names) == (5, state.names)


def through_python() -> list[str]:
    """Refuse the handler as an unknown jaxlib might; return what is said."""

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
        message = f"{type(failure_of(error)).__name__}: {failure_of(error)}"
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


def several_devices() -> list[str]:
    """Reduce arrays on two devices of this process; return what is said to programs of both."""
    first, second = jax.devices()
    mesh = jax.sharding.Mesh(np.array([first, second]), ("devices",))
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("devices"))
    program = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum))
    there = program(jax.device_put(jnp.ones(2), second))
    equal(there, [hvd.size()] * 2)
    assert there.devices() == {second}
    sharded = jax.device_put(jnp.arange(4.0) * (hvd.rank() + 1), spread)
    result = hvd.allreduce(sharded, op=hvd.Sum)
    equal(result, np.arange(4.0) * hvd.size() * (hvd.size() + 1) / 2)
    assert result.sharding == spread
    said = []
    for attempt in (lambda: program(sharded), lambda: jax.pmap(program)(jnp.ones((2, 1)))):
        try:
            attempt()
        except ValueError as error:
            said.append(str(error))
    equal(program(jnp.ones(2)), [hvd.size()] * 2)
    return said
