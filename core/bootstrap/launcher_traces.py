"""Processes that something started beside others without telling them their rank: an error that says what to set.

Such a process never becomes a job of one rank without a word: eight of them would train eight times on the same data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from ringtune.bootstrap.launchers import LAUNCHERS, half_a_pair, number, text_of
from ringtune.errors import ConfigError

RANK_ALONE = ("JOB_COMPLETION_INDEX", "PMIX_RANK")
"""Ranks whose launcher gives no size; ``RINGTUNE_SIZE`` completes them."""

_LSF_TASK = ("LSF_PM_TASKID", "LSF_PM_XPROCID")
_LSF_HOSTS = ("LSB_MCPU_HOSTS", "LSB_HOSTS")
_PBS_TASK = ("PBS_TASKNUM", "PBS_NODENUM", "PBS_VNODENUM")
_KUBEFLOW = ("PET_NODE_RANK", "PET_NNODES")
_SAGEMAKER = ("SM_HOSTS", "SM_CURRENT_HOST")

TRACES: dict[str, tuple[str, ...]] = {
    "kubernetes": ("JOB_COMPLETION_INDEX",),
    "pmix": ("PMIX_RANK",),
    "lsf": (*_LSF_TASK, *_LSF_HOSTS),
    "pbs": _PBS_TASK,
    "kubeflow": _KUBEFLOW,
    "sagemaker": _SAGEMAKER,
}
"""The variables that are looked at here, by what sets them."""

_ONE = "for a job of this process alone set RINGTUNE_RANK=0 and RINGTUNE_SIZE=1"
_ALL = "set RINGTUNE_RANK, RINGTUNE_SIZE and RINGTUNE_STORE=host:port (a free port on rank 0's host) on all of them"


def lone_rank(environ: Mapping[str, str]) -> tuple[str, int] | None:
    """Return variable and value of a rank whose launcher gives no size; None without one.

    Raises:
        ConfigError: It is no whole number from 0.
    """
    return next(((name, rank) for name in RANK_ALONE if (rank := number((name,), environ)) is not None), None)


def refuse(environ: Mapping[str, str], host: str) -> None:
    """Refuse a process that was started beside others, as far as its environment shows it.

    Args:
        environ: Environment in which no launcher of the table was found.
        host: Name of this host.

    Raises:
        ConfigError: It was; the message says by what, and what to set.
    """
    _refuse_local_rank_alone(environ)
    found = (
        _rank_without_size(environ)
        or _task_of_lsf(environ, host)
        or _task_of_pbs(environ)
        or _node_of_kubeflow(environ)
        or _host_of_sagemaker(environ)
    )
    if found:
        raise ConfigError(f"{found}; {_ONE}")


def _refuse_local_rank_alone(environ: Mapping[str, str]) -> None:
    for row in LAUNCHERS:
        # Scripts set LOCAL_RANK themselves, and a batch script has SLURM's variables.
        if row.name not in ("torchrun", "slurm") and (there := _name_of((*row.local_rank, *row.local_size), environ)):
            raise half_a_pair(there, row.rank[0])


def _rank_without_size(environ: Mapping[str, str]) -> str:
    found = lone_rank(environ)
    if found is None:
        return ""
    if found[0] == "JOB_COMPLETION_INDEX":
        return (
            f"JOB_COMPLETION_INDEX={found[1]}: this pod is one of an indexed Job, which does not tell "
            "how many there are: set RINGTUNE_SIZE to the Job's completions and RINGTUNE_STORE=<job>-0.<service>:29400"
        )
    return (
        f"PMIX_RANK={found[1]}: a launcher by PMIx started this process and does not tell how many ranks there are: "
        "set RINGTUNE_SIZE to their number and RINGTUNE_STORE=host:port (a free port on rank 0's host)"
    )


def _task_of_lsf(environ: Mapping[str, str], host: str) -> str:
    words = text_of(_LSF_HOSTS, environ).split()
    elsewhere = bool(words) and _short(host) not in {_short(words[0]), "localhost"}
    is_one_of_them = _short(host) in {_short(word) for word in words}
    task = _name_of(_LSF_TASK, environ)
    if not task and not (elsewhere and is_one_of_them):
        return ""
    what = f"{task}={environ[task]}" if task else f"LSB_JOBID={environ.get('LSB_JOBID', '')}"
    return (
        f"{what}: LSF's blaunch started this process on {host} and does not tell its rank: start the job in the batch "
        f"script by `ringtune run -H host1:slots,host2:slots` (or mpirun, jsrun), or {_ALL}"
    )


def _task_of_pbs(environ: Mapping[str, str]) -> str:
    # The batch script itself is task 1 on node 0; tasks are counted on each node.
    of_the_script = {"PBS_TASKNUM": "1", "PBS_NODENUM": "0", "PBS_VNODENUM": "0"}
    name = next((name for name, own in of_the_script.items() if environ.get(name, "").strip() not in ("", own)), "")
    if not name:
        return ""
    return (
        f"{name}={environ[name]}: PBS (pbsdsh) started this process beside others and does not tell its rank: start "
        f"the job in the batch script by `ringtune run --hostfile $PBS_NODEFILE` (or mpirun), or {_ALL}"
    )


def _node_of_kubeflow(environ: Mapping[str, str]) -> str:
    nodes = environ.get("PET_NNODES", "").strip()
    if nodes in ("", "1", "1:1"):
        return ""
    return f"PET_NNODES={nodes}: Kubeflow's Trainer started this pod as one of several: start the script by torchrun"


def _host_of_sagemaker(environ: Mapping[str, str]) -> str:
    try:
        hosts = json.loads(environ.get("SM_HOSTS", "[]"))
    except ValueError:
        return ""
    if not isinstance(hosts, list) or len(hosts) < 2:
        return ""
    return (
        f"SM_HOSTS names {len(hosts)} hosts and nothing on them starts ranks: give the estimator "
        'distribution={"torch_distributed": {"enabled": True}} or {"mpi": {"enabled": True}}'
    )


def _short(host: str) -> str:
    return host.partition(".")[0].lower()


def _name_of(names: tuple[str, ...], environ: Mapping[str, str]) -> str:
    """Return the first of these names that is set, else an empty text."""
    return next((name for name in names if environ.get(name, "").strip()), "")
