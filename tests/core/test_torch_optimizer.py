"""`DistributedOptimizer` over a fake world of ranks that all do the same."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import ringtune.torch as hvd
from ringtune.errors import InvalidArgument
from ringtune.session import Session
from tests.core.fake_native import fake_of

Open = Callable[..., Session]


def make_model() -> torch.nn.Sequential:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))


def wrap(model: torch.nn.Module, **options: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **options)


def backward(model: torch.nn.Module, rows: int = 4) -> None:
    model(torch.ones(rows, 3)).sum().backward()


def reductions(now: Session) -> list[str]:
    return [call[1] for call in fake_of(now).calls if call[0] == "allreduce"]


NAMES = ["allreduce.0.weight", "allreduce.0.bias", "allreduce.1.weight", "allreduce.1.bias"]


def test_the_class_is_made_as_in_horovod(opened: Open) -> None:
    opened(2)
    model = make_model()
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(base, named_parameters=model.named_parameters())
    assert isinstance(optimizer, torch.optim.SGD) and type(optimizer).__name__ == "SGD"
    assert type(optimizer).__module__ == "ringtune.torch.optimizer"
    assert optimizer.param_groups[0] is base.param_groups[0] and optimizer.defaults == base.defaults
    assert set(optimizer._parameter_names.values()) == {name.removeprefix("allreduce.") for name in NAMES}


def test_each_gradient_starts_in_backward(opened: Open) -> None:
    now = opened(2)
    model = make_model()
    optimizer = wrap(model)
    backward(model)
    assert sorted(reductions(now)) == sorted(NAMES)
    optimizer.step()
    assert len(reductions(now)) == 4 and fake_of(now).steps == 1 and fake_of(now).open_tickets == 0


def test_the_gradient_itself_is_reduced(opened: Open) -> None:
    opened(3)
    model = make_model()
    optimizer = wrap(model, op=hvd.Sum)
    backward(model)
    alone = make_model()
    backward(alone)
    optimizer.synchronize()
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        assert ours.grad is not None and theirs.grad is not None and torch.equal(ours.grad, theirs.grad * 3)


def test_one_rank_needs_no_reduction_but_counts_steps(opened: Open) -> None:
    now = opened()
    model = make_model()
    optimizer = wrap(model)
    backward(model)
    optimizer.step()
    assert reductions(now) == [] and fake_of(now).steps == 1


def test_unnamed_parameters(opened: Open) -> None:
    now = opened(2)
    model = make_model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    backward(model)
    optimizer.step()
    assert sorted(reductions(now)) == [f"allreduce.allreduce.noname.0.{i}" for i in range(4)]


def reported(now: Session) -> list[str]:
    return [call[1] for call in fake_of(now).calls if call[0] == "report_gradient"]


def test_a_gradient_that_no_rank_has_stays_none(opened: Open) -> None:
    now = opened(2)
    model = make_model()
    optimizer = wrap(model)
    model[0](torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert sorted([*reductions(now), *reported(now)]) == sorted(NAMES)
    assert model[1].weight.grad is None
    optimizer.step()  # one tensor asks for both that no rank had
    assert reductions(now)[2:] == [*NAMES[:2], "allreduce.unused.0.weight"] and len(reported(now)) == 2


def test_frozen_parameters_stay_out(opened: Open) -> None:
    now = opened(2)
    model = make_model()
    model[0].weight.requires_grad_(False)
    optimizer = wrap(model)
    backward(model)
    optimizer.step()
    assert sorted(reductions(now)) == sorted(NAMES[1:])


def test_passes_are_summed_up(opened: Open) -> None:
    now = opened(2)
    model = make_model()
    optimizer = wrap(model, backward_passes_per_step=2)
    backward(model)
    assert reductions(now) == []
    backward(model)
    assert len(reductions(now)) == 4
    optimizer.step()
    optimizer.set_backward_passes_per_step(1)
    backward(model)
    assert len(reductions(now)) == 8 and optimizer.backward_passes_per_step == 1
    optimizer.step()


def test_a_step_before_all_passes_reduces_what_is_there(opened: Open) -> None:
    now = opened(2)
    model = make_model()
    optimizer = wrap(model, backward_passes_per_step=3)
    backward(model)
    optimizer.step()
    assert len(reductions(now)) == 4


def test_too_many_passes(opened: Open) -> None:
    opened(2)
    model = make_model()
    optimizer = wrap(model)
    backward(model)
    with pytest.raises(AssertionError, match="more than backward_passes_per_step"):
        backward(model)
    with pytest.raises(InvalidArgument, match="changed after backward"):  # this rank's gradient was added to the sum
        optimizer.step()
    optimizer.zero_grad()
    backward(model)
    optimizer.step()


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_takes_its_argument(set_to_none: bool, opened: Open) -> None:
    opened(2)
    model = make_model()
    optimizer = wrap(model)
    for _ in range(2):
        backward(model)
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)
        assert (model[0].weight.grad is None) == set_to_none


def test_zero_grad_while_in_flight(opened: Open) -> None:
    opened(2)
    model = make_model()
    optimizer = wrap(model)
    backward(model)
    with pytest.raises(AssertionError, match=r"zero_grad\(\) was called after loss.backward"):
        optimizer.zero_grad()
    optimizer.step()


def test_step_after_synchronize_warns(opened: Open) -> None:
    opened(2)
    model = make_model()
    optimizer = wrap(model)
    backward(model)
    optimizer.synchronize()
    with pytest.warns(UserWarning, match="called without optimizer.skip_synchronize"):
        optimizer.step()


def test_skip_synchronize_keeps_clipped_gradients(opened: Open) -> None:
    now = opened(2)
    model = make_model()
    optimizer = wrap(model)
    backward(model)
    optimizer.synchronize()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    with warnings.catch_warnings(), optimizer.skip_synchronize():
        warnings.simplefilter("error")
        optimizer.step()
    assert len(reductions(now)) == 4
    backward(model)
    optimizer.step()


@pytest.mark.parametrize("groups", [1, 2, 3, 99])
def test_groups_by_number(groups: int, opened: Open) -> None:
    now = opened(2)
    model = make_model()
    optimizer = wrap(model, groups=groups)
    backward(model)
    assert len(reductions(now)) == 4
    calls = [call[-2:] for call in fake_of(now).calls]
    assert len(set(calls)) == min(groups, 4) and all(calls.count(one) == one[1] for one in calls)
    optimizer.step()


def test_groups_by_list(opened: Open) -> None:
    now = opened(2)
    model = make_model()
    optimizer = wrap(model, groups=[[model[0].weight, model[1].bias]])
    backward(model)
    sizes = {call[1]: call[-1] for call in fake_of(now).calls}
    assert sizes == dict(zip(NAMES, [2, 0, 0, 2], strict=True))
    optimizer.step()


def test_a_group_with_an_unused_member_still_runs(opened: Open) -> None:
    now = opened(2)
    model = make_model()
    optimizer = wrap(model, groups=1)
    model[0](torch.ones(1, 3)).sum().backward()
    assert reductions(now) == []
    optimizer.step()
    assert len(reductions(now)) == 2 and len(reported(now)) == 2
    assert {(call[-2], call[-1]) for call in fake_of(now).calls} == {("allreduce.group.0.0.weight", 4)}
    optimizer.zero_grad()
    backward(model)
    optimizer.step()
    assert sorted(reductions(now)[2:]) == [*sorted(NAMES), "allreduce.unused.0.weight"]


def test_num_groups_is_deprecated(opened: Open) -> None:
    opened(2)
    with pytest.warns(DeprecationWarning, match="replaced by `groups`"):
        wrap(make_model(), num_groups=2)


def test_predivide_splits_the_average(opened: Open) -> None:
    now = opened(2)
    model = make_model()
    optimizer = wrap(model, gradient_predivide_factor=4.0)
    backward(model)
    assert {call[4:7] for call in fake_of(now).calls} == {(hvd.Average, 0.25, 4.0)}
    optimizer.step()


@pytest.mark.parametrize(("name", "number"), [("fp16", 5), ("bf16", 6)])
def test_compression(name: str, number: int, opened: Open) -> None:
    now = opened(2)
    model = make_model()
    optimizer = wrap(model, compression=getattr(hvd.Compression, name))
    backward(model)
    optimizer.synchronize()
    assert {call[3] for call in fake_of(now).calls} == {7} and set(fake_of(now).travelled) == {number}
    assert torch.equal(model[1].bias.grad, torch.tensor([4.0])) and model[0].weight.grad.dtype is torch.float32


@pytest.mark.parametrize("as_dense", [True, False])
def test_sparse_gradients(as_dense: bool, opened: Open) -> None:
    now = opened(2)
    model = torch.nn.Embedding(5, 2, sparse=True)
    optimizer = wrap(model, sparse_as_dense=as_dense)
    model(torch.tensor([1, 3])).sum().backward()
    optimizer.synchronize()
    grad = model.weight.grad
    assert grad is not None and grad.is_sparse
    expected = torch.zeros(5, 2)
    expected[[1, 3]] = 1
    assert torch.equal(grad.to_dense(), expected)
    assert ("allreduce.weight" in reductions(now)) == as_dense
    with optimizer.skip_synchronize():
        optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_dtypes_of_gradients(dtype: torch.dtype, opened: Open) -> None:
    opened(2)
    model = make_model().to(dtype)
    optimizer = wrap(model)
    model(torch.ones(2, 3, dtype=dtype)).sum().backward()
    optimizer.synchronize()
    assert model[1].bias.grad.dtype is dtype and float(model[1].bias.grad) == 2


def test_gradients_in_another_memory_order(opened: Open) -> None:
    opened(2)
    model = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    optimizer = wrap(model, op=hvd.Sum)
    data = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    model(data).square().sum().backward()
    assert model.weight.grad is not None
    optimizer.synchronize()
    reduced = model.weight.grad.clone()
    other = torch.nn.Conv2d(3, 4, 3)
    other.load_state_dict(model.state_dict())
    other(data.contiguous()).square().sum().backward()
    assert other.weight.grad is not None and torch.allclose(reduced, other.weight.grad * 2, rtol=1e-4, atol=1e-4)


def test_closures_are_reduced_at_each_call(opened: Open) -> None:
    now = opened(2)
    model = make_model()
    optimizer = wrap(model)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(4, 3)).square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() > 0
    assert sorted(reductions(now)) == sorted(NAMES)


def test_lbfgs_agrees_on_the_loss(opened: Open) -> None:
    now = opened(2)
    model = make_model()
    optimizer = hvd.DistributedOptimizer(torch.optim.LBFGS(model.parameters(), max_iter=3), model.named_parameters())

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(4, 3)).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert reductions(now).count("allreduce.optimizer.loss") == reductions(now).count("allreduce.0.weight") > 1


def test_a_failed_reduction_is_raised_once_and_training_can_go_on(opened: Open) -> None:
    now = opened(2)
    model = make_model()
    optimizer = wrap(model)
    fake_of(now).failing.add("allreduce.1.bias")
    backward(model)
    with pytest.raises(hvd.HorovodInternalError, match=r"allreduce.1.bias"):
        optimizer.step()
    assert fake_of(now).open_tickets == 0
    fake_of(now).failing.clear()
    optimizer.zero_grad()
    backward(model)
    optimizer.step()


def test_state_is_taken_over(opened: Open) -> None:
    opened(2)
    model = make_model()
    base = torch.optim.Adam(model.parameters())
    backward(model)
    base.step()
    optimizer = hvd.DistributedOptimizer(base, model.named_parameters())
    assert optimizer.state_dict()["state"].keys() == {0, 1, 2, 3}


def test_load_state_dict_while_in_flight(opened: Open) -> None:
    now = opened(2)
    model = make_model()
    optimizer = wrap(model)
    saved = optimizer.state_dict()
    backward(model)
    optimizer.load_state_dict(saved)
    assert fake_of(now).open_tickets == 0
    optimizer.zero_grad()
    backward(model)
    optimizer.step()


@pytest.mark.parametrize("before", [True, False])
def test_learning_rate_schedulers(before: bool, opened: Open) -> None:
    now = opened(2)
    model = make_model()
    base = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler: Any = torch.optim.lr_scheduler.StepLR(base, 1, 0.5) if before else None
    optimizer = hvd.DistributedOptimizer(base, model.named_parameters())
    scheduler = scheduler or torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    backward(model)
    optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.5 and len(reductions(now)) == 4
