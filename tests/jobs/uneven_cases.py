"""Ranks that do not all have every gradient, while parameters are frozen, thawed, added, replaced, pruned and shared.

Each program is trained twice: by `DistributedOptimizer` on this rank's part of each loss, and by the plain optimizer in
one process on the joined loss. Coefficients are small integers, so that the gradients of both are the same numbers.
"""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import embedding

import ringtune.torch as hvd

DENSE = 4  # parameters at the begin; one more is a sparse embedding
ROWS = 5


@dataclass
class Step:
    """What happens in one step.

    Attributes:
        actions: Name of an action, the parameter, and the ranks that do it.
        used: By backward pass, rank and parameter: whether the loss of that rank needs it.
        touched: What is done to a gradient between backward and step, the parameter, and the rank that does it.
    """

    actions: list[tuple[str, int, list[int]]]
    used: list[list[list[bool]]]
    touched: list[tuple[str, int, int]] = field(default_factory=list)


@dataclass
class Program:
    """A training.

    Attributes:
        options: Of `DistributedOptimizer`.
        set_to_none: Of `zero_grad`.
        steps: What happens.
        compression: Name of one that loses nothing.
        members: The ranks that train together; the others do nothing. Empty: all.
    """

    options: dict[str, Any]
    set_to_none: bool
    steps: list[Step] = field(default_factory=list)
    compression: str = "none"
    members: list[int] = field(default_factory=list)


EXACT: dict[str, Any] = {
    "none": hvd.Compression.none,
    "topk": hvd.Compression.topk(ratio=1.0, min_elements=3),
    "powersgd": hvd.Compression.powersgd(rank=2, start_iteration=2, min_compression_rate=0.01),
}


def _parameters(seed: int) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    shapes: list[tuple[int, ...]] = [(3, 2), (7,), (), (2, 1, 2), (ROWS, 2)]
    return [torch.nn.Parameter(torch.randint(-4, 5, shape, generator=generator).float()) for shape in shapes]


def _base(params: Sequence[torch.nn.Parameter]) -> torch.optim.Optimizer:
    groups = [
        {"params": list(params[:DENSE]), "momentum": 0.5, "weight_decay": 0.25},
        {"params": [params[DENSE]]},  # a sparse gradient takes no weight decay
    ]
    return torch.optim.SGD(groups, lr=0.125)


class Training:
    """One of the two trainings."""

    def __init__(self, program: Program) -> None:
        self.params = _parameters(7)
        self.optimizer: Any = _base(self.params)
        self.frozen: list[set[int]] = [set() for _ in self.params]  # the ranks that have it frozen
        self.program = program
        self.passes = len(program.steps[0].used)
        self.old: list[Any] = []

    def loss(self, step: int, number: int, rank: int) -> torch.Tensor | None:
        """Return one rank's loss in a backward pass; None if it needs no parameter."""
        used = self.program.steps[step].used[number][rank]
        total = None
        for index, param in enumerate(self.params):
            if not used[index % len(used)] or rank in self.frozen[index]:
                continue
            weight = float((step * 5 + number * 3 + rank * 7 + index) % 9 - 4)
            if index == DENSE:
                places = torch.tensor([(step + rank) % ROWS, rank % ROWS, rank % ROWS])
                term = (embedding(places, param, sparse=True) * weight).sum()
            else:  # twice, as a shared layer is
                term = (param * weight).sum() + (param * (param.detach() + 1.0)).sum()
            total = term if total is None else total + term
        return total

    def act(self, action: str, index: int, ranks: list[int], here: set[int]) -> None:
        """Do one action; `here`: the ranks that this process plays."""
        index %= len(self.params)
        param = self.params[index]
        if action == "freeze":
            self.frozen[index].update(ranks)
            if here <= self.frozen[index]:
                param.requires_grad_(False)
                param.grad = None
        elif action == "thaw":
            self.frozen[index].difference_update(ranks)
            param.requires_grad_(not here <= self.frozen[index])
        elif action == "prune" and index != DENSE and param.dim():
            with torch.no_grad():
                param.data = torch.cat([param.data[:1]] * (1 + len(ranks)))
            param.grad = None
            self.optimizer.state.pop(param, None)
        elif action == "add":
            self.params.append(torch.nn.Parameter(torch.full((2, 2), float(len(self.params)))))
            self.frozen.append(set())
            self.optimizer.add_param_group({"params": [self.params[-1]], "weight_decay": 0.5})
        elif action == "replace" and index != DENSE and param.dim():
            self.params[index] = torch.nn.Parameter(param.detach().repeat(*[2] * param.dim()))
            self.frozen[index] = set()
            for group in self.optimizer.param_groups:
                group["params"][:] = [self.params[index] if one is param else one for one in group["params"]]
            self.optimizer.state.pop(param, None)
        elif action == "copy":
            self.params, self.optimizer = copy.deepcopy((self.params, self.optimizer))

    def names(self) -> list[tuple[str, torch.nn.Parameter]]:
        return [(f"layer{index}", param) for index, param in enumerate(self.params)]


class Distributed(Training):
    """The training of this rank."""

    def __init__(self, program: Program, process_set: Any) -> None:
        super().__init__(program)
        self.process_set = process_set
        self.wrap()

    def wrap(self) -> None:
        options = dict(self.program.options, backward_passes_per_step=self.passes, process_set=self.process_set)
        options["compression"] = EXACT[self.program.compression]
        named = self.names() if options.pop("named") else None
        self.optimizer = hvd.DistributedOptimizer(self.optimizer, named, **options)

    def act(self, action: str, index: int, ranks: list[int], here: set[int]) -> None:
        if action in ("rewrap", "rewrap and keep"):
            groups, state = self.optimizer.param_groups, self.optimizer.state
            if action == "rewrap and keep":
                self.old.append(self.optimizer)
            self.optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.125)
            self.optimizer.param_groups, self.optimizer.state = groups, state
            gc.collect()
            self.wrap()
        else:
            super().act(action, index, ranks, here)

    def set_passes(self, passes: int) -> None:
        if passes != self.passes:
            self.passes = passes
            self.optimizer.set_backward_passes_per_step(passes)

    def touch(self, step: int, rank: int) -> dict[int, str]:
        """Do to gradients that were taken for reduction what the program says; return what was done to which."""
        done = {}
        for kind, index, who in self.program.steps[step].touched:
            index %= len(self.params)
            param, used = self.params[index], self.program.steps[step].used
            taken = all(one[rank][index % len(one[rank])] for one in used) and rank not in self.frozen[index]
            if who != rank or not taken or not param._post_accumulate_grad_hooks or index in done:
                continue
            grad = param.grad
            assert grad is not None
            if kind == "drop":
                param.grad = None
            elif kind == "replace":
                param.grad = grad.clone()
            elif kind == "change":
                grad.mul_(1)
            elif not grad.is_sparse:
                grad.data = grad.data.clone()
            done[index] = kind
        return done

    def synchronize(self, touched: dict[int, str]) -> bool:
        """Return whether all went well; what is said of what was touched must be right."""
        try:
            self.optimizer.synchronize()
        except ValueError as error:
            assert "after backward while it was being reduced" in str(error), error
            assert set(touched.values()) - {"drop"}, f"nothing was touched: {error}"
            return False
        assert not {"replace", "change"} & set(touched.values()), f"{touched}, and no error"
        return True


def train(program: Program) -> list[torch.Tensor]:
    """Run a program both ways and compare; return this rank's parameters."""
    if not program.members:
        return _train(program, hvd.global_process_set, list(range(hvd.size())))
    process_set = hvd.add_process_set(program.members)
    try:
        return _train(program, process_set, program.members) if process_set.included() else []
    finally:
        hvd.remove_process_set(process_set)


def _train(program: Program, process_set: Any, ranks: list[int]) -> list[torch.Tensor]:
    here = hvd.rank()
    torch.manual_seed(0)
    ours, joined = Distributed(program, process_set), Training(program)
    for number, step in enumerate(program.steps):
        for action, index, some in step.actions:
            ours.act(action, index, some, {here})
            joined.act(action, index, some, set(ranks))
        ours.set_passes(len(step.used))
        ours.optimizer.zero_grad(set_to_none=program.set_to_none)
        joined.optimizer.zero_grad(set_to_none=program.set_to_none)
        for backward in range(len(step.used)):
            loss = ours.loss(number, backward, here)
            if loss is not None:
                loss.backward()  # type: ignore[no-untyped-call]
            for other in ranks:
                loss = joined.loss(number, backward, other)
                if loss is not None:
                    (loss / len(ranks)).backward()  # type: ignore[no-untyped-call]
        touched = ours.touch(number, here)
        well = ours.synchronize(touched)
        _compare(f"step {number}", ours, joined, touched, well=well)
        with ours.optimizer.skip_synchronize():
            ours.optimizer.step()
        joined.optimizer.step()
    for index, (mine, right) in enumerate(zip(ours.params, joined.params, strict=True)):
        assert torch.allclose(mine, right, rtol=1e-4, atol=1e-4), f"parameter {index}: {mine} instead of {right}"
    return [param.detach() for param in ours.params]


def _compare(step: str, ours: Training, joined: Training, touched: dict[int, str], *, well: bool) -> None:
    """Compare all gradients; those that were touched become what they should be, so that training goes on alike."""
    bound = 1e-4 if joined.program.compression == "powersgd" else 1e-5
    for index, (mine, right) in enumerate(zip(ours.params, joined.params, strict=True)):
        where = f"{step}, parameter {index}"
        if index in touched and (not well or touched[index] == "drop"):
            assert (mine.grad is None) == (touched[index] == "drop"), f"{where}: {mine.grad} after {touched[index]}"
            mine.grad = None if right.grad is None else right.grad.clone()
        if right.grad is not None and right.grad.is_sparse and right.grad._nnz() == 0:
            continue
        assert (mine.grad is None) == (right.grad is None), f"{where}: {mine.grad} instead of {right.grad}"
        if mine.grad is not None and right.grad is not None:
            found, wanted = mine.grad.to_dense(), right.grad.to_dense()
            assert torch.allclose(found, wanted, rtol=bound, atol=bound), f"{where}: {found} instead of {wanted}"


EXPECTED = {"Average": 5 / 3, "Sum": 5.0, "Min": 2.0, "Max": 3.0, "Product": 6.0}


def _one(value: float, **options: Any) -> tuple[torch.nn.Parameter, Any]:
    param = torch.nn.Parameter(torch.full((2,), value))
    return param, hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0), [("one", param)], **options)


def some_ranks(op: str) -> float:
    """Ranks 0 and 2 have the gradients 2 and 3, rank 1 has none; in two steps, since the second knows of it."""
    param, optimizer = _one(1.0, op=getattr(hvd, op))
    for _ in range(2):
        optimizer.zero_grad()
        if hvd.rank() != 1:
            (param * (2.0 if hvd.rank() == 0 else 3.0)).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.synchronize()
    assert param.grad is not None and param.grad[0] == param.grad[1]
    return round(param.grad[0].item(), 12) if op != "Average" else 5 / 3 if abs(param.grad[0] - 5 / 3) < 1e-6 else 0.0


class ByHand:
    """A compressor as scripts for Horovod bring their own."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        return tensor.to(torch.bfloat16), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: torch.dtype) -> torch.Tensor:
        return tensor.to(ctx)


def compressed(compression: str) -> list[float | None]:
    """The gradient of one element by step: on no rank, on rank 1, on no rank, on both."""
    param, optimizer = _one(1.0, compression=getattr(hvd.Compression, compression, ByHand))
    found: list[float | None] = []
    for ranks in ([], [1], [], [0, 1]):
        optimizer.zero_grad()
        if hvd.rank() in ranks:
            (param * 3.0).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.synchronize()
        found.append(None if param.grad is None else param.grad[1].item())
    return found


def touched_in_flight() -> tuple[str, str, torch.Tensor | None]:
    """Clip, replace and drop a gradient between backward and step."""
    params = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(params, lr=0.5), [(f"touched{index}", param) for index, param in enumerate(params)]
    )

    def step(touch: Any) -> str:
        optimizer.zero_grad()
        (params[0] * params[1]).sum().backward()  # type: ignore[no-untyped-call]
        touch(params[1])
        try:
            optimizer.step()
        except ValueError as error:
            return str(error)
        return ""

    def replace(param: torch.Tensor) -> None:
        param.grad = param.grad * 2

    def drop(param: torch.Tensor) -> None:
        param.grad = None

    changed = step(lambda param: param.grad.mul_(0.5))
    replaced = step(replace)
    assert step(drop) == ""
    dropped = params[1].grad
    assert step(lambda param: None) == ""  # and all is well again
    return changed, replaced, dropped


def copied() -> tuple[list[bool], list[float]]:
    """Train on with a deep copy and with what was pickled; return whether all is as it was."""
    param, optimizer = _one(1.0, op=hvd.Sum)
    other, twin = copy.deepcopy((param, optimizer))
    (other * (1.0 + hvd.rank())).sum().backward()  # type: ignore[no-untyped-call]
    twin.step()
    alike = [
        type(twin) is type(optimizer),
        torch.equal(other, torch.full((2,), -2.0)),
        torch.equal(param, param * 0 + 1),
    ]
    loaded = pickle.loads(pickle.dumps(optimizer))
    theirs = loaded.param_groups[0]["params"][0]
    (theirs * 0.25).sum().backward()
    loaded.step()
    return alike, theirs.tolist()


def collected() -> tuple[list[int], list[float]]:
    """Drop an optimizer between backward and step; return the hooks before and after, and another one's gradient."""
    param, optimizer = _one(1.0, op=hvd.Sum)
    hooks = [len(param._post_accumulate_grad_hooks)]
    (param * (1.0 + hvd.rank())).sum().backward()  # type: ignore[no-untyped-call]
    del optimizer
    hooks.append(len(param._post_accumulate_grad_hooks))
    param.grad = None
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0), [("one", param)], op=hvd.Sum)
    (param * (1.0 + hvd.rank())).sum().backward()  # type: ignore[no-untyped-call]
    optimizer.synchronize()
    assert param.grad is not None
    return hooks, param.grad.tolist()


def taken() -> str:
    """Wrap a parameter again in another way and go on with the first optimizer."""
    param = torch.nn.Parameter(torch.ones(2))
    first, _ = (
        hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0), [("taken", param)], op=op)
        for op in (hvd.Sum, hvd.Average)
    )
    try:
        first.step()
    except ValueError as error:
        return str(error)
    return "no error"


def reshaped_under_compression() -> str:
    """Prune a parameter whose gradient a compressor with a memory sends."""
    param = torch.nn.Parameter(torch.ones(50, 30))
    compression = hvd.Compression.topk(ratio=0.5, min_elements=1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0), [("big", param)], compression=compression)
    param.sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    with torch.no_grad():
        param.data = torch.ones(40, 30)
    param.grad = None
    try:
        param.sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    except ValueError as error:
        return str(error)
    return "no error"


def adasum_thawed() -> list[float]:
    """Thaw one parameter and add another under Adasum; return a value before and the values after."""
    model = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(model.weight, 0.5)
    torch.nn.init.constant_(model.bias, 0.25)
    model.weight.requires_grad_(False)
    base = torch.optim.SGD(model.parameters(), lr=0.5)
    optimizer = hvd.DistributedOptimizer(base, model.named_parameters(), op=hvd.Adasum)
    added = torch.nn.Parameter(torch.ones(2))
    for _ in range(2):
        optimizer.zero_grad()
        (model(torch.ones(1, 2) + hvd.rank()) * added).sum().backward()
        optimizer.step()
        model.weight.requires_grad_(True)
        if len(optimizer.param_groups) == 1:
            optimizer.add_param_group({"params": [added]})
    return [0.5, *model.weight.flatten().tolist(), *model.bias.tolist(), *added.tolist()]
