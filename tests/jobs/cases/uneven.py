"""Ranks that do not all have every gradient, while parameters are frozen, thawed, added, replaced, pruned and shared.

Each program is trained twice: by `DistributedOptimizer` on this rank's part of each loss, and by the plain optimizer in
one process on the joined loss. Coefficients are small integers, so that the gradients of both are the same numbers.
"""

from __future__ import annotations

import copy
import gc
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
                indices = torch.tensor([(step + rank) % ROWS, rank % ROWS, rank % ROWS])
                term = (embedding(indices, param, sparse=True) * weight).sum()
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
