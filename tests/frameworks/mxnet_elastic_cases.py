"""What ranks of MXNet do when others are lost, and states of elastic training."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import ringtune.mxnet as hvd
from ringtune.common.framework_errors import failure_of
from ringtune.errors import RingtuneError
from tests.frameworks.mxnet_cases import as_by_default, equal, own


def reduce_until_it_fails() -> tuple[str, str, str]:
    """Return class and text of MXNet's error, and the class of ringtune's."""
    told = False
    while True:
        try:
            hvd.allreduce(own(10), name="again").wait_to_read()
        except mx.base.MXNetError as error:
            return type(error).__name__, str(error), type(failure_of(error)).__name__
        if not told:
            print("reducing", file=sys.stderr, flush=True)
            told = True


def lost() -> str:
    """Lose rank 1 in the middle; return what the elastic loop of a job with fixed ranks raises."""

    @hvd.elastic.run
    def train(state: Any) -> None:
        while state.batch < 100_000:
            hvd.allreduce_(state.params["x"], name="x")
            state.batch += 1
            if state.batch == 5 and hvd.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if state.batch % 3 == 0:
                state.commit()

    state = hvd.elastic.MxnetState({"x": mx.nd.ones(3)}, batch=0)
    try:
        train(state)
    except hvd.HorovodInternalError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def elastic_errors() -> dict[str, str]:
    """Return what becomes of errors that a training function raises, or leaves in the engine."""

    def mismatch() -> None:
        hvd.allreduce(mx.nd.ones(2 + hvd.rank()), name="wrong")

    def of_mxnet() -> None:
        mx.nd.dot(mx.nd.ones((2, 3)), mx.nd.ones((2, 3)))

    def of_script() -> None:
        raise ValueError("of the script")

    became = {}
    for name, fail in {"a collective": mismatch, "MXNet": of_mxnet, "the script": of_script}.items():
        state = hvd.elastic.MxnetState({"x": own(2)}, calls=0)

        @hvd.elastic.run
        def train(state: Any, fail: Callable[[], None] = fail) -> str:
            equal(state.params["x"], [1, 1])
            state.calls += 1
            state.commit()
            state.params["x"][...] = 9
            if state.calls == 1:
                fail()
            return "a new try"

        try:
            became[name] = train(state)
        except Exception as error:
            became[name] = type(error).__name__
    return became


@as_by_default
def states() -> None:
    """Parameters, the trainer's state and attributes follow rank 0, and come back as they were committed."""

    def fresh() -> tuple[Any, Any]:
        net = gluon.nn.Dense(1, in_units=2)
        net.initialize(mx.init.Constant(hvd.rank()))
        return net, hvd.DistributedTrainer(net.collect_params(), "adam", {"learning_rate": 0.1})

    def train(net: Any, trainer: Any) -> None:
        with autograd.record():
            loss = net(own(4, 2)).sum()
        loss.backward()
        trainer.step(4)

    net, trainer = fresh()
    state = hvd.elastic.MxnetState(net.collect_params(), trainer, epoch=hvd.rank(), names=["a"])
    state.sync()
    equal(net.weight.data(), [[0, 0]])
    assert state.epoch == 0
    train(net, trainer)
    state.names.append("b")
    state.commit()
    committed = net.weight.data().asnumpy()
    train(net, trainer)
    after = net.weight.data().asnumpy()
    state.names.append("c")
    state.restore()
    equal(net.weight.data(), committed)
    assert state.names == ["a", "b"]
    train(net, trainer)  # with the moments as they were, and no step counted twice
    np.testing.assert_allclose(net.weight.data().asnumpy(), after, rtol=1e-5)
    # What a later process finds on the disk.
    kept = pickle.loads(pickle.dumps(state.saved()))
    later, other = fresh()
    again = hvd.elastic.MxnetState(later.collect_params(), other, epoch=9, names=[])
    again.take_saved(kept)
    equal(later.weight.data(), committed)
    assert again.names == ["a", "b"]
    train(later, other)
    np.testing.assert_allclose(later.weight.data().asnumpy(), after, rtol=1e-5)
    try:
        hvd.elastic.MxnetState({"x": mx.nd.ones(5)}, epoch=9, names=[]).take_saved(kept)
    except RingtuneError as error:
        assert "has parameters of the shapes" in str(error)
    else:
        raise AssertionError("another model was taken")
