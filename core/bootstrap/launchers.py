"""Launchers: the variables by which each one tells a process its rank, in one table.

A variable of a batch system alone (``SLURM_NTASKS``, ``PBS_NODEFILE``, ``LSB_HOSTS``) makes no rank: a batch script
sees it too. What looks like a rank and is not in this table is refused by `ringtune.bootstrap.launcher_traces`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ringtune.errors import ConfigError

Environ = Mapping[str, str]


@dataclass(frozen=True)
class Task:
    """What a launcher tells one process.

    Attributes:
        launcher: Name of the launcher.
        rank: Rank in the job, from 0.
        size: Number of ranks.
        local_rank: Rank among those of this host; None if the launcher does not say.
        local_size: Ranks on this host; None if the launcher does not say.
        job: The launcher's name of the job, empty if it gives none.
        nodes: Number of hosts; None if the launcher does not say.
    """

    launcher: str
    rank: int
    size: int
    local_rank: int | None = None
    local_size: int | None = None
    job: str = ""
    nodes: int | None = None


@dataclass(frozen=True)
class Launcher:
    """The variables of one launcher; of several names the first that is set counts.

    Attributes:
        name: Name of the launcher.
        rank: Rank in the job.
        size: Number of ranks.
        local_rank: Rank among those of the host.
        local_size: Ranks on the host.
        job: Name of the job.
        nodes: Number of hosts.
        step: Second part of the job's name: its step or restart.
        more: What else belongs to a rank.
        read: Reads a task where numbers by name are not enough.
    """

    name: str
    rank: tuple[str, ...]
    size: tuple[str, ...]
    local_rank: tuple[str, ...] = ()
    local_size: tuple[str, ...] = ()
    job: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    step: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    read: Callable[[Launcher, Environ], Task | None] | None = None

    @property
    def variables(self) -> tuple[str, ...]:
        """All its variables."""
        named = (self.rank, self.size, self.local_rank, self.local_size, self.job, self.nodes, self.step, self.more)
        return tuple(dict.fromkeys(name for names in named for name in names))

    def task(self, environ: Environ) -> Task | None:
        """Return what the variables say; None when the launcher did not start this process.

        Raises:
            ConfigError: The variables are incomplete, or no numbers.
        """
        return self.read(self, environ) if self.read is not None else _numbers(self, environ)


def find_task(environ: Environ) -> Task | None:
    """Return what the first launcher of the table says that started this process; None where none did.

    Raises:
        ConfigError: A launcher's variables are incomplete, or no numbers.
    """
    return next((task for row in LAUNCHERS if (task := row.task(environ)) is not None), None)


def number(names: tuple[str, ...], environ: Environ) -> int | None:
    """Return the number in the first of these variables that is set.

    Raises:
        ConfigError: It is no whole number from 0.
    """
    for name in names:
        text = environ.get(name, "").strip()
        if text:
            if not text.isascii() or not text.isdigit():
                raise ConfigError(f"{name}={text!r}: expected a whole number >= 0")
            return int(text)
    return None


def text_of(names: tuple[str, ...], environ: Environ) -> str:
    """Return the first of these variables that is set, else an empty text."""
    return next((text for name in names if (text := environ.get(name, "").strip())), "")


def half_a_pair(there: str, missing: str) -> ConfigError:
    """Return the error for a rank without a size, or the reverse."""
    return ConfigError(f"{there} is set but {missing} is not: set both, or neither for a job of one rank")


def slurm_tasks_per_node(text: str) -> list[int]:
    """Expand SLURM's ``2(x3),1`` into ``[2, 2, 2, 1]``.

    Raises:
        ConfigError: The text is no such list.
    """
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\(x(\d+)\))?\s*", part)
        if match is None:
            raise ConfigError(f"SLURM_TASKS_PER_NODE={text!r}: expected counts such as 2(x3),1")
        counts += [int(match.group(1))] * int(match.group(2) or 1)
    return counts


def tf_config(environ: Environ) -> dict[str, Any]:
    """Return TensorFlow's description of its cluster; empty where there is none.

    Raises:
        ConfigError: ``TF_CONFIG`` is no JSON object.
    """
    text = environ.get("TF_CONFIG", "").strip()
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"TF_CONFIG={text!r}: expected a JSON object with `cluster` and `task`")
    return found


def tf_workers(environ: Environ) -> list[str]:
    """Return the addresses of the processes that train by ``TF_CONFIG``, by rank: the chief, then the workers."""
    cluster = tf_config(environ).get("cluster")
    if not isinstance(cluster, dict):
        return []
    return [str(one) for kind in ("chief", "master", "worker") for one in cluster.get(kind) or ()]


def _numbers(row: Launcher, environ: Environ) -> Task | None:
    rank, size = number(row.rank, environ), number(row.size, environ)
    if rank is None and size is None:
        return None
    if rank is None or size is None:
        there, missing = (row.size, row.rank) if rank is None else (row.rank, row.size)
        raise half_a_pair(next(name for name in there if environ.get(name, "").strip()), missing[0])
    local_rank, local_size = number(row.local_rank, environ), number(row.local_size, environ)
    nodes = number(row.nodes, environ)
    if local_size is None and nodes == 1:
        local_size = size
    job, step = text_of(row.job, environ), text_of(row.step, environ)
    return Task(row.name, rank, size, local_rank, local_size, f"{job}.{step}" if job and step else job, nodes)


def _pmi(row: Launcher, environ: Environ) -> Task | None:
    """Read PMI's variables; those of ``srun --mpi=pmi2`` are completed by SLURM's own, which know the hosts."""
    task = _numbers(row, environ)
    if task is None or task.local_size is not None or not _in_slurm_step(environ):
        return task
    # mpirun of MPICH starts one proxy a host by srun: SLURM's variables are then the proxy's.
    step = _slurm(_SLURM, environ)
    return step if step is not None and (step.rank, step.size) == (task.rank, task.size) else task


def _slurm(row: Launcher, environ: Environ) -> Task | None:
    if not _in_slurm_step(environ):
        return None
    task = _numbers(row, environ)
    if task is None:
        return None
    local_size, nodes = _slurm_local_size(environ, task.size), task.nodes
    return Task(task.launcher, task.rank, task.size, task.local_rank, local_size, task.job, nodes)


def _in_slurm_step(environ: Environ) -> bool:
    """Whether srun started this process: a batch script sees the task count too, but is no task itself."""
    if not environ.get("SLURM_PROCID"):
        return False
    step, job = text_of(_SLURM_STEP, environ), text_of(_SLURM_JOB, environ)
    # Numbers from 0xfffffff0 stand for batch scripts and interactive shells.
    return not job if not step else not (step.isdigit() and int(step) >= 0xFFFFFFF0)


def _slurm_local_size(environ: Environ, size: int) -> int | None:
    for name in ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"):
        if environ.get(name):
            counts = slurm_tasks_per_node(environ[name])
            node = number(("SLURM_NODEID",), environ) or 0
            return counts[node] if node < len(counts) else None
    return size if number(("SLURM_STEP_NUM_NODES", "SLURM_NNODES"), environ) == 1 else None


def _flux(row: Launcher, environ: Environ) -> Task | None:
    # A batch script may have the size, without being a task.
    return None if number(row.rank, environ) is None else _numbers(row, environ)


def _one_a_host(row: Launcher, environ: Environ) -> Task | None:
    """Read a launcher that starts one process in each pod."""
    task = _numbers(row, environ)
    return None if task is None else Task(task.launcher, task.rank, task.size, 0, 1, task.job, task.size)


def _tensorflow(row: Launcher, environ: Environ) -> Task | None:
    workers, task = tf_workers(environ), tf_config(environ).get("task")
    if not workers or not isinstance(task, dict):
        return None
    kind, index = task.get("type", "worker"), task.get("index", 0)
    cluster = tf_config(environ)["cluster"]
    before = sum(len(cluster.get(one) or ()) for one in ("chief", "master")) if kind == "worker" else 0
    if kind not in ("chief", "master", "worker") or not str(index).isdigit():
        raise ConfigError(
            f"TF_CONFIG: task {kind} {index} is no worker, and only workers train here: start the script on the chief "
            "and the workers alone"
        )
    rank, hosts = before + int(index), [one.rpartition(":")[0] for one in workers]
    if rank >= len(workers):
        raise ConfigError(f"TF_CONFIG: there is no {kind} {index} in the cluster: {', '.join(workers)}")
    here = hosts[rank]
    local_rank, local_size = hosts[:rank].count(here), hosts.count(here)
    return Task(row.name, rank, len(workers), local_rank, local_size, ",".join(workers), len(set(hosts)))


_SLURM_JOB = ("SLURM_JOB_ID", "SLURM_JOBID")
_SLURM_STEP = ("SLURM_STEP_ID", "SLURM_STEPID")
_SLURM = Launcher(
    "slurm",
    ("SLURM_PROCID",),
    ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"),  # a step may have fewer tasks than its job
    ("SLURM_LOCALID",),
    job=_SLURM_JOB,
    step=_SLURM_STEP,
    read=_slurm,
)

LAUNCHERS = (
    Launcher(
        "torchrun",  # also TorchDistributor, Ray Train and Kubeflow's PyTorchJob
        ("RANK",),
        ("WORLD_SIZE",),
        ("LOCAL_RANK",),
        ("LOCAL_WORLD_SIZE",),
        ("TORCHELASTIC_RUN_ID",),
        step=("TORCHELASTIC_RESTART_COUNT",),
        more=("TORCHELASTIC_USE_AGENT_STORE", "MASTER_ADDR", "MASTER_PORT"),
    ),
    Launcher(
        "openmpi",
        ("OMPI_COMM_WORLD_RANK",),
        ("OMPI_COMM_WORLD_SIZE",),
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
        ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
    ),
    Launcher(
        "mvapich",
        ("MV2_COMM_WORLD_RANK", "MVP_COMM_WORLD_RANK"),
        ("MV2_COMM_WORLD_SIZE", "MVP_COMM_WORLD_SIZE"),
        ("MV2_COMM_WORLD_LOCAL_RANK", "MVP_COMM_WORLD_LOCAL_RANK"),
        ("MV2_COMM_WORLD_LOCAL_SIZE", "MVP_COMM_WORLD_LOCAL_SIZE"),
    ),
    Launcher(
        "pmi",  # MPICH, Intel MPI
        ("PMI_RANK",),
        ("PMI_SIZE",),
        ("MPI_LOCALRANKID", "PMI_LOCAL_RANK"),
        ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"),
        ("PMI_JOBID",),
        read=_pmi,
    ),
    Launcher(
        "jsrun",
        ("JSM_NAMESPACE_RANK",),
        ("JSM_NAMESPACE_SIZE",),
        ("JSM_NAMESPACE_LOCAL_RANK",),
        ("JSM_NAMESPACE_LOCAL_SIZE",),
        ("LSB_JOBID",),
        step=("PMIX_NAMESPACE",),
    ),
    Launcher(
        "flux",
        ("FLUX_TASK_RANK",),
        ("FLUX_JOB_SIZE",),
        ("FLUX_TASK_LOCAL_ID",),
        job=("FLUX_JOB_ID",),
        nodes=("FLUX_JOB_NNODES",),
        read=_flux,
    ),
    Launcher(
        "pals",
        ("PALS_RANKID",),
        ("PALS_NRANKS", "PALS_SIZE"),
        ("PALS_LOCAL_RANKID",),
        ("PALS_LOCAL_SIZE",),
        ("PBS_JOBID",),
        step=("PALS_APID",),
    ),
    _SLURM,
    Launcher(
        "jax",  # Kubeflow Trainer
        ("JAX_PROCESS_ID",),
        ("JAX_NUM_PROCESSES",),
        job=("JAX_COORDINATOR_ADDRESS",),
        read=_one_a_host,
    ),
    Launcher("tensorflow", (), (), more=("TF_CONFIG",), read=_tensorflow),
)
"""All launchers but ringtune's own, in the order in which they count: who started a process last stands first."""
