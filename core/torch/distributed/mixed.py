"""Groups such as ``cpu:ringtune,cuda:nccl``: ringtune for tensors of some devices, torch's own backends for the others.

torch takes a process group that is written in Python for the whole group and makes no other backend then. So ringtune
has torch make them, as a group beside its own, and hands them what lies elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ringtune.errors import NotSupported
from ringtune.session import Session
from ringtune.torch.distributed.group import WORLD, ProcessGroupRingtune
from ringtune.torch.distributed.members import Meeting

_c10d: Any = dist.distributed_c10d
_SERVED = ("cpu", "cuda")


def others_of(backends: Mapping[str, str]) -> dict[str, str]:
    """Return the backends of a group for the devices that ringtune does not serve in it.

    Args:
        backends: Backend by device, in the order in which the group was asked for; empty: ringtune for all.

    Raises:
        NotSupported: ringtune is to serve another device than the CPU and CUDA, or is not the first: torch has made
            other backends then, which it forgets.
    """
    ours = {device: backend for device, backend in backends.items() if backend == "ringtune"}
    others = {device: backend for device, backend in backends.items() if backend != "ringtune"}
    asked = _written(backends)
    if strange := [device for device in ours if device not in _SERVED]:
        served = "ringtune reduces tensors of the CPU and of CUDA devices"
        raise NotSupported(f"a group with backends {asked}: {served}, not of {strange[0]}")
    if others and next(iter(backends)) in others:
        raise NotSupported(f"a group with backends {asked}: name ringtune first, as {_written(ours | others)}")
    return others


def _written(backends: Mapping[str, str]) -> str:
    return ",".join(f"{device}:{backend}" for device, backend in backends.items())


def open_beside(options: Any, others: Mapping[str, str], timeout: timedelta) -> Any:
    """Have torch make the backends of the other devices, as a group of the same ranks.

    Args:
        options: torch's ``DistributedBackendOptions``.
        others: Backend by device.
        timeout: How long an operation may take.

    Raises:
        RuntimeError: torch cannot make one of them here, and says why.
    """
    backends = _written(others)
    ranks = list(options.global_ranks_in_group)
    name = f"{options.group_id}/beside"
    group, _ = _c10d._new_process_group_helper(
        options.group_size, options.group_rank, ranks, backends, options.store, name, timeout=timeout
    )
    # torch sets it for NCCL alone, and warns of its lack.
    group._set_default_backend(_c10d.Backend.backend_type_map[next(iter(others.values()))])
    _c10d._world.pg_group_ranks[group] = {rank: index for index, rank in enumerate(ranks or range(options.group_size))}
    return group


class ProcessGroupMixed(ProcessGroupRingtune):
    """A group that gives tensors of some devices to a group of torch's beside it.

    Args:
        beside: torch's group of the same ranks with the backends of these devices.
        session: As in `ProcessGroupRingtune`, like all that follow.
        meeting: Where its ranks meet, for sends.
        name: Name of the group.
        timeout: How long an operation may take.
    """

    def __init__(self, beside: Any, session: Session, meeting: Meeting, name: str, timeout: timedelta) -> None:
        super().__init__(session, meeting, name, timeout)
        self._beside = beside
        self._elsewhere = frozenset(device.type for device in beside._device_types)

    @property
    def _device_types(self) -> list[torch.device]:
        return [*super()._device_types, *self._beside._device_types]

    def barrier(self, opts: Any = None) -> Any:
        """Wait until all ranks have reached this point; with a device, until what runs there has."""
        device = getattr(opts, "device", None)
        if device is None or device.type not in self._elsewhere:
            return super().barrier(opts)
        return self._beside.barrier(opts)

    def shutdown(self) -> None:
        """Leave the group; of the world's, torch itself leaves the one beside."""
        super().shutdown()
        if self._name != WORLD and self._beside in _c10d._world.pg_map:
            dist.destroy_process_group(self._beside)

    def _get_backend(self, device: torch.device) -> Any:
        return self._beside._get_backend(device) if device.type in self._elsewhere else self

    def _start_coalescing(self, device: torch.device) -> None:
        self._beside._start_coalescing(device)

    def _end_coalescing(self, device: torch.device) -> Any:
        return self._beside._end_coalescing(device)


def _first_tensor(arguments: Any) -> torch.Tensor | None:
    """Return the first tensor in lists of tensors, which may be empty where this rank gives or takes nothing."""
    for one in arguments:
        found = one if isinstance(one, torch.Tensor) else _first_tensor(one) if isinstance(one, list | tuple) else None
        if found is not None:
            return found
    return None


def _by_device(name: str) -> Callable[..., Any]:
    """Return the operation that dispatches by the device of its tensors."""
    ours = getattr(ProcessGroupRingtune, name)

    def operate(self: ProcessGroupMixed, *arguments: Any, **options: Any) -> Any:
        tensor = _first_tensor((*arguments, *options.values()))
        if tensor is None or tensor.device.type not in self._elsewhere:
            return ours(self, *arguments, **options)
        return getattr(self._beside, name)(*arguments, **options)

    operate.__name__ = operate.__qualname__ = name
    operate.__doc__ = ours.__doc__
    return operate


for _name in (
    *("allreduce", "allreduce_coalesced", "reduce", "broadcast", "allgather", "gather", "scatter", "alltoall"),
    *("all_gather_single", "all_gather_single_coalesced", "all_to_all_single", "reduce_scatter"),
    *("reduce_scatter_single", "reduce_scatter_single_coalesced", "send", "recv", "recv_anysource"),
    *("allgather_coalesced", "_allgather_base", "allgather_into_tensor_coalesced", "_reduce_scatter_base"),
    *("reduce_scatter_tensor_coalesced", "alltoall_base"),
):
    setattr(ProcessGroupMixed, _name, _by_device(_name))
