"""What ranks do with arrays, trainers and optimizers of MXNet."""

from __future__ import annotations

import functools
import gc
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import ringtune.mxnet as hvd
from ringtune import session
from ringtune.errors import RingtuneError

F = TypeVar("F", bound=Callable[..., Any])


def as_by_default(case: F) -> F:
    """Let a case run as MXNet is by default, where a size of 0 means one that is not known; gluon needs that."""

    @functools.wraps(case)
    def run(*args: Any, **options: Any) -> Any:
        with mx.util.np_shape(False):
            return case(*args, **options)

    return cast("F", run)


def mean() -> float:
    """Return the mean of rank + 1 over the ranks."""
    return (hvd.size() + 1) / 2


def own(*shape: int, dtype: str = "float32") -> Any:
    """Return an array full of this rank's number + 1."""
    return mx.nd.full(shape, hvd.rank() + 1, dtype=dtype)


def equal(array: Any, expected: Any) -> None:
    np.testing.assert_array_equal(array.asnumpy(), expected)


def in_place() -> None:
    """Forms with an underscore, also on views of one array; NumPy's interface; arrays that nobody keeps."""
    rank, size = hvd.rank(), hvd.size()
    one = own(3, 2)
    assert hvd.allreduce_(one) is one
    equal(one, np.full((3, 2), mean()))
    whole = mx.nd.concat(own(2, 2), own(2, 2) * 10, dim=0)
    views = [whole[0:2], whole[2:4]]
    hvd.grouped_allreduce_(views, op=hvd.Sum)
    equal(whole[0:2], np.full((2, 2), mean() * size))
    equal(whole[2:4], np.full((2, 2), 10 * mean() * size))
    equal(hvd.broadcast_(own(2), size - 1), [size, size])
    found = hvd.allreduce(mx.np.full((2,), rank + 1.0), op=hvd.Max)
    assert isinstance(found, mx.np.ndarray) and isinstance(hvd.allgather(found), mx.np.ndarray)
    assert found.asnumpy().tolist() == [size, size]
    results = [hvd.allreduce(own(1000) * index) for index in range(50)]
    gc.collect()
    for index, result in enumerate(results):
        equal(result, np.full(1000, index * mean()))
    together = hvd.grouped_allgather([own(1), own(2, 3, dtype="int32")], name="together")
    equal(together[0], np.arange(size) + 1)
    equal(together[1], np.repeat(np.arange(size) + 1, 2)[:, None].repeat(3, 1))
    parts = hvd.grouped_reducescatter([own(size, 2), own(2 * size)], op=hvd.Sum)
    equal(parts[0], np.full((1, 2), mean() * size))
    equal(parts[1], np.full(2, mean() * size))
    assert hvd.grouped_allgather([]) == [] and hvd.grouped_allreduce_([]) == []
    rows, received = hvd.alltoall(own(size), splits=mx.nd.ones(size, dtype="int32"))
    equal(rows, np.arange(size) + 1)
    equal(received, np.ones(size))


class Halved:
    """A compression of the script's own."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor / 2, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor * 2

    wire = None


def compressed() -> None:
    """Compressions of the script, and Adasum of compressed gradients, cast by MXNet."""
    one = own(4)
    equal(hvd.allreduce(one, compression=Halved), np.full(4, mean()))
    equal(one, np.full(4, hvd.rank() + 1))
    hvd.allreduce_(one, compression=Halved, op=hvd.Sum)
    equal(one, np.full(4, mean() * hvd.size()))
    numbers = own(4, dtype="int32")
    same = hvd.allreduce(mx.nd.ones(4), op=hvd.Adasum, compression=hvd.Compression.fp16)
    equal(same, np.ones(4))
    equal(hvd.allreduce(numbers, op=hvd.Sum, compression=hvd.Compression.fp16), np.full(4, mean() * hvd.size()))
    equal(numbers, np.full(4, hvd.rank() + 1))


def late() -> None:
    """Collectives that are asked for in other orders, while their arrays are still computed: the engine waits."""
    names = [f"late.{index}" for index in range(40)]
    order = names if hvd.rank() % 2 == 0 else names[::-1]
    heavy = mx.nd.ones((200, 200))
    found = {}
    for name in order:
        slow = mx.nd.dot(heavy, heavy) * 0 + (hvd.rank() + 1)
        found[name] = hvd.allreduce(slow, name=name, op=hvd.Sum, priority=-len(found))
    for result in found.values():
        equal(result[0, :2], [mean() * hvd.size()] * 2)


def refused() -> dict[str, str]:
    """Return what is said to what MXNet has and cannot travel, and to wrong arguments."""
    sparse = mx.nd.sparse.row_sparse_array((np.ones((1, 2)), [0]), shape=(3, 2))
    sgd = mx.optimizer.SGD()
    net = gluon.nn.Dense(1)
    calls: dict[str, Callable[[], Any]] = {
        "numpy": lambda: hvd.allreduce(np.ones(2)),
        "sparse": lambda: hvd.allreduce(sparse),
        "no list": lambda: hvd.grouped_allreduce(own(2)),
        "priority": lambda: hvd.allreduce(own(2), priority="high"),
        "params": lambda: hvd.broadcast_parameters([own(2)]),
        "param": lambda: hvd.broadcast_parameters({"w": 1.0}),
        "root": lambda: hvd.broadcast_parameters({"w": own(2)}, root_rank=99),
        "prefix": lambda: hvd.broadcast_parameters({"w": own(2)}, prefix=3),
        "predivide": lambda: hvd.DistributedOptimizer(sgd, gradient_predivide_factor=0),
        "groups": lambda: hvd.DistributedOptimizer(sgd, num_groups=-1),
        "compression": lambda: hvd.DistributedTrainer(net.collect_params(), "sgd", compression=16),
        "trainer's prefix": lambda: hvd.DistributedTrainer(net.collect_params(), "sgd", prefix=1),
        "state": lambda: hvd.elastic.MxnetState([own(2)]),
    }
    said = {}
    for name, call in calls.items():
        try:
            call()
            said[name] = ""
        except RingtuneError as error:
            said[name] = str(error)
    return said


@as_by_default
def parameters() -> None:
    """Arrays and parameters, initialised or not; whatever order they are in."""
    rank = hvd.rank()
    arrays = {"b": mx.nd.full((2,), rank), "a": mx.nd.full((3,), 10 + rank)}
    hvd.broadcast_parameters(arrays, root_rank=hvd.size() - 1)
    equal(arrays["a"], [9 + hvd.size()] * 3)
    equal(arrays["b"], [hvd.size() - 1] * 2)
    net = gluon.nn.HybridSequential(prefix="deferred_")
    with net.name_scope():
        net.add(gluon.nn.Dense(3, in_units=2), gluon.nn.Dense(2), gluon.nn.BatchNorm())
    net.initialize(mx.init.Uniform(1 + rank))
    hvd.broadcast_parameters(net.collect_params(), root_rank=0, prefix="net.")
    net(mx.nd.ones((1, 2)))
    for parameter in net.collect_params().values():
        every = hvd.allgather(parameter.data().reshape((1, -1))).asnumpy()
        assert (every == every[:1]).all(), parameter.name
    two = gluon.Parameter("two", shape=(2,))
    two.initialize(mx.init.Constant(rank), ctx=[mx.cpu(0), mx.cpu(1)])
    hvd.broadcast_parameters({"two": two}, root_rank=1)
    assert [one.asnumpy().tolist() for one in two.list_data()] == [[1, 1], [1, 1]]
    assert hvd.broadcast_object({"rank": rank}, 1) == {"rank": 1}
    assert hvd.allgather_object(rank) == list(range(hvd.size()))


@as_by_default
def trainers(**options: Any) -> None:
    """Two trainers, whose gradients are averaged; the optimizer stays as it was, however often it is wrapped."""
    for kind in ("given", "wrapped", "named"):
        nets = [gluon.nn.Dense(2, in_units=3, use_bias=False) for _ in range(2)]
        made = []
        for net in nets:
            net.initialize(mx.init.Zero())
            given = mx.optimizer.SGD(learning_rate=1.0)
            wrapped = hvd.DistributedOptimizer(given)
            assert given.rescale_grad == 1.0 and wrapped.rescale_grad == 1.0 and wrapped.learning_rate == 1.0
            optimizer = {"given": given, "wrapped": wrapped, "named": "sgd"}[kind]
            settings = {"learning_rate": 1.0} if kind == "named" else None
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                made.append(hvd.DistributedTrainer(net.collect_params(), optimizer, settings, **options))
            assert any("unwrapped" in str(one.message) for one in said) == (kind == "wrapped")
        for step in range(1, 3):
            with autograd.record():
                losses = [net(own(4, 3)).sum() * factor for net, factor in zip(nets, (1, 10), strict=True)]
            for loss in losses:
                loss.backward()
            for trainer in reversed(made):
                trainer.step(4)
            for net, factor in zip(nets, (1, 10), strict=True):
                equal(net.weight.data(), np.full((2, 3), -step * factor * mean()))


@as_by_default
def several_devices() -> None:
    """Gradients of all devices of a process count; Horovod takes those of the first."""
    parameter = gluon.Parameter("weight", shape=(2,))
    parameter.initialize(mx.init.Zero(), ctx=[mx.cpu(0), mx.cpu(1)])
    trainer = hvd.DistributedTrainer([parameter], "sgd", {"learning_rate": 1.0})
    with autograd.record():
        losses = [
            (parameter.data(device) * (hvd.rank() + 1) * factor).sum()
            for device, factor in ((mx.cpu(0), 1), (mx.cpu(1), 10))
        ]
    for loss in losses:
        loss.backward()
    trainer.step(1)
    for value in parameter.list_data():
        equal(value, np.full(2, -11 * mean()))


@as_by_default
def optimizer(groups: int) -> None:
    """An updater's gradients, one by one and together; the optimizer can be pickled as kvstores do."""
    given = hvd.DistributedOptimizer(mx.optimizer.SGD(learning_rate=1.0), num_groups=groups)
    weights = [mx.nd.zeros((2,)) for _ in range(3)]
    for index, weight in enumerate(weights):
        given.update(index, weight, own(2) * (index + 1), given.create_state(index, weight))
        equal(weight, np.full(2, -mean() * (index + 1)))
    states = [given.create_state_multi_precision(index, weight) for index, weight in enumerate(weights)]
    given.update_multi_precision([0, 1, 2], weights, [own(2) for _ in weights], states)
    for index, weight in enumerate(weights):
        equal(weight, np.full(2, -mean() * (index + 2)))
    given.set_learning_rate(0.5)
    assert given._optimizer.learning_rate == 0.5


@as_by_default
def some_ranks() -> list[float]:
    """Train in a set of the outer ranks; the others train alone."""
    members = hvd.add_process_set([0, hvd.size() - 1])
    weight = gluon.Parameter("weight", shape=(1,))
    weight.initialize(mx.init.Zero())
    trainer = hvd.DistributedTrainer([weight], "sgd", {"learning_rate": 1.0}, process_set=members)
    with autograd.record():
        loss = (weight.data() * (hvd.rank() + 1)).sum()
    loss.backward()
    trainer.step(1)
    found = weight.data().asnumpy().tolist()
    hvd.barrier()
    hvd.remove_process_set(members)
    return list(found)


@as_by_default
def training(hybrid: bool = False, steps: int = 20) -> list[float]:
    """Train a network with convolutions on this rank's rows; return the losses over all rows."""
    random = np.random.default_rng(5)
    images = random.normal(size=(48, 1, 12, 12)).astype(np.float32)
    labels = (images.mean(axis=(1, 2, 3)) > 0).astype(np.float32) + 2 * (images[:, 0, 0, 0] > 0)
    mx.random.seed(3 + hvd.rank())
    net = gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(
            gluon.nn.Conv2D(16, 3, activation="relu"), gluon.nn.MaxPool2D(), gluon.nn.Conv2D(32, 3, activation="relu"),
            gluon.nn.Flatten(), gluon.nn.Dense(32, activation="relu"), gluon.nn.Dense(4),
        )  # fmt: skip
    net.initialize(mx.init.Xavier())
    if hybrid:
        net.hybridize()
    net(mx.nd.array(images[:1]))
    if hvd.rank() == 0:  # what one process begins with too
        mx.random.seed(7)
        net.initialize(mx.init.Xavier(), force_reinit=True)
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    trainer = hvd.DistributedTrainer(net.collect_params(), "adam", {"learning_rate": 0.003})
    error = gluon.loss.SoftmaxCrossEntropyLoss()
    mine = slice(hvd.rank(), None, hvd.size())
    rows, targets = mx.nd.array(images[mine]), mx.nd.array(labels[mine])
    losses = []
    for _ in range(steps):
        with autograd.record():
            loss = error(net(rows), targets)
        loss.backward()
        trainer.step(len(rows))
        losses.append(hvd.allreduce(loss.mean(), name="loss").asscalar().item())
    return losses


def steps(count: int) -> dict[str, int]:
    """Train; return how many steps the session has counted, and how many of them were not marked."""
    seen: list[Any] = []
    now = session.require()
    told = now._step_ended
    now._steps._ended = lambda stats: (seen.append(stats), told(stats))  # type: ignore[assignment]
    now._steps.watch()
    training(steps=count)
    mx.nd.waitall()
    now._steps.close()
    return {"steps": len(seen), "detected": sum(one.detected for one in seen), "bytes": seen[-1].bytes if seen else 0}


def once_more() -> str:
    """Leave the job and join it again; return what is said between."""
    said = ""
    for _ in range(2):
        equal(hvd.allreduce(own(2), op=hvd.Sum), [mean() * hvd.size()] * 2)
        hvd.shutdown()
        try:
            hvd.allreduce(mx.nd.ones(2))
        except RingtuneError as error:
            said = f"{type(error).__name__}: {error}"
        hvd.init()
    return said
