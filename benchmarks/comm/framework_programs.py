"""Sums inside programs of frameworks: by ringtune's front ends, and by each framework's own way.

A program sums its tensors several times in a row, so that entering it counts little, and so that they are its own, as
gradients are: JAX's programs are given theirs (`donate_argnums`); TensorFlow's cannot be, and their first sum goes into
new memory. One call sums all tensors where a framework has such a call. Modules of frameworks are imported where they
are used: an environment has one of them.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import ringtune.numpy as base
from ringtune.benchmarks.harness.race.bursts import Contest
from ringtune.benchmarks.harness.race.patterns import Array, Buffers, Task
from ringtune.benchmarks.harness.race.rank import Unsupported
from ringtune.numpy.objects import allgather_object, broadcast_object


@dataclass(frozen=True)
class Program:
    """A compiled program and what goes in and out of it.

    Args:
        load: makes the framework's tensors of arrays, which it copies.
        run: sums tensors over all ranks as often as the task says, returns the results when they are there.
        read: makes an array of a tensor.
    """

    load: Callable[[Array], Any]
    run: Callable[[Sequence[Any]], Sequence[Any]]
    read: Callable[[Any], Array]


@dataclass(frozen=True)
class Sums:
    """What a program does.

    Args:
        task: the tensors.
        chain: how often it sums them in a row.
    """

    task: Task
    chain: int

    @property
    def tensors(self) -> range:
        """Indices of the tensors."""
        return range(len(self.task.sizes_bytes))


class ProgramContest:
    """Runs a program again and again on its own results."""

    settle: Callable[[], None] | None = None

    def __init__(self, sums: Sums, program: Program) -> None:
        self._buffers = Buffers(sums.task)
        self._chain, self._program = sums.chain, program
        self.max_calls = self._buffers.max_sums // sums.chain
        if self.max_calls < 2:
            raise Unsupported(f"over {sums.task.size} ranks sums in a row are not exact: take a power of two of them")
        self._tensors: Sequence[Any] = []
        self.call: Callable[[], None] = self._call

    def fill(self) -> None:
        """Puts the input in place."""
        self._buffers.fill()
        self._tensors = [self._program.load(array) for array in self._buffers.arrays]

    def _call(self) -> None:
        self._tensors = self._program.run(self._tensors)

    def check(self, calls: int) -> None:
        """Raises ArithmeticError unless every element is as it must be after `calls` programs."""
        for array, tensor in zip(self._buffers.arrays, self._tensors, strict=True):
            array[:] = self._program.read(tensor)
        self._buffers.check(calls * self._chain)


Make = Callable[[Sums], Program]


def open_program(make: Make) -> Callable[[Sums], Contest]:
    """Returns what opens the contest of a kind of programs."""
    return lambda sums: ProgramContest(sums, make(sums))


def _free_address() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


# -- ringtune alone ----------------------------------------------------------------------------------------------------


def join_torch(threads: int) -> tuple[str, Make]:
    """Joins with torch: what `ringtune bench allreduce` and `gradients` time."""
    import torch

    import ringtune.torch as hvd
    from ringtune.benchmarks.comm.contenders import ringtune_async, ringtune_blocking

    hvd.init()
    torch.set_num_threads(threads)

    def make(sums: Sums) -> Program:
        tensors = [torch.empty(length) for length in sums.task.lengths]
        call = ringtune_blocking(tensors) if len(tensors) == 1 else ringtune_async(tensors)

        def run(now: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
            for _ in range(sums.chain):
                call()
            return now

        left = iter(tensors)

        def load(array: Array) -> torch.Tensor:
            nonlocal left
            target = next(left, None)
            if target is None:
                left = iter(tensors)
                target = next(left)
            return target.copy_(torch.from_numpy(array))

        return Program(load, run, lambda tensor: np.asarray(tensor))

    return f"torch {torch.__version__}", make


def join_numpy(threads: int) -> tuple[str, Make]:
    """Joins with NumPy alone, where there is no torch."""
    del threads
    base.init()

    def make(sums: Sums) -> Program:
        def run(arrays: Sequence[Array]) -> Sequence[Array]:
            for _ in range(sums.chain):
                started = [
                    base.allreduce_async_(one, name=f"bench.{index}", op=base.Sum) for index, one in enumerate(arrays)
                ]
                for handle in started:
                    base.synchronize(handle)
            return arrays

        return Program(np.copy, run, lambda array: array)

    return f"NumPy {np.__version__}", make


# -- TensorFlow --------------------------------------------------------------------------------------------------------


def _tensorflow_program(traced: Callable[..., Any]) -> Program:
    import tensorflow as tf

    return Program(tf.constant, lambda tensors: traced(*tensors), lambda tensor: np.asarray(tensor))


def join_tensorflow(threads: int) -> tuple[str, Make]:
    """Joins with `ringtune.tensorflow`: one op for all tensors, in a ``tf.function``."""
    import tensorflow as tf

    import ringtune.tensorflow as hvd

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    hvd.init()

    def make(sums: Sums) -> Program:
        def program(*tensors: Any) -> Any:
            for _ in range(sums.chain):
                tensors = hvd.grouped_allreduce(tensors, op=hvd.Sum, name="bench")
            return tensors

        return _tensorflow_program(tf.function(program, autograph=False))

    return f"TensorFlow {tf.__version__}", make


def join_distribute(threads: int) -> tuple[str, Make]:
    """Joins by TensorFlow's ``MultiWorkerMirroredStrategy`` over gRPC."""
    base.init()
    workers = allgather_object(_free_address())
    task = {"type": "worker", "index": base.rank()}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    def make(sums: Sums) -> Program:
        def in_replica(*tensors: Any) -> Any:
            tensors = tuple(tf.identity(one) for one in tensors)  # on this worker's device, which arguments lack
            for _ in range(sums.chain):
                context = tf.distribute.get_replica_context()
                tensors = tuple(context.all_reduce(tf.distribute.ReduceOp.SUM, list(tensors)))
            return tensors

        def program(*tensors: Any) -> Any:
            return strategy.run(in_replica, args=tensors)

        return _tensorflow_program(tf.function(program, autograph=False))

    return f"tf.distribute of TensorFlow {tf.__version__}", make


# -- JAX ---------------------------------------------------------------------------------------------------------------


def join_jax(threads: int) -> tuple[str, Make]:
    """Joins with `ringtune.jax`: one call of the handler for all tensors, in ``jit``."""
    del threads
    import jax

    import ringtune.jax as hvd

    hvd.init()

    def make(sums: Sums) -> Program:
        def chained(tensors: Any) -> Any:
            for _ in range(sums.chain):
                tensors = hvd.allreduce(tensors, op=hvd.Sum, name="bench")
            return tensors

        program = jax.jit(chained, donate_argnums=0)
        return Program(
            lambda array: jax.numpy.array(array, copy=True),
            lambda tensors: jax.block_until_ready(program(list(tensors))),
            np.asarray,
        )

    return f"JAX {jax.__version__}", make


def join_jax_gloo(threads: int) -> tuple[str, Make]:
    """Joins by JAX's own processes: global arrays, summed by Gloo."""
    del threads
    base.init()
    address = broadcast_object(_free_address(), 0)
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, base.size(), base.rank())
    try:
        from jax import shard_map
    except ImportError:  # before JAX 0.6
        from jax.experimental.shard_map import shard_map
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("ranks",))
    spread = jax.sharding.PartitionSpec("ranks")
    sharding = jax.sharding.NamedSharding(mesh, spread)

    def make(sums: Sums) -> Program:
        def in_rank(tensors: Any) -> Any:
            for _ in range(sums.chain):
                tensors = jax.lax.psum(tensors, "ranks")
            return tensors

        # By the old name of the option too: a sum of what all ranks hold alike is meant.
        unchecked = "check_vma" if hasattr(jax, "shard_map") else "check_rep"
        mapped = shard_map(in_rank, mesh=mesh, in_specs=spread, out_specs=spread, **{unchecked: False})
        program = jax.jit(mapped, donate_argnums=0)
        return Program(
            lambda array: jax.make_array_from_process_local_data(sharding, array[None].copy()),
            lambda tensors: jax.block_until_ready(program(list(tensors))),
            lambda tensor: np.asarray(tensor.addressable_data(0))[0],
        )

    return f"global arrays of JAX {jax.__version__}, Gloo", make


def join_mpi4jax(threads: int) -> tuple[str, Make]:
    """Joins by mpi4jax, in a job of mpirun's."""
    del threads
    base.init()
    import jax
    import mpi4jax
    from mpi4py import MPI

    def make(sums: Sums) -> Program:
        def chained(tensors: Any) -> Any:
            for _ in range(sums.chain):
                tensors = [mpi4jax.allreduce(one, MPI.SUM) for one in tensors]
            return tensors

        program = jax.jit(chained, donate_argnums=0)
        return Program(
            lambda array: jax.numpy.array(array, copy=True),
            lambda tensors: jax.block_until_ready(program(list(tensors))),
            np.asarray,
        )

    return f"mpi4jax {mpi4jax.__version__}, JAX {jax.__version__}", make


# -- Keras ----------------------------------------------------------------------------------------------------------


def join_keras(threads: int) -> tuple[str, Make]:
    """Joins with `ringtune.keras` on torch: what its optimizers reduce in ``apply``; other backends compile a step."""
    os.environ["KERAS_BACKEND"] = "torch"
    import keras
    import torch

    import ringtune.keras as hvd
    from ringtune.common.keras.reducers import wrapping_for

    torch.set_num_threads(threads)
    hvd.init()
    wrapping = wrapping_for("torch", op=hvd.Sum)

    def make(sums: Sums) -> Program:
        def run(tensors: Sequence[Any]) -> Sequence[Any]:
            for _ in range(sums.chain):
                tensors = wrapping.reduce(list(tensors), list(tensors))
            return tensors

        return Program(lambda array: torch.from_numpy(array.copy()), run, np.asarray)

    return f"Keras {keras.__version__}, torch {torch.__version__}", make


# -- MXNet -------------------------------------------------------------------------------------------------------------


def join_mxnet(threads: int) -> tuple[str, Make]:
    """Joins with `ringtune.mxnet`: operations of MXNet's engine, which has no compiled code."""
    del threads
    import mxnet as mx

    import ringtune.mxnet as hvd

    hvd.init()

    def make(sums: Sums) -> Program:
        def run(tensors: Sequence[Any]) -> Sequence[Any]:
            for _ in range(sums.chain):
                for index, tensor in enumerate(tensors):
                    hvd.allreduce_(tensor, op=hvd.Sum, name=f"bench.{index}", priority=-index)
            for tensor in tensors:
                tensor.wait_to_read()
            return tensors

        return Program(lambda array: mx.nd.array(array, dtype=array.dtype), run, lambda tensor: tensor.asnumpy())

    return f"MXNet {mx.__version__}", make


JOIN: dict[str, Callable[[int], tuple[str, Make]]] = {
    "torch": join_torch,
    "numpy": join_numpy,
    "tensorflow": join_tensorflow,
    "tf.distribute": join_distribute,
    "jax": join_jax,
    "jax-gloo": join_jax_gloo,
    "mpi4jax": join_mpi4jax,
    "keras": join_keras,
    "mxnet": join_mxnet,
}
"""By the name of a contender: takes the number of compute threads, joins the job, returns what makes its programs."""
