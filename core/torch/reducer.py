"""Reducing gradients while backward still runs: one slot per parameter, submitted from its gradient's hook.

The path from hook to runtime is kept short on purpose: it runs once per parameter and step, on the thread that
computes the gradients.

Not every rank need have every gradient: a layer is frozen, a branch not taken, an embedding not looked up. What
backward has not reached is reported by an empty tensor at the end of the step, so that the ranks agree about it:

- a gradient that no rank has stays None, as in one process; from then on one small tensor a step asks for all of those;
- one that some ranks have is submitted again, with zeros where there is none, and with a flag that says who has it;
- one that some rank has as a sparse tensor is gathered as rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from ringtune import native
from ringtune.errors import InvalidArgument, InvariantError, RingtuneError, SomeAbsent, SomeSparse
from ringtune.session import require, state
from ringtune.torch import handles, persistent
from ringtune.torch.slots import Slot, Standing, claims
from ringtune.torch.submission import ReducerOptions, Submission
from ringtune.torch.uneven import Unused

_start = persistent.start  # a name of its own: it is read once per gradient


class Group:
    """Parameters that travel together, when the last of them is ready."""

    def __init__(self, name: str, slots: Sequence[Slot]) -> None:
        self.name = name
        self.slots = list(slots)
        self.ready = 0
        for slot in slots:
            slot.group = self

    def leave(self, slot: Slot) -> None:
        """Go on without a parameter."""
        if slot in self.members() and slot.delay <= 0 and not slot.busy:
            self.ready -= 1
        self.slots.remove(slot)

    def members(self) -> list[Slot]:
        """Return those that travel with the group at present, the same on all ranks."""
        return [slot for slot in self.slots if slot.standing in (Standing.EXPECTED, Standing.FLAGGED)]


class Reducer:
    """Reduces the gradients of a list of parameters.

    Args:
        named: Name and parameter, in the same order on all ranks.
        groups: Lists of parameters that travel together.
        options: How gradients are reduced.
    """

    def __init__(
        self,
        named: Sequence[tuple[str, torch.Tensor]],
        groups: Sequence[Sequence[torch.Tensor]],
        options: ReducerOptions,
    ) -> None:
        self.options = options
        self.groups_wanted = bool(groups)
        self.taken = ""  # a parameter that a later optimizer reduces in another way
        self.failure: RingtuneError | None = None  # why a gradient could not be submitted; it is reported as missing
        self._submission = Submission(options)
        self.wire = self._submission.wire
        self._session = require()
        self.slots: list[Slot] = claims.take(named, self)
        self._unhooked = self.slots
        self._submission.attach(self.slots)
        self.feedback = self._submission.feedback
        self._plain = self._submission.plain
        by_param = {slot.param: slot for slot in self.slots}
        base = self.slots[0].unique if self.slots else ""
        self.groups = [
            Group(
                handles.wire_name("allreduce", f"group.{index}.{base}", options.reduction.process_set),
                [by_param[param] for param in members],
            )
            for index, members in enumerate([] if self.feedback else groups)  # what is compressed travels alone
        ]
        self._unused = Unused(f"unused.{base}", options.reduction, self.wire, options.process_set)
        self._watch()

    @property
    def busy(self) -> bool:
        """Whether gradients are being reduced, or wait for others to be."""
        return any(slot.busy or slot.grad is not None for slot in self.slots)

    def set_passes(self, passes: int) -> None:
        """Change how many backward passes are summed up."""
        sharing = {self, *(user for slot in self.slots for user in slot.users)}
        for reducer in sharing:
            reducer.options = replace(reducer.options, passes=passes)
            reducer.rest()

    def rest(self) -> None:
        """Begin counting passes anew."""
        passes = self.options.passes
        for slot in self.slots:
            slot.delay = passes
            if slot.grad is not None and not slot.busy:
                slot.grad = None
        for group in self.groups:
            group.ready = 0
        if self.feedback is not None:
            self.feedback.rest()

    def follow(self, named: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Reduce the gradients of these parameters from now on: some were added, or replaced by others."""
        known = {slot.param: slot for slot in self.slots}
        fresh = iter(claims.take([(name, param) for name, param in named if param not in known], self))
        kept = [known.pop(param) if param in known else next(fresh) for _, param in named]
        gone = list(known.values())
        for slot in gone:
            if slot.group is not None:
                slot.group.leave(slot)
                if not any(member.busy for member in slot.group.members()):
                    self._start_group(slot.group)  # the others may have waited for it
        claims.release(gone, self)
        self.slots, self._unhooked = kept, kept
        self._watch()

    def close(self) -> None:
        """Leave the parameters alone: the optimizer is gone."""
        claims.release(self.slots, self)
        self.slots = self._unhooked = []

    def finish(self) -> None:
        """Start what backward did not reach, then wait for everything.

        Raises:
            RuntimeFailure: A reduction failed; nothing is under way any more.
            InvalidArgument: A gradient cannot be reduced, or was changed while it was being reduced, or its parameter
                has been given to another optimizer meanwhile. The other ranks go on without this rank's, or with it.
        """
        if self.taken:
            raise InvalidArgument(
                f"parameter '{self.taken}' was given to a DistributedOptimizer later that reduces gradients in another "
                "way; go on with that one, or wrap this optimizer again"
            )
        self._renew()
        self._watch()
        late = [slot for slot in self.slots if not slot.ticket]
        unused = [slot for slot in late if slot.standing is Standing.UNUSED]
        for slot in late:
            if slot.standing is not Standing.UNUSED and not slot.busy and (slot.group is None or slot.delay > 0):
                slot.delay = 0
                self._ready(slot)
        if unused:
            self._unused.ask(unused)
        left_out = [slot.name for slot in late if not slot.busy and slot.standing is not Standing.UNUSED]
        failure = self.drain()
        if self.feedback is not None:
            self.feedback.step_done()  # also where this rank alone has failed: the ranks count alike
        if left_out:
            raise InvariantError(f"gradients were not submitted: {', '.join(left_out)}")
        if failure is not None:
            raise failure

    def drain(self) -> RingtuneError | None:
        """Wait for what is under way and return the first failure."""
        return self.settle(self.slots)

    def settle(self, slots: Sequence[Slot]) -> RingtuneError | None:
        """Wait for the gradients of these slots, and for those that no rank had lately; return the first failure."""
        failure, self.failure = self.failure, None
        again: list[Slot] = []
        for slot in _settle_in_place(slots):
            change = _change(slot)
            if change not in ("", "dropped"):
                failure = failure or _too_late(slot, change)
            try:
                outcome = self._await(slot, deliver=change == "")
            except RingtuneError as error:
                failure = failure or error
                continue
            if outcome is not None:
                slot.standing, slot.streak = outcome, 0
                if outcome is not Standing.UNUSED:
                    again.append(slot)
        try:
            woken = self._unused.answer()
            if again or woken:
                self._start_again(again, woken)
                later = self.settle([*again, *(slot for slot, _ in woken)])
                failure = failure or later
        except RingtuneError as error:
            failure = failure or error
        self.rest()
        return failure

    def start(self, slot: Slot, group: str = "", group_size: int = 0) -> None:
        """Submit a gradient that backward has added up, or say that there is none; see `failure`."""
        grad = slot.grad
        if grad is None:  # as Slot.take, without a call
            grad = slot.grad = slot.param.grad
            if grad is not None:
                slot.version = grad._version
        if state.current is None:
            require()
        try:
            if grad is not None and self._plain and group_size == 0 and slot.standing == 0:
                slot.ticket = _start(slot.key, grad)
                if slot.ticket:
                    slot.kept = grad.untyped_storage()
                    return
            self._submission.start(slot, grad, group, group_size)
        except (native.error_class(), InvalidArgument) as error:
            failure = native.translate(error)
            if grad is None or not isinstance(failure, InvalidArgument):
                raise failure from None
            slot.grad = None
            self._submission.start(slot, None, group, group_size)  # the others must not wait for it
            self.failure = self.failure or failure

    def arrived(self, slot: Slot) -> None:
        """Take a gradient that belongs to a group or that some rank lacks."""
        self._renew()
        slot.take()
        if slot.standing is not Standing.UNUSED:
            self._ready(slot)

    # -- what happens to the slots -----------------------------------------------------------------------------------

    def _watch(self) -> None:
        # Each step asks every frozen parameter, and most models have none or very many: one attribute, no call.
        thawed = [slot for slot in self._unhooked if slot.param.requires_grad]
        if thawed:
            for slot in thawed:
                slot.watch()
            self._unhooked = [slot for slot in self._unhooked if slot.hook is None]

    def _renew(self) -> None:
        """Begin anew in another session, whose ranks may be others: they know nothing of what was agreed before."""
        if self._session is state.current:
            return
        self._session = require()
        for slot in self.slots:
            slot.standing, slot.streak = Standing.EXPECTED, 0

    def _ready(self, slot: Slot) -> None:
        group = slot.group
        if group is None or slot.standing is Standing.ROWS:
            self.start(slot)
            return
        group.ready += 1
        self._start_group(group)

    def _start_group(self, group: Group) -> None:
        members = group.members()
        if group.ready == len(members):
            for member in members:
                self.start(member, group.name, len(members))

    def _start_again(self, again: Sequence[Slot], woken: Sequence[tuple[Slot, Standing]]) -> None:
        for group in self.groups:
            group.ready = 0
        for slot in again:
            self._ready(slot)
        for slot, standing in woken:  # the others of its group run without it in this step
            slot.standing, slot.streak = standing, 0
            self.start(slot)

    def _await(self, slot: Slot, *, deliver: bool) -> Standing | None:
        """Wait for a slot; return its new standing if the ranks have learnt of one.

        Args:
            slot: A reduction is under way for it.
            deliver: Bring the result to where it belongs. What the ranks learn does not depend on it.
        """
        ticket, session, outcome = slot.ticket, require(), None
        try:
            if not ticket:
                assert slot.sparse is not None
                result = slot.sparse()
                if deliver:
                    slot.param.grad = result
                return None
            session.wait(ticket)
            if slot.finish is not None:
                outcome = slot.finish(deliver)
            elif slot.grad is None:  # no rank has it
                outcome = Standing.UNUSED
        except SomeAbsent:
            outcome = Standing.FLAGGED
        except SomeSparse:
            outcome = Standing.ROWS
        finally:
            if ticket:
                session.release(ticket)
            slot.clear(again=outcome in (Standing.FLAGGED, Standing.ROWS))
        return outcome


def _settle_in_place(slots: Sequence[Slot]) -> list[Slot]:
    """Settle gradients that were reduced in place and not touched since, as most are; return the others."""
    untouched = [
        slot
        for slot in slots
        if slot.ticket
        and slot.finish is None
        and (grad := slot.grad) is not None
        and slot.param.grad is grad
        and grad._version == slot.version
    ]
    grads = [slot.grad for slot in untouched if slot.grad is not None]  # all of them
    left = persistent.settle([slot.ticket for slot in untouched], grads)
    for index in reversed(left):
        del untouched[index]
    for slot in untouched:
        slot.ticket, slot.grad, slot.kept = 0, None, None
    return [slot for slot in slots if slot.ticket or slot.sparse is not None]


def _change(slot: Slot) -> str:
    """Return what the caller has done to a gradient since backward; empty: nothing."""
    now = slot.param.grad
    if now is not slot.grad:
        return "dropped" if now is None else "replaced"
    if now is None:
        return ""
    if now._version != slot.version:
        return "changed"
    return "" if slot.finish is not None or slot.kept is None or _is_in_place(slot, now) else "given other memory"


def _is_in_place(slot: Slot, grad: torch.Tensor) -> bool:
    """Return whether the memory that is reduced is the gradient's still."""
    return bool(grad.data_ptr() == require().output_of(slot.ticket))


def _too_late(slot: Slot, change: str) -> InvalidArgument:
    """Return the error for a gradient that the caller has changed: that is lost, or would differ between ranks."""
    return InvalidArgument(
        f"the gradient of '{slot.name}' was {change} after backward while it was being reduced: call "
        "optimizer.synchronize() first, then clip, unscale or change gradients, then step() within "
        "`with optimizer.skip_synchronize():`"
    )
