"""Reducing gradients while backward still runs: one slot per parameter, submitted from its gradient's hook.

The path from hook to runtime is kept short on purpose: it runs once per parameter and step, on the thread that
computes the gradients.

Not every rank need have every gradient: a layer is frozen, a branch not taken, an embedding not looked up. What
backward has not reached is announced by an empty tensor at the end of the step, so that the ranks agree about it:

- a gradient that no rank has stays None, as in one process; from then on one small tensor a step asks for all of those;
- one that some ranks have is submitted again, with zeros where there is none, and with a flag that says who has it;
- one that some rank has as a sparse tensor is gathered as rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ringtune import native
from ringtune.errors import InvalidArgument, InvariantError, RingtuneError, SomeAbsent, SomeSparse
from ringtune.session import Session, require, state
from ringtune.torch import handles, quick
from ringtune.torch.slots import Slot, Standing, claims
from ringtune.torch.submission import ReducerOptions, Submission
from ringtune.torch.uneven import Unused

_submit_alike = quick.submit_alike  # once per gradient: without a look into the module


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
        self.passes = options.passes
        self.groups_wanted = bool(groups)
        self.taken = ""  # a parameter that a later optimizer reduces in another way
        self._submission = Submission(options)
        self.wire = self._submission.wire
        self._session = require()
        self.slots: list[Slot] = claims.take(named, self)
        self._unhooked = self.slots
        by_param = {slot.param: slot for slot in self.slots}
        base = self.slots[0].unique if self.slots else ""
        self.groups = [
            Group(
                handles.wire_name("allreduce", f"group.{index}.{base}", options.how.process_set),
                [by_param[param] for param in members],
            )
            for index, members in enumerate(groups)
        ]
        self._submission.attach(self.slots)
        self.feedback = self._submission.feedback
        self._plain = self._submission.plain
        self._unused = Unused(f"unused.{base}", options.how, self.wire)
        self._watch()

    @property
    def busy(self) -> bool:
        """Whether a reduction is under way."""
        return any(slot.busy for slot in self.slots)

    def set_passes(self, passes: int) -> None:
        """Change how many backward passes are summed up."""
        self.passes = passes
        self.rest()

    def rest(self) -> None:
        """Begin counting passes anew."""
        for slot in self.slots:
            slot.delay = self.passes
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
            InvalidArgument: A gradient was changed while it was being reduced, or its parameter has been given to
                another optimizer meanwhile.
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
        if left_out:
            raise InvariantError(f"gradients were not submitted: {', '.join(left_out)}")
        if failure is not None:
            raise failure
        if self.feedback is not None:
            self.feedback.step_done()

    def drain(self) -> RingtuneError | None:
        """Wait for what is under way and return the first failure."""
        return self.settle(self.slots)

    def settle(self, slots: Sequence[Slot]) -> RingtuneError | None:
        """Wait for the gradients of these slots, and for those that no rank had lately; return the first failure."""
        failure: RingtuneError | None = None
        again: list[Slot] = []
        session = require()
        for slot in slots:
            grad = slot.grad if slot.ticket and slot.finish is None else None
            try:
                # Most gradients were reduced in place and nobody has touched them since.
                if grad is not None and slot.param.grad is grad and grad._version == slot.version:
                    outcome = self._await_in_place(slot, session)
                else:
                    outcome = self._await(slot)
                if outcome is not None:
                    slot.standing, slot.streak = outcome, 0
                    if outcome is not Standing.UNUSED:
                        again.append(slot)
            except RingtuneError as error:
                failure = failure or error
        try:
            woken = self._unused.answer()
            if again or woken:
                self._start_again(again, woken)
                failure = self.settle([*again, *(slot for slot, _ in woken)]) or failure
        except RingtuneError as error:
            failure = failure or error
        self.rest()
        return failure

    def start(self, slot: Slot, group: str = "", group_size: int = 0) -> None:
        """Submit a gradient that backward has added up, or say that there is none."""
        grad = slot.param.grad
        session = state.current
        if session is None:
            session = require()
        slot.grad = grad
        try:
            if grad is not None and self._plain and group_size == 0 and slot.standing == 0:
                slot.version = grad._version
                slot.ticket = _submit_alike(slot.key, grad)
                if slot.ticket:
                    return
            self._submission.start(slot, grad, group, group_size)
        except native.error_class() as error:
            raise native.translate(error) from None

    def arrived(self, slot: Slot) -> None:
        """A gradient has been added up that has company or a standing of its own."""
        self._renew()
        if slot.standing is not Standing.UNUSED:
            self._ready(slot)

    # -- what happens to the slots -----------------------------------------------------------------------------------

    def _watch(self) -> None:
        if self._unhooked:
            self._unhooked = [slot for slot in self._unhooked if not slot.watch()]

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

    @staticmethod
    def _await_in_place(slot: Slot, session: Session) -> Standing | None:
        ticket, slot.ticket = slot.ticket, 0
        try:
            session.wait(ticket)
        except SomeAbsent:
            return Standing.FLAGGED
        except SomeSparse:
            return Standing.ROWS
        finally:
            session.release(ticket)
            slot.grad = slot.kept = None
        return None

    def _await(self, slot: Slot) -> Standing | None:
        """Wait for a slot; return its new standing if the ranks have learnt of one. Without a reduction: do nothing."""
        ticket = slot.ticket
        if not slot.busy:
            return None
        change = _change(slot)
        try:
            if ticket:
                require().wait(ticket)
                return self._deliver(slot, change)
            assert slot.sparse is not None
            result = slot.sparse()
            if not _is_dropped(slot, change):
                slot.param.grad = result
            return None
        except SomeAbsent:
            return Standing.FLAGGED
        except SomeSparse:
            return Standing.ROWS
        finally:
            if ticket:
                require().release(ticket)
            slot.clear()

    def _deliver(self, slot: Slot, change: str) -> Standing | None:
        """Bring what was reduced to where it belongs."""
        if slot.grad is None and slot.finish is None:  # no rank has it
            return Standing.UNUSED
        if _is_dropped(slot, change) or slot.finish is None:
            return None
        return slot.finish()


def _change(slot: Slot) -> str:
    """Return what the caller has done to a gradient since it was submitted; empty: nothing."""
    now = slot.param.grad
    if now is slot.grad:
        return "" if now is None or now._version == slot.version else "changed"
    return "dropped" if now is None else "replaced"


def _is_dropped(slot: Slot, change: str) -> bool:
    """Return whether the caller has dropped a gradient (``grad = None``) since backward: then it stays so.

    Raises:
        InvalidArgument: It was replaced or changed meanwhile: that would be lost, or differ between ranks.
    """
    if change in ("", "dropped"):
        return change == "dropped"
    raise InvalidArgument(
        f"the gradient of '{slot.name}' was {change} after backward while it was being reduced: call "
        "optimizer.synchronize() first, then clip, unscale or change gradients, then step() within "
        "`with optimizer.skip_synchronize():`"
    )
