from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import ringtune.torch as hvd
from ringtune.common.util import num_rank_is_power_2, split_list
from ringtune.session import Session
from tests.core.fake_native import fake_of

Open = Callable[..., Session]


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))


def test_broadcast_parameters_of_a_state_dict_in_order_of_names(opened: Open) -> None:
    now = opened(2)
    hvd.broadcast_parameters(model().state_dict(), root_rank=0)
    names = [call[1] for call in fake_of(now).calls]
    assert names == sorted(names) and "broadcast.0.weight" in names and fake_of(now).open_tickets == 0


@pytest.mark.parametrize("kind", ["tensors", "pairs"])
def test_broadcast_parameters_of_lists(kind: str, opened: Open) -> None:
    now = opened(2)
    hvd.broadcast_parameters(list(model().parameters() if kind == "tensors" else model().named_parameters()), 0)
    assert len(fake_of(now).calls) == 4


@pytest.mark.parametrize("params", [model().named_parameters(), 3, None])
def test_broadcast_parameters_of_something_else(params: Any, opened: Open) -> None:
    opened(2)
    with pytest.raises(ValueError, match="invalid params of type"):
        hvd.broadcast_parameters(params, 0)


def test_broadcast_parameters_names_what_is_no_tensor(opened: Open) -> None:
    opened(2)
    with pytest.raises(ValueError, match=r"'a'=3 is an int, expected a torch\.Tensor"):
        hvd.broadcast_parameters({"a": 3}, 0)


def test_broadcast_parameters_waits_for_all_before_it_fails(opened: Open) -> None:
    now = opened(2)
    fake_of(now).failing.add("broadcast.a")
    with pytest.raises(hvd.HorovodInternalError, match=r"broadcast.a"):
        hvd.broadcast_parameters({"a": torch.ones(1), "b": torch.ones(1)}, 0)
    assert fake_of(now).open_tickets == 0


@pytest.mark.parametrize("value", [None, 7, {"a": [1, 2]}, "x" * 100_000], ids=["none", "int", "dict", "long"])
def test_objects(value: Any, opened: Open) -> None:
    opened(2)
    assert hvd.broadcast_object(value, 0) == value
    assert hvd.allgather_object(value) == [value, value]


def test_names_of_an_objects_broadcasts(opened: Open) -> None:
    now = opened(2)
    hvd.broadcast_object([1], name="o")
    assert [call[1] for call in fake_of(now).calls] == ["broadcast.o.sz", "broadcast.o.t"]


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1}, "Adam": {}, "AdamW": {"amsgrad": True}, "Adagrad": {}, "RMSprop": {"momentum": 0.9},
    "Adadelta": {}, "Adamax": {}, "NAdam": {}, "RAdam": {}, "Rprop": {}, "ASGD": {}, "LBFGS": {},
}  # fmt: skip


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_optimizer_state(name: str, opened: Open) -> None:
    opened(2)
    net = torch.nn.Linear(3, 1)
    optimizer = getattr(torch.optim, name)(net.parameters(), **OPTIMIZERS[name])

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = net(torch.ones(2, 3)).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    before = str(optimizer.state_dict())
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert str(optimizer.state_dict()) == before


STATELESS: dict[str, dict[str, Any]] = {**OPTIMIZERS, "SGD": {"lr": 0.1, "weight_decay": 0.1}}
del STATELESS["Adagrad"]  # has its state from the beginning


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("name", list(STATELESS))
def test_a_gradient_of_zeros_stands_where_horovod_leaves_one(name: str, wrapped: bool, opened: Open) -> None:
    now = opened(2)
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1), torch.nn.Linear(1, 1)).double()
    frozen, given = net[0].weight.requires_grad_(False), torch.full((1, 2), 3.0, dtype=torch.float64)
    net[1].weight.grad = given
    values = [param.detach().clone() for param in net.parameters()]
    optimizer = getattr(torch.optim, name)(net.parameters(), **STATELESS[name])
    optimizer = hvd.DistributedOptimizer(optimizer, net.named_parameters()) if wrapped else optimizer
    state = str(optimizer.state_dict())
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert frozen.grad is None and net[1].weight.grad is given and float(given.sum()) == 6.0
    for param in (net[0].bias, net[1].bias, net[2].weight, net[2].bias):
        assert param.grad is not None and param.grad.dtype == torch.float64 and not param.grad.any()
    assert all(torch.equal(param, value) for param, value in zip(net.parameters(), values, strict=True))
    assert str(optimizer.state_dict()) == state and fake_of(now).open_tickets == 0


def test_gradients_of_sparse_embeddings_are_sparse(opened: Open) -> None:
    opened(2)
    net = torch.nn.ModuleList([torch.nn.Embedding(4, 3, sparse=True), torch.nn.EmbeddingBag(4, 3, sparse=True),
                               torch.nn.Embedding(4, 3)])  # fmt: skip
    hvd.broadcast_optimizer_state(torch.optim.SGD(net.parameters(), 0.1), 0, model=net)
    assert [one.weight.grad.is_sparse for one in net] == [True, True, False]
    for one in net:
        assert one.weight.grad.to_dense().eq(0).all() and one.weight.grad.shape == (4, 3)
        one.weight.grad = None
    hvd.broadcast_optimizer_state(torch.optim.SparseAdam(net.parameters()), 0)
    assert all(one.weight.grad.is_sparse for one in net)


def test_a_trained_optimizers_gradients_are_left_alone(opened: Open) -> None:
    opened(2)
    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert net.weight.grad is None and net.bias.grad is None


@pytest.mark.parametrize(
    ("items", "parts", "expected"), [([1, 2, 3], 2, [[1, 2], [3]]), ([1], 2, [[1], []]), ([], 1, [[]])]
)
def test_split_list(items: list[int], parts: int, expected: list[list[int]]) -> None:
    assert split_list(items, parts) == expected


@pytest.mark.parametrize(("number", "expected"), [(0, False), (1, True), (6, False), (8, True)])
def test_power_of_two(number: int, expected: bool) -> None:
    assert num_rank_is_power_2(number) == expected
