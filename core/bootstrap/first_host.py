"""Where ranks on several hosts meet: on the first host, as far as their launcher names it, at a port all ranks know."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path

from ringtune.bootstrap import hostlist
from ringtune.bootstrap.deadline import Deadline
from ringtune.bootstrap.launchers import tf_workers
from ringtune.bootstrap.placement import Placement
from ringtune.config import parse_address
from ringtune.errors import ConfigError, Timeout

Address = tuple[str, int]

_SET = "set RINGTUNE_STORE=host:port on all ranks (a free port on rank 0's host)"
_FLUX_TIMEOUT_S = 30
_SAY_AFTER_NS = 2_000_000_000


def address(placement: Placement, environ: Mapping[str, str]) -> Address | None:
    """Return where rank 0 serves the store of a job on several hosts; None where its launcher does not name that host.

    Args:
        placement: This process's.
        environ: Its environment.

    Raises:
        ConfigError: The launcher names it in a way that cannot be read, or not at all and nothing else can help.
    """
    # TensorFlow's workers need no common parent by which those of one host could find each other.
    if not placement.several_hosts and placement.launcher != "tensorflow":
        return None
    if placement.launcher == "kubernetes":
        raise ConfigError(
            "RINGTUNE_SIZE and JOB_COMPLETION_INDEX are set but RINGTUNE_STORE is not: set it in all pods to "
            "<job>-0.<service>:29400, the first pod by the Job's headless service"
        )
    if placement.launcher == "slurm":
        return slurm_address(environ)
    find = _FIRST_HOSTS.get(placement.launcher)
    host = find(environ) if find is not None else ""
    return (host, port_of(placement.job)) if host else None


def wait_for_name(placement: Placement, host: str, deadline: Deadline) -> None:
    """Wait until the name of a pod is known: it comes into being with the pod, and others may have started before.

    Under launchers that start no pods an unknown name is an error, which the connection to the store tells at once.

    Raises:
        Timeout: It is not known at the deadline.
    """
    if placement.launcher not in ("kubernetes", "jax", "tensorflow", "torchrun"):
        return
    say_at = Deadline.after_ns(_SAY_AFTER_NS)
    said = False
    while not _is_known(host):
        if deadline.passed:
            raise Timeout(
                f"rank {placement.rank}: the name {host} of rank 0 was not known within the start timeout: does its "
                "pod run, and is there a headless service of that name (clusterIP: None)? (RINGTUNE_START_TIMEOUT)"
            )
        if say_at.passed and not said:
            said = True
            print(
                f"ringtune: rank {placement.rank} waits for the name {host} of rank 0, which is not known yet",
                file=sys.stderr,
                flush=True,
            )
        deadline.pause(0.2)


def _is_known(host: str) -> bool:
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        return False
    return True


def port_of(job: str) -> int:
    """Return a port for a job, the same on all its ranks.

    It is one of 15000 to 30999: above the registered services people run, below Linux's ephemeral ports (32768).
    """
    return 15000 + zlib.crc32(job.encode()) % 16000


def slurm_address(environ: Mapping[str, str]) -> Address:
    """Return the first host of SLURM's node list and a port derived from the job and step.

    Raises:
        ConfigError: There is no node list.
    """
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST")
    if not nodes:
        raise ConfigError(f"this SLURM job spans several hosts but SLURM_JOB_NODELIST is not set: {_SET}")
    job = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID") or "0"
    step = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID") or "0"
    return first_node(nodes), port_of(f"{job}.{step}")


def first_node(nodes: str) -> str:
    """Return the first name of a list of SLURM's or Flux's: ``gpu[03-05,9],cpu1`` gives ``gpu03``.

    Raises:
        ConfigError: The text is no such list.
    """
    try:
        return hostlist.expand(nodes)[0]
    except ValueError as error:
        raise ConfigError(f"the hosts of this job: {error}: {_SET}") from None


def _of_flux(environ: Mapping[str, str]) -> str:
    """Ask Flux's broker on this host; the variables of a task name no host."""
    command = ["flux", "hostlist", "local"]
    try:
        asked = subprocess.run(
            command, env=dict(environ), capture_output=True, text=True, timeout=_FLUX_TIMEOUT_S, check=True
        ).stdout.strip()
        problem = "" if asked else "it prints nothing"
    except (OSError, subprocess.SubprocessError) as error:
        problem = str(error)
    if problem:
        raise ConfigError(f"`flux hostlist local` does not tell this job's first host ({problem}): {_SET}")
    return first_node(asked)


def _of_jsrun(environ: Mapping[str, str]) -> str:
    # The first line is the host that launches; the others are those of the ranks, one a slot.
    return _line("LSB_DJOB_RANKFILE", 1, environ)


def _of_pals(environ: Mapping[str, str]) -> str:
    return _line("PBS_NODEFILE", 0, environ)


def _of_jax(environ: Mapping[str, str]) -> str:
    # The port belongs to JAX's own coordinator.
    return parse_address("JAX_COORDINATOR_ADDRESS", environ.get("JAX_COORDINATOR_ADDRESS", ""))[0]


def _of_tensorflow(environ: Mapping[str, str]) -> str:
    # The port belongs to TensorFlow's own server.
    return parse_address("TF_CONFIG", tf_workers(environ)[0])[0]


def _of_openmpi(environ: Mapping[str, str]) -> str:
    """Return what jsrun, Azure ML and SageMaker say beside mpirun's variables; empty where it is none of them."""
    if environ.get("JSM_NAMESPACE_RANK"):
        return _of_jsrun(environ)
    if master := environ.get("AZ_BATCH_MASTER_NODE", "").strip():
        return master.rpartition(":")[0] or master
    try:
        hosts = json.loads(environ.get("SM_HOSTS") or "[]")
    except ValueError:
        return ""
    return str(hosts[0]) if isinstance(hosts, list) and hosts else ""


_FIRST_HOSTS = {
    "flux": _of_flux,
    "jsrun": _of_jsrun,
    "pals": _of_pals,
    "jax": _of_jax,
    "tensorflow": _of_tensorflow,
    "openmpi": _of_openmpi,
}


def _line(variable: str, number: int, environ: Mapping[str, str]) -> str:
    """Return a line of the file that a variable names."""
    path = environ.get(variable, "").strip()
    try:
        lines = Path(path).read_text(encoding="utf-8").split() if path else []
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it holds no text"
        raise ConfigError(
            f"{variable}={path!r} cannot be read ({reason}), so the ranks' first host is unknown: {_SET}"
        ) from None
    if len(lines) <= number:
        raise ConfigError(f"{variable}={path!r} does not name the ranks' first host: {_SET}")
    return lines[number]
