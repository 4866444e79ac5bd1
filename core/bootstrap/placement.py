"""Placement: rank, host and job of this process, found in the variables of its launcher.

Everything here is a pure function of the environment. `ringtune.bootstrap.rendezvous` then brings the ranks together.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from ringtune.config import Config, parse_address
from ringtune.errors import ConfigError


@dataclass(frozen=True)
class Placement:
    """Rank, host and job of a process.

    Attributes:
        rank: Rank in the job, from 0.
        size: Number of ranks.
        local_rank: Rank among those of this host as the launcher said; None if it did not.
        local_size: Ranks on this host as the launcher said; None if it did not.
        host: Name of this host; ranks of one name share memory.
        store: Address of the rendezvous store if the environment names one.
        launcher: ``ringtune``, ``horovodrun``, ``torchrun``, ``openmpi``, ``pmi``, ``slurm`` or ``single``.
        job: Name of the job as far as the launcher gives one, else empty.
        generation: Number of the set of ranks in an elastic job; None in a job with fixed ranks.
    """

    rank: int = 0
    size: int = 1
    local_rank: int | None = 0
    local_size: int | None = 1
    host: str = "localhost"
    store: tuple[str, int] | None = None
    launcher: str = "single"
    job: str = ""
    generation: int | None = None

    @property
    def several_hosts(self) -> bool:
        """Whether the launcher says that the job spans hosts; False when it does not say."""
        return self.local_size is not None and self.local_size < self.size


@dataclass(frozen=True)
class _Launcher:
    """Names of the variables by which a launcher tells a process its rank; later names are alternatives."""

    name: str
    rank: tuple[str, ...]
    size: tuple[str, ...]
    local_rank: tuple[str, ...]
    local_size: tuple[str, ...]
    job: tuple[str, ...] = ()


_LAUNCHERS = (
    _Launcher("torchrun", ("RANK",), ("WORLD_SIZE",), ("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",), ("TORCHELASTIC_RUN_ID",)),
    _Launcher(
        "openmpi",
        ("OMPI_COMM_WORLD_RANK",),
        ("OMPI_COMM_WORLD_SIZE",),
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
        ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
    ),
    _Launcher(
        "pmi",
        ("PMI_RANK",),
        ("PMI_SIZE",),
        ("MPI_LOCALRANKID", "PMI_LOCAL_RANK"),
        ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"),
    ),
    _Launcher(
        "slurm",
        ("SLURM_PROCID",),
        ("SLURM_NTASKS", "SLURM_NPROCS"),
        ("SLURM_LOCALID",),
        (),
        ("SLURM_JOB_ID", "SLURM_JOBID"),
    ),
)

_MORE = {
    "torchrun": ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_USE_AGENT_STORE", "MASTER_ADDR", "MASTER_PORT"),
    "slurm": ("SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NUM_TASKS"),
}
_RANK_INFO = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "HOSTNAME")
LAUNCHER_VARIABLES: dict[str, tuple[str, ...]] = {
    "ringtune": tuple(f"RINGTUNE_{name}" for name in (*_RANK_INFO, "STORE", "JOB", "WORKER", "LAUNCHER")),
    "horovodrun": tuple(
        f"HOROVOD_{name}" for name in (*_RANK_INFO, "GLOO_RENDEZVOUS_ADDR", "GLOO_RENDEZVOUS_PORT", "ELASTIC")
    ),
    **{
        row.name: (*row.rank, *row.size, *row.local_rank, *row.local_size, *row.job, *_MORE.get(row.name, ()))
        for row in _LAUNCHERS
    },
}
"""The variables by which each launcher tells a process its rank, and where the ranks meet."""


def detect(config: Config, environ: Mapping[str, str] | None = None) -> Placement:
    """Find this process's placement from ringtune's own variables, then from each known launcher's, else a job of one.

    Args:
        config: Settings already read (``RINGTUNE_RANK`` and so on).
        environ: Environment to look in; default: the process's.

    Raises:
        ConfigError: Rank without size or the reverse, or numbers that contradict each other.
    """
    environ = os.environ if environ is None else environ
    host = config.hostname or socket.gethostname()
    if config.rank is not None or config.size is not None:
        found = _from_config(config, environ)
    else:
        found = next((read for row in _LAUNCHERS if (read := _read(row, environ)) is not None), Placement())
    store = config.store if config.store is not None else _master(environ) if found.size > 1 else None
    placement = Placement(
        rank=found.rank,
        size=found.size,
        local_rank=found.local_rank,
        local_size=found.local_size,
        host=host,
        store=store,
        launcher=found.launcher,
        job=config.job or found.job,
    )
    _check(placement)
    return placement


def slurm_tasks_per_node(text: str) -> list[int]:
    """Expand SLURM's ``2(x3),1`` into ``[2, 2, 2, 1]``."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\(x(\d+)\))?\s*", part)
        if match is None:
            raise ConfigError(f"SLURM_TASKS_PER_NODE={text!r}: expected counts such as 2(x3),1")
        counts += [int(match.group(1))] * int(match.group(2) or 1)
    return counts


def _from_config(config: Config, environ: Mapping[str, str]) -> Placement:
    own = environ.get("RINGTUNE_RANK") or environ.get("RINGTUNE_SIZE")
    prefix, launcher = ("RINGTUNE_", "ringtune") if own else ("HOROVOD_", "horovodrun")
    if config.rank is None or config.size is None:
        there, missing = ("SIZE", "RANK") if config.rank is None else ("RANK", "SIZE")
        raise _half_a_pair(prefix + there, prefix + missing)
    return Placement(config.rank, config.size, config.local_rank, config.local_size, launcher=launcher)


def _read(row: _Launcher, environ: Mapping[str, str]) -> Placement | None:
    rank, size = _first(row.rank, environ), _first(row.size, environ)
    if row.name == "slurm" and not _in_slurm_step(environ):
        return None
    if row.name == "slurm":  # a step may have fewer tasks than its job
        size = _first(("SLURM_STEP_NUM_TASKS",), environ) or size
    if rank is None and size is None:
        return None
    if rank is None or size is None:
        there, missing = (row.size[0], row.rank[0]) if rank is None else (row.rank[0], row.size[0])
        raise _half_a_pair(there, missing)
    local_rank, local_size = _first(row.local_rank, environ), _first(row.local_size, environ)
    job = next((environ[name] for name in row.job if environ.get(name)), "")
    if row.name == "slurm":
        local_size = _slurm_local_size(environ, size)
        step = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID")
        job = f"{job}.{step}" if job and step else job
    if row.name == "torchrun" and environ.get("TORCHELASTIC_RESTART_COUNT"):
        job = f"{job}.{environ['TORCHELASTIC_RESTART_COUNT']}"
    return Placement(rank, size, local_rank, local_size, launcher=row.name, job=job)


def _in_slurm_step(environ: Mapping[str, str]) -> bool:
    """Whether srun started this process: a batch script sees the task count too, but is no task itself."""
    if environ.get("SLURM_PROCID") is None:
        return False
    in_step = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID")
    in_job = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID")
    return bool(in_step) or not in_job


def _slurm_local_size(environ: Mapping[str, str], size: int) -> int | None:
    for name in ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"):
        if environ.get(name):
            counts = slurm_tasks_per_node(environ[name])
            node = int(environ.get("SLURM_NODEID", "0") or 0)
            return counts[node] if node < len(counts) else None
    nodes = environ.get("SLURM_STEP_NUM_NODES") or environ.get("SLURM_NNODES")
    return size if nodes == "1" else None


def _first(names: tuple[str, ...], environ: Mapping[str, str]) -> int | None:
    for name in names:
        text = environ.get(name, "").strip()
        if text:
            if not text.isascii() or not text.isdigit():
                raise ConfigError(f"{name}={text!r}: expected a whole number >= 0")
            return int(text)
    return None


def _master(environ: Mapping[str, str]) -> tuple[str, int] | None:
    """PyTorch's way to name the host of rank 0; under torchrun the port belongs to torch's own store."""
    address, port = environ.get("MASTER_ADDR", "").strip(), environ.get("MASTER_PORT", "").strip()
    if not address or not port or environ.get("TORCHELASTIC_RUN_ID"):
        return None
    return parse_address("MASTER_ADDR:MASTER_PORT", f"[{address}]:{port}" if ":" in address else f"{address}:{port}")


def _half_a_pair(there: str, missing: str) -> ConfigError:
    return ConfigError(f"{there} is set but {missing} is not: set both, or neither for a job of one rank")


def _check(placement: Placement) -> None:
    if placement.size < 1 or placement.rank >= placement.size:
        raise ConfigError(
            f"this process is rank {placement.rank} of {placement.size} (from {placement.launcher}): "
            "expected 0 <= rank < size"
        )
    if placement.local_size is not None and not 1 <= placement.local_size <= placement.size:
        raise ConfigError(
            f"local size {placement.local_size} (from {placement.launcher}): expected 1 to {placement.size}, the size"
        )
    if placement.local_rank is not None and placement.local_rank >= (placement.local_size or placement.size):
        bound = placement.local_size or placement.size
        raise ConfigError(f"local rank {placement.local_rank} (from {placement.launcher}): expected less than {bound}")
