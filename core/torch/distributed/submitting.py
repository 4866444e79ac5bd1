"""How the collectives of a process group reach the runtime.

Operations of a group are matched by their order, as torch demands; the runtime knows them by name. Names repeat (kind,
size and a number modulo a few), so that a training loop looks the same in every step, which response cache and step
schedules rely on. An operation whose name is still under way waits for the earlier one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from ringtune.errors import InvalidArgument, NotSupported, RingtuneError
from ringtune.operations import Allgather, Allreduce, Broadcast
from ringtune.session import Session
from ringtune.torch import devices
from ringtune.torch.arguments import Average, Max, Min, Product, Sum
from ringtune.torch.distributed.memory import as_numbers, contents
from ringtune.torch.distributed.redistribution import Alltoall, ReduceScatter, deal, take_row
from ringtune.torch.distributed.works import Several, Work, copy, then
from ringtune.torch.handles import dtype_number
from ringtune.torch.steps import communicated

_RedOp: Any = dist.ReduceOp
_OPS = {_RedOp.SUM: Sum, _RedOp.AVG: Average, _RedOp.MIN: Min, _RedOp.MAX: Max, _RedOp.PRODUCT: Product}
_FOLDS = {_RedOp.BAND: torch.bitwise_and, _RedOp.BOR: torch.bitwise_or, _RedOp.BXOR: torch.bitwise_xor}
"""Reductions that the runtime does not know: every rank gathers what there is, and folds it."""
_NAMES_IN_TURN = 4
_MOST_COUNTS = 4096
"""Kinds and sizes that are counted; sizes that never come again must not pile up."""

Tensors = Sequence[torch.Tensor]

# torch's stubs name the arguments otherwise in each version; it calls them by position.
_Base: Any = dist.ProcessGroup


class Submitting(_Base):  # type: ignore[misc]
    """Submits the operations of a group. Tensors that are given to its methods have been checked (`memory`).

    Args:
        session: Session of exactly the group's ranks.
        name: Name of the group.
        timeout: How long an operation may wait for missing ranks.

    Attributes:
        members: Ranks in the world of the group's ranks; empty: the same.
    """

    members: tuple[int, ...] = ()

    def __init__(self, session: Session, name: str, timeout: timedelta) -> None:
        super().__init__(session.rank, session.size)
        self._session = session
        self._name = name
        self._timeout = timeout
        self._timeout_ns = max(1, int(timeout.total_seconds() * 1e9))
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._submitted = 0
        self._under_way: dict[str, Work] = {}

    def _reduce(self, tensors: Tensors, opts: Any) -> Work:
        works = [self._reduce_one(tensor, opts) for tensor in tensors]
        return works[0] if len(works) == 1 else Several(works, list(tensors))

    def _reduce_one(self, tensor: torch.Tensor, opts: Any) -> Work:
        if tensor.is_sparse:
            return self._reduce_sparse(tensor, opts)
        fold = _fold_of(opts, tensor)
        if fold is not None:
            return self._fold(tensor, fold)
        op = _op_of(opts)
        own = contents(tensor)
        flat = own.detach()
        if flat.is_complex():
            flat = torch.view_as_real(_summable(flat, op))
        number = dtype_number(flat)
        shape, address = tuple(flat.shape), flat.data_ptr()

        def submit(name: str) -> int:
            device = devices.device_of(flat)
            return self._session.submit(
                Allreduce(name, address, address, shape, number, op, device=device, timeout_ns=self._timeout_ns)
            )

        finish = None if own is tensor else lambda: copy(tensor, _like(flat, tensor))
        return self._submit(f"allreduce.{number}.{op}.{flat.numel()}", [tensor], submit, finish, flat)

    def _reduce_sparse(self, tensor: torch.Tensor, opts: Any) -> Work:
        """Gather the elements of a sparse tensor from all ranks and add up those of the same index."""
        op = _op_of(opts)
        if op not in (Sum, Average):
            raise NotSupported(f"{opts.reduceOp} of a sparse tensor: sparse tensors can be summed and averaged only")
        own = tensor.detach().coalesce()
        indices, values = own.indices().t().contiguous(), own.values().contiguous()
        came: dict[str, torch.Tensor] = {}

        def gather(part: str, rows: torch.Tensor) -> Work:
            base = f"allgather.sparse.{part}.{rows.dtype}.{'x'.join(map(str, tensor.shape))}"
            shape = rows.shape[1:]
            return self._gather_rows(
                base, rows, lambda row: came.update({part: row.view(-1, *shape) if 0 not in shape else rows})
            )

        def finish() -> None:
            whole = torch.sparse_coo_tensor(came["indices"].t(), came["values"], tensor.shape).coalesce()
            if op == Average:
                mean = (whole.values() / self._session.size).to(tensor.dtype)
                whole = torch.sparse_coo_tensor(whole.indices(), mean, tensor.shape, is_coalesced=True)
            copy(tensor, whole)

        return then(Several([gather("indices", indices), gather("values", values)], [tensor]), [tensor], finish)

    def _fold(self, tensor: torch.Tensor, fold: Any) -> Work:
        """Gather a tensor from all ranks and fold it into one."""
        parts = [tensor.new_empty(tensor.shape) for _ in range(self._session.size)]

        def finish() -> None:
            whole = parts[0]
            for part in parts[1:]:
                whole = fold(whole, part)
            copy(tensor, whole)

        return then(self._gather_one(tensor, parts), [tensor], finish)

    def _reduce_rows(self, outputs: Tensors, inputs: Tensors, opts: Any) -> Work:
        """Reduce flat tensors of as many equal parts as there are ranks; each rank keeps its part."""
        works = [self._reduce_rows_one(output, flat, opts) for output, flat in zip(outputs, inputs, strict=True)]
        return works[0] if len(works) == 1 else Several(works, list(outputs))

    def _reduce_rows_one(self, output: torch.Tensor, flat: torch.Tensor, opts: Any) -> Work:
        fold = _fold_of(opts, flat)
        if fold is not None:
            whole, begin = flat.clone(), self._session.rank * output.numel()
            work = self._fold(whole, fold)
            return then(work, [output], lambda: copy(output, whole[begin:][: output.numel()].view(output.shape)))
        op = _op_of(opts)
        reduction = ReduceScatter(self._session, output, _summable(flat, op), op)
        base = f"reducescatter.{reduction.dtype}.{op}.{flat.numel()}"
        submit = partial(reduction.submit, self._timeout_ns)
        return self._submit(base, [output], submit, reduction.finish, reduction.memory)

    def _broadcast(self, tensors: Tensors, root: int) -> Work:
        works = [self._broadcast_one(tensor, root) for tensor in tensors]
        return works[0] if len(works) == 1 else Several(works, list(tensors))

    def _broadcast_one(self, tensor: torch.Tensor, root: int) -> Work:
        own = contents(tensor)
        flat = as_numbers(own.detach())
        number, address, shape = dtype_number(flat), flat.data_ptr(), tuple(flat.shape)

        def submit(name: str) -> int:
            device = devices.device_of(flat)
            return self._session.submit(
                Broadcast(name, address, address, shape, number, root, device=device, timeout_ns=self._timeout_ns)
            )

        given = own is tensor or self._session.rank == root
        finish = None if given else lambda: copy(tensor, _like(flat, tensor))
        return self._submit(f"broadcast.{number}.{root}.{flat.numel()}", [tensor], submit, finish, flat)

    def _gather(
        self, inputs: Tensors, outputs: Sequence[list[torch.Tensor]], whole: list[torch.Tensor] | None = None
    ) -> Work:
        """Gather each input; `outputs` are this rank's results by input and rank."""
        works = [self._gather_one(tensor, row) for tensor, row in zip(inputs, outputs, strict=True)]
        shown = whole if whole is not None else [one for row in outputs for one in row]
        return then(works[0], shown, None) if len(works) == 1 else Several(works, shown)

    def _gather_one(self, tensor: torch.Tensor, outputs: list[torch.Tensor]) -> Work:
        # The ranks' tensors may differ in size; only the total is known to all of them.
        base = f"allgather.{tensor.dtype}.{sum(one.numel() for one in outputs)}"
        return self._gather_rows(base, tensor, lambda row: deal(row, outputs) if row.numel() else None)

    def _gather_rows(self, base: str, tensor: torch.Tensor, take: Callable[[torch.Tensor], object]) -> Work:
        """Gather the elements of tensors that may differ in size; `take` gets those of all ranks in one row."""
        flat = as_numbers(contents(tensor).detach()).view(-1)
        number, tickets = dtype_number(flat), list[int]()

        def submit(name: str) -> int:
            shape, device = tuple(flat.shape), devices.device_of(flat)
            operation = Allgather(name, flat.data_ptr(), shape, number, device=device, timeout_ns=self._timeout_ns)
            tickets.append(self._session.submit(operation))
            return tickets[0]

        def finish() -> None:
            take(take_row(self._session, tickets[0], flat).view(tensor.dtype))

        return self._submit(base, [], submit, finish, flat)

    def _alltoall(
        self, received: torch.Tensor, sent: torch.Tensor, counts: Sequence[int], sizes: Sequence[int]
    ) -> Work:
        """Send parts of a flat tensor to all ranks and receive theirs: `sizes` elements to each, `counts` from each."""
        alltoall = Alltoall(self._session, received, sent, counts, sizes)
        submit = partial(alltoall.submit, self._timeout_ns)
        return self._submit("alltoall", [received], submit, alltoall.finish, alltoall)

    def _submit(
        self, base: str, outputs: list[torch.Tensor], submit: Any, finish: Any = None, keep: Any = None
    ) -> Work:
        communicated()
        with self._lock:
            if len(self._counts) >= _MOST_COUNTS and base not in self._counts:
                self._counts.clear()  # on all ranks before the same operation: they submit the same ones
            count = self._counts.get(base, 0)
            self._counts[base] = count + 1
            self._submitted += 1
            name = f"{base}.{count % _NAMES_IN_TURN}"
            earlier = self._under_way.get(name)
            if earlier is not None and not earlier._done:
                earlier.settle()
            work = Work(self._session, [submit(name)], outputs, finish, keep)
            work.name, work.kind, work.explain = f"tensor '{name}'", base.partition(".")[0], self._explained
            work.forget = partial(self._under_way.pop, name, None)
            self._under_way[name] = work
        return work

    def _explained(self, error: RingtuneError) -> RingtuneError:
        """Return a failure that also names the group, and whom its numbers of ranks mean."""
        members = list(self.members)
        counted = f", whose ranks are ranks {members} of the world" if members != list(range(self.size())) else ""
        return type(error)(f"{error} [group '{self._name}'{counted if members else ''}]")


def _like(flat: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Return memory that travelled as another dtype as the tensor's own."""
    if flat.dtype == tensor.dtype:
        return flat
    return torch.view_as_complex(flat) if flat.is_floating_point() else flat.view(tensor.dtype).view(tensor.shape)


def _summable(tensor: torch.Tensor, op: int) -> torch.Tensor:
    if tensor.is_complex() and op not in (Sum, Average):
        raise InvalidArgument("complex tensors can be summed and averaged only")
    return tensor


def _fold_of(opts: Any, tensor: torch.Tensor) -> Any:
    """Return how a bitwise reduction folds two tensors; None for another reduction.

    Raises:
        InvalidArgument: The tensor is of no whole numbers.
    """
    kind = None if opts is None else opts.reduceOp
    for red_op, fold in _FOLDS.items():
        if kind is not None and kind == red_op:
            if tensor.is_floating_point() or tensor.is_complex():
                raise InvalidArgument(f"a bitwise reduction of a tensor of {tensor.dtype}: expected whole numbers")
            return fold
    return None


def _op_of(opts: Any) -> int:
    if opts is None:
        return Sum
    kind = opts.reduceOp
    for red_op, number in _OPS.items():
        if kind == red_op:
            return number
    raise NotSupported(f"{kind}: ringtune reduces with SUM, AVG, MIN, MAX, PRODUCT, BAND, BOR and BXOR")
