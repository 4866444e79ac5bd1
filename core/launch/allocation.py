"""The allocation of a batch system that `ringtune run` stands in: its hosts, and how ranks are started on them.

Everything here reads the environment, and the files that it names. What a system says that makes no sense is an error
in one sentence, which ``-H`` answers.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ringtune.bootstrap import hostlist
from ringtune.bootstrap.launchers import Environ, find_task, number, slurm_tasks_per_node, text_of
from ringtune.errors import ConfigError, UsageError
from ringtune.launch.hosts import Host, parse_hostfile

_SAY = "say where the ranks run: -H host:slots,..."
_FLUX_TIMEOUT_S = 30
StepCommand = Callable[[str], list[str]]
"""Gives what stands before a command so that it runs on a host."""


@dataclass(frozen=True)
class Allocation:
    """Hosts that a batch system has given to this job.

    Attributes:
        system: Name of the system and the job's number in it.
        hosts: The hosts with their slots, in the system's order.
        starter: Program that starts processes on them, for messages.
        step: Gives its command before the one that is to run on a host; None = ssh.
    """

    system: str
    hosts: tuple[Host, ...]
    starter: str = "ssh"
    step: StepCommand | None = field(default=None, compare=False)


def find(environ: Mapping[str, str]) -> Allocation | None:
    """Return the allocation that this process stands in; None outside of one, or on one of its hosts' tasks.

    Raises:
        UsageError: A batch system's variables contradict each other or cannot be understood.
    """
    if started_beside_others(environ):
        return None
    try:
        found = [one for read in _SYSTEMS if (one := read(environ)) is not None]
    except (ConfigError, ValueError) as error:
        raise UsageError(f"{error}; {_SAY}") from None
    for other in found[1:]:
        # Flux may divide what SLURM gave; two systems beside each other share nothing.
        if not {host.name for host in found[0].hosts} & {host.name for host in other.hosts}:
            raise UsageError(f"{_told(found[0])}, and {_told(other)}; {_SAY}")
    return found[0] if found else None


def started_beside_others(environ: Mapping[str, str]) -> str:
    """Return by what, and how often, this process was started as one of several; empty if it is the only one."""
    try:
        task = find_task(environ)
    except ConfigError:
        return ""
    if task is None or task.size < 2 or task.launcher == "tensorflow":
        return ""
    return f"{task.launcher} has started this {task.size} times"


def _told(one: Allocation) -> str:
    return f"{one.system} gives {', '.join(host.name for host in one.hosts)}"


def _step(program: str, environ: Environ, words: StepCommand) -> tuple[str, StepCommand | None]:
    """Return a step launcher's name and command; ssh where it is not on PATH."""
    path = shutil.which(program, path=environ.get("PATH"))
    return (program, lambda host: [path, *words(host)]) if path is not None else ("ssh", None)


def _hosts(names: list[str]) -> tuple[Host, ...]:
    """Return each host once, with as many slots as it has been named times."""
    return tuple(Host(name, slots) for name, slots in Counter(names).items())


def _flux(environ: Environ) -> Allocation | None:
    """Ask the broker: the script of a batch job has no variable that names its hosts."""
    if not environ.get("FLUX_URI") or not environ.get("FLUX_ENCLOSING_ID"):
        return None
    command = ["flux", "resource", "R"]
    try:
        asked = subprocess.run(
            command, env=dict(environ), capture_output=True, text=True, timeout=_FLUX_TIMEOUT_S, check=True
        ).stdout
        execution = json.loads(asked)["execution"]
        names = [name for words in execution["nodelist"] for name in hostlist.expand(words)]
        each = [
            (int(rank), part["children"])
            for part in execution["R_lite"]
            for rank in hostlist.expand(f"[{part['rank']}]")
        ]
        slots = [len(hostlist.expand(f"[{children.get('gpu') or children['core']}]")) for _, children in each]
        hosts = tuple(Host(name, count) for name, count in zip(names, slots, strict=True))
        ranks = {name: rank for name, (rank, _) in zip(names, each, strict=True)}
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"`flux resource R` does not tell the hosts of this Flux job ({error})") from None
    starter, step = _step("flux", environ, lambda host: ["exec", "--rank", str(ranks[host])])
    return Allocation(f"Flux (job {environ.get('FLUX_JOB_ID') or environ['FLUX_URI']})", hosts, starter, step)


def _slurm(environ: Environ) -> Allocation | None:
    job = text_of(("SLURM_JOB_ID", "SLURM_JOBID"), environ)
    nodes = text_of(("SLURM_JOB_NODELIST", "SLURM_NODELIST"), environ)
    if not job or not nodes:
        return None
    system = f"SLURM (job {job})"
    if (number(("SLURM_HET_SIZE",), environ) or 1) > 1:
        raise ConfigError(f"{system} is made of several jobs (SLURM_HET_SIZE={environ['SLURM_HET_SIZE']})")
    names = hostlist.expand(nodes)
    slots = _slurm_slots(environ, len(names))
    if len(slots) != len(names):
        raise ConfigError(
            f"{system}: SLURM_JOB_NODELIST={nodes} names {len(names)} hosts and SLURM_TASKS_PER_NODE="
            f"{environ['SLURM_TASKS_PER_NODE']} is for {len(slots)}"
        )
    # One task with all that the job has on the host, beside other such steps, whatever the job asked for its own.
    words = ["--jobid", job, "--overlap", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1", "--distribution=block"]
    words += ["--mpi=none", "--cpu-bind=none", "--kill-on-bad-exit=0", "--quiet", "--export=ALL"]
    starter, step = _step("srun", environ, lambda host: [*words, f"--nodelist={host}"])
    return Allocation(system, tuple(map(Host, names, slots)), starter, step)


def _slurm_slots(environ: Environ, hosts: int) -> list[int]:
    """Return the tasks of each node if the user has asked for tasks, else its GPUs if it has some."""
    gpus = environ.get("SLURM_GPUS_PER_NODE", "").rpartition(":")[2] or environ.get("SLURM_GPUS_ON_NODE", "")
    asked = text_of(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE"), environ)
    if not asked and gpus.isdigit() and int(gpus):
        return [int(gpus)] * hosts
    per_node = environ.get("SLURM_TASKS_PER_NODE", "")
    return slurm_tasks_per_node(per_node) if per_node else [1] * hosts


def _lsf(environ: Environ) -> Allocation | None:
    job = environ.get("LSB_JOBID", "")
    if not job or not text_of(("LSB_MCPU_HOSTS", "LSB_HOSTS", "LSB_DJOB_HOSTFILE"), environ):
        return None
    system = f"LSF (job {job})"
    if environ.get("CSM_ALLOCATION_ID"):
        raise ConfigError(f"{system} starts its ranks by jsrun: `jsrun -n 8 -a 1 -g 1 python train.py`")
    if pairs := environ.get("LSB_MCPU_HOSTS", "").split():
        if len(pairs) % 2 or not all(count.isdigit() and int(count) for count in pairs[1::2]):
            raise ConfigError(f"LSB_MCPU_HOSTS={' '.join(pairs)!r}: expected pairs of host and slots")
        hosts = tuple(Host(name, int(count)) for name, count in zip(pairs[::2], pairs[1::2], strict=True))
    else:
        hosts = _hosts(environ.get("LSB_HOSTS", "").split() or _lines("LSB_DJOB_HOSTFILE", environ))
    return Allocation(system, hosts, *_step("blaunch", environ, lambda host: [host]))


def _grid_engine(environ: Environ) -> Allocation | None:
    if not environ.get("PE_HOSTFILE") or not environ.get("JOB_ID"):
        return None
    lines = [line.split() for line in _text("PE_HOSTFILE", environ).splitlines() if line.strip()]
    if not lines or not all(len(words) > 1 and words[1].isdigit() and int(words[1]) for words in lines):
        raise ConfigError(f"PE_HOSTFILE={environ['PE_HOSTFILE']}: expected lines `host slots queue processors`")
    hosts = tuple(Host(words[0], int(words[1])) for words in lines)
    return Allocation(
        f"Grid Engine (job {environ['JOB_ID']})", hosts, *_step("qrsh", environ, lambda host: ["-inherit", host])
    )


def _node_file(system: str, job: str, variable: str) -> Callable[[Environ], Allocation | None]:
    """Return a reader of a file with one line for each slot. PBS's own starters pass no input on, so ssh does it."""

    def read(environ: Environ) -> Allocation | None:
        if not environ.get(variable) or not environ.get(job):
            return None
        return Allocation(f"{system} (job {environ[job]})", _hosts(_lines(variable, environ)))

    return read


def _mpi_operator(environ: Environ) -> Allocation | None:
    """Read the host file that Kubeflow's operators write for the launcher of an MPIJob or TrainJob."""
    names = ("OMPI_MCA_orte_default_hostfile", "I_MPI_HYDRA_HOST_FILE", "HYDRA_HOST_FILE")
    path = text_of(names, environ)
    if not path or not environ.get("KUBERNETES_SERVICE_HOST"):
        return None
    return Allocation(f"Kubernetes ({path})", tuple(parse_hostfile(Path(path))))


def _sagemaker(environ: Environ) -> Allocation | None:
    text = environ.get("SM_HOSTS", "").strip()
    if not text:
        return None
    names = json.loads(text) if text.startswith("[") else None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"SM_HOSTS={text!r}: expected a JSON list of hosts")
    if len(names) > 1:
        raise ConfigError(
            f"SageMaker runs this on each of {len(names)} hosts, and no host can start ranks on another: give the "
            'estimator distribution={"torch_distributed": {"enabled": True}} or {"mpi": {"enabled": True}}'
        )
    slots = number(("SM_NUM_GPUS",), environ) or number(("SM_NUM_CPUS",), environ) or len(os.sched_getaffinity(0))
    return Allocation(f"SageMaker ({names[0]})", (Host("localhost", slots),))


_SYSTEMS: tuple[Callable[[Environ], Allocation | None], ...] = (
    _flux,
    _slurm,
    _lsf,
    _grid_engine,
    _node_file("PBS", "PBS_JOBID", "PBS_NODEFILE"),
    _node_file("Cobalt", "COBALT_JOBID", "COBALT_NODEFILE"),
    _mpi_operator,
    _sagemaker,
)
"""The systems, in the order in which they count: what runs inside another stands first."""


def _lines(variable: str, environ: Environ) -> list[str]:
    lines = _text(variable, environ).split()
    if not lines:
        raise ConfigError(f"{variable}={environ[variable]} names no host")
    return lines


def _text(variable: str, environ: Environ) -> str:
    path = environ.get(variable, "")
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it holds no text"
        raise ConfigError(f"{variable}={path!r} cannot be read ({reason})") from None
