"""`trace` of models that are called in other ways than once a step: its ranges nest, and no hook stays behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import ringtune.torch as hvd
from ringtune import session
from ringtune.errors import InvalidArgument
from ringtune.session import Session
from ringtune.torch.recorder import buckets
from tests.core.fake_native import fake_of
from tests.core.test_torch_optimizer import make_model, wrap

Open = Callable[..., Session]
INPUT = torch.ones(2, 3)
STEP = ["forward", "backward"]


class Ranges(list[tuple[str, int, int]]):
    """What was recorded, in the order of its end."""

    def names(self) -> list[str]:
        """The names; that any two ranges lie one in the other or apart is asserted."""
        for index, (_, begin, end) in enumerate(self):
            assert begin <= end
            for _, before_begin, before_end in self[:index]:
                assert before_end <= begin or begin <= before_begin <= before_end <= end
        return [name for name, _, _ in self]


@pytest.fixture
def ranges(opened: Open) -> Ranges:
    """The ranges of a session that records."""
    now, found = opened(2), Ranges()
    fake_of(now).record_range = lambda *recorded: found.append(recorded)
    fake_of(now).recording = True
    return found


def hooks_of(model: torch.nn.Module) -> list[Any]:
    tables = (model._forward_pre_hooks, model._forward_hooks, model._forward_hooks_always_called)
    return [hook for table in tables for hook in table] + [
        hook for parameter in model.parameters() for hook in parameter._backward_hooks or ()
    ]


def test_without_an_optimizer_there_are_forward_and_backward(ranges: Ranges) -> None:
    model = make_model()
    hvd.trace(model)
    for _ in range(3):
        model(INPUT).sum().backward()
    with torch.no_grad():
        model(INPUT)
    assert ranges.names() == [*STEP * 3, "forward"]


def test_gradients_that_add_up_are_passes_of_one_step(ranges: Ranges) -> None:
    model = make_model()
    optimizer = wrap(model, backward_passes_per_step=3)
    hvd.trace(model, optimizer)
    for _ in range(2):
        optimizer.zero_grad()
        for _ in range(3):
            model(INPUT).sum().backward()
        optimizer.step()
    assert ranges.names() == [*STEP * 3, "optimizer"] * 2


def test_several_forward_passes_may_share_one_backward(ranges: Ranges) -> None:
    model = make_model()
    hvd.trace(model)
    (model(INPUT) + model(2 * INPUT)).sum().backward()
    assert ranges.names() == ["forward", "forward", "backward"]


def test_each_backward_through_a_kept_graph_counts(ranges: Ranges) -> None:
    model = make_model()
    hvd.trace(model)
    loss = model(INPUT).sum()
    loss.backward(retain_graph=True)
    torch.autograd.grad(loss, list(model.parameters()))
    assert ranges.names() == ["forward", "backward", "backward"]


class TwoOutputs(torch.nn.Module):
    """Outputs in a tuple and a dict; one of them is a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = make_model()

    def forward(self, given: torch.Tensor) -> Any:
        return self.inner(given), {"loss": self.inner(given) * 2, "weight": self.inner[0].weight}


@pytest.mark.parametrize("used", ["first", "loss", "weight"])
def test_backward_may_begin_at_any_output(used: str, ranges: Ranges) -> None:
    model = TwoOutputs()
    with hvd.trace(model):
        first, others = model(INPUT)
        {"first": first, **others}[used].sum().backward()
    # A parameter has no part in the model's graph.
    assert ranges.names() == (["forward"] if used == "weight" else STEP)
    assert hooks_of(model) == []


def test_a_model_in_a_traced_model_lies_within_it(ranges: Ranges) -> None:
    model = TwoOutputs()
    hvd.trace(model)
    hvd.trace(model.inner)
    first, others = model(INPUT)
    (first + others["loss"]).sum().backward()
    assert ranges.names() == ["forward"] * 3 + ["backward"] * 2
    inner, outer = ranges[-2:]
    assert outer[1] <= inner[1] <= inner[2] <= outer[2]


class CallsItself(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, given: torch.Tensor, times: int = 2) -> torch.Tensor:
        out = self.layer(given)
        return self(out, times - 1) if times > 1 else out


def test_a_model_may_call_itself(ranges: Ranges) -> None:
    model = CallsItself()
    hvd.trace(model)
    model(INPUT).sum().backward()
    assert ranges.names() == ["forward", "forward", "backward"]


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_is_computed_again_lies_within_backward(reentrant: bool, ranges: Ranges) -> None:
    model = make_model()
    outer = torch.nn.Sequential(torch.nn.Linear(3, 3))
    hvd.trace(model)
    hvd.trace(outer)
    checkpoint(model, outer(INPUT), use_reentrant=reentrant).sum().backward()
    names = ranges.names()
    assert names.count("forward") == 3
    assert names.count("backward") == 2


def test_a_forward_pass_that_raises_ends_there(ranges: Ranges) -> None:
    model = make_model()
    handle = hvd.trace(model)
    with pytest.raises(RuntimeError):
        model(torch.ones(2, 5))
    model(INPUT).sum().backward()
    assert ranges.names() == ["forward", *STEP]
    handle.remove()
    assert hooks_of(model) == []


def test_a_hook_that_raises_before_forward_leaves_no_beginning_behind(ranges: Ranges) -> None:
    model = make_model()
    hvd.trace(model)

    def refuse(module: torch.nn.Module, args: Any) -> None:
        raise ValueError("no")

    refusal = model.register_forward_pre_hook(refuse, prepend=True)
    with pytest.raises(ValueError, match="no"):
        model(INPUT)
    refusal.remove()
    model(INPUT).sum().backward()
    assert ranges.names()[-2:] == STEP


class FailsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, given: torch.Tensor) -> torch.Tensor:
        return given.clone()

    @staticmethod
    def backward(context: Any, *grads: torch.Tensor) -> torch.Tensor:
        raise ValueError("no")


def test_a_backward_pass_that_raises_does_not_hide_the_next(ranges: Ranges) -> None:
    model = make_model()
    hvd.trace(model)
    with pytest.raises(ValueError, match="no"):
        model(FailsInBackward.apply(INPUT.clone().requires_grad_())).sum().backward()
    model(INPUT).sum().backward()
    assert ranges.names() == ["forward", *STEP]


def test_an_optimizer_may_run_the_model_itself(ranges: Ranges) -> None:
    model = make_model()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)
    hvd.trace(model, optimizer)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(INPUT).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    names = ranges.names()
    assert names[-1] == "optimizer" and names[:-1] == STEP * (len(names) // 2)


def test_what_was_removed_records_nothing_and_leaves_no_hook(ranges: Ranges) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hvd.trace(model, optimizer) as handle:
        loss = model(INPUT).sum()
    loss.backward()  # of a forward pass that was traced
    optimizer.step()
    model(INPUT)
    assert ranges.names() == ["forward"]
    assert hooks_of(model) == []
    assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks
    handle.remove()  # once more does no harm


def test_a_recording_that_begins_or_ends_within_a_pass_has_no_half_of_it(ranges: Ranges) -> None:
    model = make_model()
    hvd.trace(model)
    runtime = fake_of(session.require())
    for recording in (False, True):
        runtime.recording = recording
        switch = model[0].register_forward_hook(lambda *_, on=not recording: setattr(runtime, "recording", on))
        model(INPUT)
        switch.remove()
    assert ranges.names() == []


def test_under_ddp_the_wrapper_or_the_model_is_traced(ranges: Ranges) -> None:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        for wrapped in (True, False):
            model = make_model()
            parallel = torch.nn.parallel.DistributedDataParallel(model)
            optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
            with hvd.trace(parallel if wrapped else model, optimizer):
                for _ in range(2):
                    parallel(INPUT).sum().backward()
                    optimizer.step()
            assert ranges.names() == [*STEP, "optimizer"] * 2
            ranges.clear()
    finally:
        torch.distributed.destroy_process_group()


def compiled_then_traced(model: torch.nn.Module, **how: Any) -> Any:
    made = torch.compile(model, **how)
    hvd.trace(made)
    return made


def traced_then_compiled(model: torch.nn.Module, **how: Any) -> Any:
    hvd.trace(model)
    return torch.compile(model, **how)


def compiled_in_place(model: torch.nn.Module, **how: Any) -> Any:
    model.compile(**how)
    hvd.trace(model)
    return model


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize(
    ("make", "backend"),
    [
        (compiled_then_traced, "aot_eager"),
        (traced_then_compiled, "eager"),
        (traced_then_compiled, "aot_eager"),
        (compiled_in_place, "eager"),
    ],
)
def test_a_compiled_model_leaves_the_same_ranges(make: Callable[..., Any], backend: str, ranges: Ranges) -> None:
    torch._dynamo.reset()
    model = make(make_model(), backend=backend)
    for _ in range(2):
        model(INPUT).sum().backward()
    with torch.no_grad():
        model(INPUT)
    assert ranges.names() == [*STEP * 2, "forward"]


def test_compiled_as_one_graph_it_is_traced_from_outside(ranges: Ranges) -> None:
    torch._dynamo.reset()
    model = compiled_then_traced(make_model(), backend="eager", fullgraph=True)
    model(INPUT).sum().backward()
    assert ranges.names() == STEP


def test_one_graph_with_the_hooks_inside_is_refused_with_what_to_do(ranges: Ranges) -> None:
    torch._dynamo.reset()
    model = traced_then_compiled(make_model(), backend="eager", fullgraph=True)
    with pytest.raises(Exception, match=r"trace what torch\.compile returns"):
        model(INPUT)


def test_what_is_no_model_or_optimizer_is_named(opened: Open) -> None:
    opened()
    with pytest.raises(InvalidArgument, match="got a list as model"):
        hvd.trace([])  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="got a float as optimizer"):
        hvd.trace(make_model(), 0.1)  # type: ignore[arg-type]


def test_the_recorder_marks_the_buckets_that_ddp_has_formed(ranges: Ranges) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)))
        buckets.watch(model)
        for _ in range(4):
            model(INPUT).sum().backward()
        assert [name for name, begin, end in ranges if begin == end] == [
            "DDP bucket 0 of 1: 26 elements (1.bias to 0.weight)"
        ]
    finally:
        dist.destroy_process_group()
