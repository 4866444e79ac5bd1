"""Parameters whose gradients are reduced: one `Slot` for each, its hook, and its name between the ranks.

A parameter has one slot however many optimizers it is given to, since its gradient is reduced once. Names between the
ranks must not meet: the models of a GAN have parameters of the same names. The first optimizer with a name keeps it;
those of later ones begin with the optimizer's number.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import torch

from ringtune.common.process_sets import number_of
from ringtune.errors import RingtuneError
from ringtune.session import Session, state
from ringtune.torch import handles

if TYPE_CHECKING:
    from ringtune.torch.reducer import Reducer
    from ringtune.torch.submission import ReducerOptions

TOO_MANY_PASSES = (
    "Gradients were computed more than backward_passes_per_step times before call to step(). "
    "Increase backward_passes_per_step to accumulate gradients locally."
)
"""Horovod's words."""


class Standing(IntEnum):
    """What all ranks know of a gradient: it changes only by the result of a reduction, which all of them see."""

    EXPECTED = 0
    """Every rank is expected to have it; one that has none says so."""
    FLAGGED = 1
    """Some rank had none lately: it travels with a flag that says whether this rank has it."""
    UNUSED = 2
    """No rank had it lately: one small tensor asks for all of those."""
    ROWS = 3
    """Some rank had it as a sparse tensor: its rows are gathered."""


class Slot:
    """One parameter: what is known beforehand, and the reduction of its gradient under way.

    Attributes:
        param: The parameter.
        name: Its name.
        unique: Its name among those of all optimizers for the same ranks.
        wire: Name of its allreduce between the ranks.
        reducer: The reducer that reduces it.
        standing: What the ranks know of its gradient.
        streak: Steps in a row with the same outcome, while it is flagged.
        delay: Backward passes still to come before the gradient travels.
        ticket: Ticket of the reduction, 0 when none is under way.
        group: The group it belongs to, if any.
        grad: The gradient that backward has added up, until it is reduced; None for a rank that has none.
        version: Version counter of that gradient when backward had added it up.
        kept: Storage that the runtime uses: a tensor may be given another one meanwhile.
        finish: Brings the result into place if asked to, and returns what the ranks learn by it; None when the
            gradient was reduced in place.
        sparse: Waits for the reduction of a gradient that is sparse, or compressed with a memory, and returns it.
        key: Stands for the gradient and how it is reduced (`persistent.start`).
        users: The reducers that have it.
    """

    __slots__ = (
        "__weakref__",
        "delay",
        "finish",
        "grad",
        "group",
        "hook",
        "kept",
        "key",
        "name",
        "param",
        "reducer",
        "sparse",
        "standing",
        "streak",
        "ticket",
        "unique",
        "users",
        "version",
        "wire",
    )

    def __init__(self, param: torch.Tensor, name: str, unique: str, reducer: Reducer) -> None:
        options = reducer.options
        self.param = param
        self.name = name
        self.unique = unique
        self.wire = handles.wire_name("allreduce", unique, options.reduction.process_set)
        self.reducer = reducer
        self.standing = Standing.EXPECTED
        self.streak = 0
        self.delay = options.passes
        self.ticket = 0
        self.group: Any = None
        self.grad: torch.Tensor | None = None
        self.version = 0
        self.kept: Any = None
        self.finish: Callable[[bool], Standing | None] | None = None
        self.sparse: Callable[[], torch.Tensor | None] | None = None
        self.key = f"{self.wire} {options.reduction} {reducer.wire}"
        self.users: list[Reducer] = []
        self.hook: Any = None

    @property
    def busy(self) -> bool:
        """Whether a reduction is under way."""
        return self.ticket != 0 or self.sparse is not None

    def take(self) -> torch.Tensor | None:
        """Take the gradient for reduction; later changes to it are not reduced."""
        if self.grad is None:
            self.grad = self.param.grad
            self.version = 0 if self.grad is None else self.grad._version
        return self.grad

    def clear(self, *, again: bool = False) -> None:
        """Forget the reduction that is over; the gradient stays if it is to be submitted again."""
        self.ticket, self.kept, self.finish, self.sparse = 0, None, None, None
        if not again:
            self.grad = None

    def renew(self) -> None:
        """Begin anew: the other ranks know nothing of this gradient, and no backward pass has been counted."""
        self.standing, self.streak, self.delay = Standing.EXPECTED, 0, self.reducer.options.passes

    def watch(self) -> None:
        """Hook the parameter, which takes part in backward."""
        if self.hook is None:
            self.hook = self.param.register_post_accumulate_grad_hook(_hook(self))

    def unwatch(self) -> None:
        """Remove the hook."""
        if self.hook is not None:
            self.hook.remove()
            self.hook = None


def _hook(slot: Slot) -> Callable[[torch.Tensor], None]:
    """Return the function that autograd calls when the parameter's gradient has been added up."""

    def hook(param: torch.Tensor) -> None:
        slot.delay -= 1
        if slot.delay > 0:
            return
        if slot.delay < 0:
            raise AssertionError(TOO_MANY_PASSES)
        reducer = slot.reducer
        if slot.group is None and slot.standing == 0:
            reducer.start(slot)
        else:
            reducer.arrived(slot)
        if reducer.failure is not None:
            raise reducer.failure

    return hook


class _Names:
    """Names between the ranks of one process set: none of them is given to two parameters.

    Nothing that the ranks must agree about depends on when an optimizer is collected, which differs between them: a
    parameter keeps its name as long as it lives, and others are counted in the order in which optimizers are made.
    """

    def __init__(self) -> None:
        self._given: dict[int, tuple[weakref.ref[torch.Tensor], str]] = {}
        self._counts: dict[str, int] = {}

    def give(self, named: Sequence[tuple[str, torch.Tensor]]) -> list[str]:
        """Return a name for each parameter."""
        fresh = [name for name, param in named if id(param) not in self._given]
        number = 1 + max((self._counts.get(name, 0) for name in fresh), default=0)
        prefix = f"optimizer{number}." if number > 1 else ""
        for name, param in named:
            if id(param) not in self._given:
                self._counts[name] = number
                self._enter(param, prefix + name)
        return [self._given[id(param)][1] for _, param in named]

    def _enter(self, param: torch.Tensor, name: str) -> None:
        key = id(param)
        self._given[key] = weakref.ref(param, lambda _: self._given.pop(key, None)), name


class _Claims:
    """Which parameters have slots, and which names."""

    def __init__(self) -> None:
        self._slots: weakref.WeakValueDictionary[int, Slot] = weakref.WeakValueDictionary()
        # By the ranks of a process set: a rank does not know what optimizers others have made for sets without it.
        self._names: defaultdict[tuple[int, ...], _Names] = defaultdict(_Names)
        self._session: Session | None = None
        self._orphans: list[tuple[Session, Slot]] = []

    def take(self, named: Sequence[tuple[str, torch.Tensor]], reducer: Reducer) -> list[Slot]:
        """Return a slot for each parameter: the one that it has if that reduces it in the same way."""
        if self._session is not state.current:
            self._session = state.current
            self._names.clear()
        unique = self._names[tuple(reducer.options.process_set.ranks or ())].give(named)
        slots = [self._slot_of(*one, name, reducer) for one, name in zip(named, unique, strict=True)]
        self.reap()
        for slot in slots:
            slot.users.append(reducer)
            self._slots[id(slot.param)] = slot
        return slots

    def _slot_of(self, name: str, param: torch.Tensor, unique: str, reducer: Reducer) -> Slot:
        """Return a slot in which the next gradient is expected of every rank."""
        slot = self._slots.get(id(param))
        if slot is None:
            return Slot(param, name, unique, reducer)
        if slot.busy and state.current is not None:  # of a backward pass that no step followed
            slot.reducer.settle([slot])
        shared = alike(slot.reducer.options, reducer.options) and slot.group is None and not reducer.groups_wanted
        if slot.users and shared:
            slot.renew()
            return slot
        slot.unwatch()
        for user in slot.users:
            user.taken = slot.name
        return Slot(param, name, unique, reducer)

    def release(self, slots: Sequence[Slot], reducer: Reducer) -> None:
        """A reducer does not need these slots any more; what is under way keeps its memory until it is done."""
        for slot in slots:
            slot.users.remove(reducer)
            if not slot.users:
                slot.unwatch()
                if slot.busy and state.current is not None:
                    self._orphans.append((state.current, slot))

    def reap(self) -> None:
        """Drop finished reductions that have no waiter."""
        waiting = []
        for session, slot in self._orphans:
            if session is not state.current or slot.users:
                continue
            if slot.ticket and session.poll(slot.ticket):
                session.release(slot.ticket)
                slot.clear()
            elif slot.busy:
                waiting.append((session, slot))
        self._orphans = waiting


claims = _Claims()


def alike(one: ReducerOptions, other: ReducerOptions) -> bool:
    """Return whether gradients are reduced in the same way; compressors with error feedback belong to one optimizer."""
    try:
        same = number_of(one.process_set) == number_of(other.process_set)
    except (RingtuneError, TypeError):
        return False
    return same and one == other and isinstance(one.compression, type)
