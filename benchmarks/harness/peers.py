"""The peers that ringtune is measured against: the registry behind every `--peers` option.

A peer is registered once, with the contenders that it sends into each benchmark, with a check that says why it is
absent here, and with the way to start its job in a race. A peer that is not installed is named in tables and files,
never dropped in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ringtune.benchmarks.harness.devices import CPU, CUDA, DEVICES, nccl_absent
from ringtune.benchmarks.harness.environments import (
    SUBJECT,
    MpiPeer,
    Setting,
    Start,
    gloo_absent,
    start_torch,
)
from ringtune.benchmarks.harness.racejob import JobPlan
from ringtune.errors import UsageError

ALL = "all"
# Processes that train without communicating: no library, but the limit of every library.
ALONE = "alone"
# DDP that reduces nothing: the limit of any library under DDP.
DDP_ALONE = "ddp-alone"
# Processes that train alone but wait for one another in every step: the limit of any training in step.
IN_STEP = "ringtune-in-step"


@dataclass(frozen=True)
class PeerSpec:
    """A peer.

    Args:
        name: as users write it.
        contenders: benchmark -> contenders that the peer sends into it, each with what its ranks call it.
        absent: returns why the peer cannot run here, or None when it can.
        start: how its job in a race is started; `ringtune bench resnet` has it in ringtune's own processes.
        named_only: not among ``all``: ringtune itself, doing something else.
        devices: where it takes tensors.
    """

    name: str
    contenders: Mapping[str, Mapping[str, str]]
    absent: Callable[[], str | None]
    start: Start | None = None
    named_only: bool = False
    devices: tuple[str, ...] = (CPU,)


@dataclass(frozen=True)
class Selection:
    """The contenders of a benchmark.

    Args:
        contenders: the names in the table, ringtune first.
        absent: why the other peers asked for cannot run.
        peers: the peers that send the contenders.
        grouped: ringtune gets a step's gradients as one group, not tensor by tensor.
    """

    contenders: tuple[str, ...]
    absent: Mapping[str, str]
    peers: tuple[PeerSpec, ...] = ()
    grouped: bool = False

    def subject(self, benchmark: str) -> Mapping[str, str]:
        """Returns ringtune's name in the table -> what its ranks call it."""
        return {SUBJECT: "ringtune-group"} if self.grouped else _SUBJECT[benchmark]


def _mpi(name: str, *peer_fields: Any) -> PeerSpec:
    peer = MpiPeer(name, *peer_fields)
    ways = {name: peer.worker}
    benchmarks = {"allreduce": ways, "gradients": ways}
    if peer.worker == "mpi":
        benchmarks["collectives"] = {name: "mpi-collectives"}
    return PeerSpec(name, benchmarks, peer.absent, peer.start)


def _horovod_absent() -> str:
    return (
        "Horovod's last release, 0.28.1, compiles its torch extension as C++14, and torch 2.1 and later need C++17: it "
        "cannot be built against this torch"
    )


# Large temporary buffers come from the heap and are kept, instead of fresh pages from the kernel in every call.
_KEEP_MEMORY = {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=4294967296"}
_HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
_OPENMPI = ("mpirun", "--oversubscribe")
_GLOO = {
    "allreduce": {"gloo": "gloo"},
    "gradients": {"gloo": "gloo-async", "gloo-buckets": "gloo-buckets", "gloo-bucket-views": "gloo-bucket-views"},
    "collectives": {"gloo": "gloo-collectives"},
}

_NCCL = {
    benchmark: {theirs.replace("gloo", "nccl"): way.replace("gloo", "nccl") for theirs, way in ways.items()}
    for benchmark, ways in _GLOO.items()
}

PEERS: dict[str, PeerSpec] = {
    spec.name: spec
    for spec in (
        PeerSpec("gloo", _GLOO, gloo_absent, partial(start_torch, "gloo"), devices=DEVICES),
        PeerSpec("nccl", _NCCL, lambda: None, partial(start_torch, "nccl"), devices=(CUDA,)),
        PeerSpec(
            "horovod",
            {name: {"horovod": "horovod"} for name in ("allreduce", "gradients", "collectives", "train")},
            _horovod_absent,
        ),
        PeerSpec(ALONE, {"train": {ALONE: ALONE}}, lambda: None, devices=DEVICES),
        PeerSpec(
            "ddp-gloo",
            {"resnet": {"ddp-gloo": "ddp-gloo"}, "train": {"ddp-gloo": "ddp-gloo"}},
            gloo_absent,
            devices=DEVICES,
        ),
        PeerSpec(
            "ddp-nccl",
            {"resnet": {"ddp-nccl": "ddp-nccl"}, "train": {"ddp-nccl": "ddp-nccl"}},
            lambda: None,
            devices=(CUDA,),
        ),
        _mpi("openmpi", "openmpi", _OPENMPI),
        _mpi("openmpi-tuned", "openmpi", _OPENMPI, _KEEP_MEMORY),
        _mpi("mpich", "mpich", ("mpiexec",)),
        _mpi("impi", "impi", ("mpiexec",)),
        _mpi("impi-tuned", "impi", ("mpiexec",), _HUGE_PAGES),
        _mpi("oneccl", "oneccl", ("mpiexec",), {}, "oneccl"),
    )
}
_OWN = {
    "ringtune-float32": ("allreduce",),
    "ringtune-fp16": ("allreduce", "gradients", "train"),
    "ringtune-bf16": ("allreduce", "gradients", "train"),
    "ringtune-fp16-passes": ("allreduce", "gradients"),
    "ringtune-powersgd": ("train",),
    "ringtune-topk": ("train",),
    "ringtune-hook": ("train",),
    IN_STEP: ("train",),
}
for _way, _benchmarks in _OWN.items():
    PEERS[_way] = PeerSpec(
        _way,
        {name: {_way: _way} for name in _benchmarks},
        lambda: None,
        partial(start_torch, _way),
        True,
        DEVICES,
    )
PEERS[DDP_ALONE] = PeerSpec(DDP_ALONE, {"train": {DDP_ALONE: DDP_ALONE}}, gloo_absent, None, True, DEVICES)
_USUAL = {
    "allreduce": {CPU: "gloo", CUDA: "nccl,gloo"},
    "gradients": {CPU: "gloo", CUDA: "nccl,gloo"},
    "collectives": {CPU: "gloo", CUDA: "nccl,gloo"},
    "resnet": {CPU: "", CUDA: "ddp-nccl"},
    "train": {CPU: "alone,ddp-gloo,horovod", CUDA: "alone,ddp-nccl,ddp-gloo"},
}
_SUBJECT = {
    "allreduce": {SUBJECT: "ringtune"},
    "gradients": {SUBJECT: "ringtune-async"},
    "collectives": {SUBJECT: "ringtune-collectives"},
}


@dataclass(frozen=True)
class Ground:
    """Where a benchmark runs.

    Args:
        hosts: where the ranks run, None for this host.
        device: where tensors lie, ``cpu`` or ``cuda``.
        ranks: the most ranks of a job.
    """

    hosts: str | None = None
    device: str = CPU
    ranks: int = 1


def select_peers(text: str | None, benchmark: str, ground: Ground | None = None) -> Selection:
    """Returns who takes part in `benchmark`.

    Args:
        text: comma-separated peer names, ``all`` for every known one; empty for ringtune alone; None for the usual.
        benchmark: ``allreduce``, ``gradients``, ``collectives``, ``resnet`` or ``train``.
        ground: where it runs; on this host's CPU if missing.

    Raises:
        UsageError: a peer is unknown or does not take part in this benchmark; the message lists those that do.
    """
    ground = ground or Ground()
    text = _USUAL[benchmark][ground.device] if text is None else text
    known = [peer.name for peer in PEERS.values() if benchmark in peer.contenders]
    names = [word.strip() for word in text.split(",") if word.strip()]
    contenders = [SUBJECT]
    absent: dict[str, str] = {}
    present: list[PeerSpec] = []
    everyone = [name for name in known if not PEERS[name].named_only and ground.device in PEERS[name].devices]
    for name in dict.fromkeys(everyone if ALL in names else names):
        if name not in known:
            raise UsageError(
                f"unknown peer {name!r} for 'ringtune bench {benchmark}'; known: {', '.join(known)}, or {ALL}"
            )
        spec = PEERS[name]
        reason = _misplaced(spec, ground) or spec.absent() or _away(spec, ground.hosts)
        if reason is None:
            contenders.extend(spec.contenders[benchmark])
            present.append(spec)
        else:
            absent[name] = reason
    return Selection(tuple(contenders), absent, tuple(present))


def contenders_by_job(selection: Selection, benchmark: str) -> dict[str, Mapping[str, str]]:
    """Returns for each job of a race, ringtune's first: names in the table -> what its ranks call them."""
    return {SUBJECT: selection.subject(benchmark)} | {spec.name: spec.contenders[benchmark] for spec in selection.peers}


def _misplaced(spec: PeerSpec, ground: Ground) -> str | None:
    if ground.device not in spec.devices:
        elsewhere = "tensors of the CPU only" if CPU in spec.devices else "tensors on GPUs only: --device cuda"
        return f"it takes {elsewhere}"
    return nccl_absent(ground.ranks) if spec.devices == (CUDA,) else None


def _away(spec: PeerSpec, hosts: str | None) -> str | None:
    own_processes = spec.start is None or spec.named_only or spec.name in ("gloo", "nccl")
    return None if hosts is None or own_processes else "it is started on this host only; leave out -H"


def job_plans(selection: Selection, benchmark: str, setting: Setting) -> list[JobPlan]:
    """Returns the jobs of a race of collectives, ringtune's first."""
    plans = [start_torch(SUBJECT, setting, selection.subject(benchmark))]
    for spec in selection.peers:
        assert spec.start is not None, spec.name
        plans.append(spec.start(setting, spec.contenders[benchmark]))
    return plans
