"""Arguments that `DistributedOptimizer` refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import ringtune.torch as hvd
from ringtune.errors import NotSupported
from ringtune.session import Session
from tests.core.test_torch_optimizer import make_model, wrap

Open = Callable[..., Session]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"backward_passes_per_step": 0}, ValueError, "backward_passes_per_step must be > 0"),
        ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, ValueError, "gradient_predivide_factor not supported"),
        ({"op": hvd.Adasum}, NotSupported, "Adasum"),
        ({"groups": 0}, ValueError, "positive integer"),
        ({"groups": -1}, ValueError, "positive integer"),
        ({"groups": "x"}, ValueError, "positive integer or a list of lists"),
        ({"groups": [1]}, ValueError, "list of lists of tensors"),
        ({"groups": [[1]]}, ValueError, "must consist of torch.Tensor"),
        ({"groups": [[torch.ones(1)]]}, ValueError, "no parameter of the optimizer"),
        ({"named_parameters": [torch.ones(1)]}, ValueError, "sequence of tuples"),
        ({"named_parameters": [("a", torch.ones(1)), ("a", torch.ones(1))]}, ValueError, "unique. Found duplicates: a"),
        ({"named_parameters": [("a", torch.ones(1))]}, ValueError, "4 of 4 model parameters were not named"),
        ({"process_set": hvd.ProcessSet([0])}, TypeError, "not registered"),
        ({"compression": "fp16"}, ValueError, "expected Compression.none"),
        ({"compression": hvd.Compression.topk, "op": hvd.Max}, ValueError, "only the operations Average and Sum"),
    ],
)
def test_bad_arguments(options: dict[str, Any], error: type[Exception], message: str, opened: Open) -> None:
    opened(3)
    optimizer = torch.optim.SGD(make_model().parameters(), lr=0.1)
    with pytest.raises(error, match=message):
        hvd.DistributedOptimizer(optimizer, **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hvd.Compression.powersgd(rank=0), "rank=0"),
        (lambda: hvd.Compression.powersgd(rank=1.5), "rank=1.5"),
        (lambda: hvd.Compression.powersgd(start_iteration=-1), "start_iteration"),
        (lambda: hvd.Compression.powersgd(min_compression_rate=0), "min_compression_rate=0"),
        (lambda: hvd.Compression.topk(ratio=0), "ratio=0"),
        (lambda: hvd.Compression.topk(ratio=1.1), "ratio=1.1"),
        (lambda: hvd.Compression.topk(min_elements=0), "min_elements=0"),
        (lambda: hvd.Compression.topk().compress(torch.ones(1)), "give it to DistributedOptimizer"),
        (lambda: hvd.Compression.topk().decompress(torch.ones(1), None), "give it to DistributedOptimizer"),
    ],
)
def test_bad_compressions(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_parameter_twice_in_groups(opened: Open) -> None:
    opened(2)
    model = make_model()
    with pytest.raises(ValueError, match="only appear once"):
        wrap(model, groups=[[model[0].weight], [model[0].weight]])


def test_before_init() -> None:
    with pytest.raises(ValueError, match="has not been initialized"):
        wrap(make_model())


def test_find_duplicates(opened: Open) -> None:
    opened()
    assert wrap(make_model()).find_duplicates(["a", "b", "a"]) == {"a"}
