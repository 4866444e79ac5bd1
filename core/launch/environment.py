"""The environment a rank starts with."""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ringtune.bootstrap import interfaces, rank_process
from ringtune.bootstrap.launchers import LAUNCHERS
from ringtune.launch.hosts import Slot
from ringtune.launch.routes import Routes

# What belongs to the launcher's host or shell and would be wrong on another one.
_NOT_FOR_OTHER_HOSTS = re.compile(
    r"^(HOSTNAME|HOST|PWD|OLDPWD|SHLVL|_|TERM_.*|SSH_.*|DISPLAY|XAUTHORITY|XDG_(?!CACHE_HOME$).*|DBUS_.*|WINDOWID|TMUX.*|STY|"
    r"TMPDIR|BASH_FUNC_.*)$"
)
# Rendezvous variables of another launcher; a rank must not take them for its own. Sizes stay with a batch system's.
_RANK_NAMES = "|".join(
    name for row in LAUNCHERS for names in (row.rank, row.local_rank, row.local_size) for name in names
)
_FOREIGN_RENDEZVOUS = re.compile(
    rf"^({rank_process.VARIABLE}|{_RANK_NAMES}|PMIX_RANK|GROUP_RANK|ROLE_(RANK|NAME)|((GROUP|ROLE)_)?WORLD_SIZE|"
    r"TORCHELASTIC_.*|RINGTUNE_(RANK|SIZE|LOCAL_RANK|LOCAL_SIZE|WORKER|RESTART)|(OMPI|MV2|MVP)_COMM_WORLD_.*|PMI_SIZE|"
    r"(JSM_NAMESPACE|PALS)_.*|JAX_NUM_PROCESSES|HOROVOD_((LOCAL_|CROSS_)?(RANK|SIZE)|HOSTNAME))$"
)


@dataclass(frozen=True)
class Job:
    """What all ranks of a job share.

    Attributes:
        name: Random name of the job.
        size: Number of ranks.
        secret: By which its processes know each other.
        store_host: Address by which the launcher reaches its rendezvous store.
        store_port: Port of that store.
        run_dir: Absolute run folder, or None.
        master: Address and port on rank 0's host where ``torch.distributed`` can meet; None where ranks may change.
        hosts: Names of the hosts, in the order of their ranks; empty in an elastic job.
        routes: Addresses that the hosts reach each other at, as far as that was tried.
    """

    name: str
    size: int
    secret: str = field(repr=False)
    store_host: str
    store_port: int
    run_dir: Path | None
    master: tuple[str, int] | None = None
    hosts: tuple[str, ...] = ()
    routes: Routes = field(default_factory=Routes)

    def store_towards(self, host: str) -> str:
        """Return the address by which a rank reaches the store, and by which its peers will reach the rank.

        Args:
            host: The rank's host, or for one on the launcher's host another of the job; empty if there is none.
        """
        one_address = self.store_host != interfaces.loopback()
        return (self.routes.store.get(host) or address_towards(host)) if host and not one_address else self.store_host


def rank_environment(
    job: Job, slot: Slot, store_host: str, base: Mapping[str, str], settings: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables of one rank: `base`, then `settings`, then those that name the rank.

    torchrun's variables are among them, so that a script for torchrun starts without a change.

    Args:
        job: What all ranks share.
        slot: Where this rank runs.
        store_host: Address by which the rank's host reaches the store.
        base: The user's environment.
        settings: What the command line asked for.
    """
    own = {
        "RINGTUNE_RANK": str(slot.rank),
        "RINGTUNE_SIZE": str(job.size),
        "RINGTUNE_LOCAL_RANK": str(slot.local_rank),
        "RINGTUNE_LOCAL_SIZE": str(slot.local_size),
    }
    if (address := job.routes.own.get(slot.host)) is not None:
        own["RINGTUNE_INTERFACE_ADDRESS"] = address
    return _environment(job, slot, store_host, base, {**settings, **own, **as_torchrun(job, slot, base)})


def as_torchrun(job: Job, slot: Slot, base: Mapping[str, str]) -> dict[str, str]:
    """Return what torchrun tells a rank; a ``MASTER_ADDR`` or ``MASTER_PORT`` of the user stays."""
    if job.master is None:
        return {}
    host, port = job.master
    return {
        "RANK": str(slot.rank),
        "WORLD_SIZE": str(job.size),
        "LOCAL_RANK": str(slot.local_rank),
        "LOCAL_WORLD_SIZE": str(slot.local_size),
        "GROUP_RANK": str(job.hosts.index(slot.host)),
        "GROUP_WORLD_SIZE": str(len(job.hosts)),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(slot.rank),
        "ROLE_WORLD_SIZE": str(job.size),
        "MASTER_ADDR": base.get("MASTER_ADDR") or host,
        "MASTER_PORT": base.get("MASTER_PORT") or str(port),
    }


def worker_environment(
    job: Job, slot: Slot, store_host: str, base: Mapping[str, str], settings: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables of a worker of an elastic job, which learns its rank from the store; see `rank_environment`.

    Args:
        job: What all workers share.
        slot: Where this worker runs; its rank is the worker's number.
        store_host: Address by which the worker's host reaches the store.
        base: The user's environment.
        settings: What the command line asked for.
    """
    own = {"RINGTUNE_WORKER": str(slot.rank), "HOROVOD_ELASTIC": "1"}
    return _environment(job, slot, store_host, base, {**settings, **own})


def _environment(
    job: Job, slot: Slot, store_host: str, base: Mapping[str, str], more: Mapping[str, str]
) -> dict[str, str]:
    environ = without_rank(base)
    environ.update(more)
    environ.update(
        {
            "RINGTUNE_HOSTNAME": slot.host,
            "RINGTUNE_STORE": _address(store_host, job.store_port),
            "RINGTUNE_JOB": job.name,
            "RINGTUNE_SECRET": job.secret,
            "RINGTUNE_LAUNCHER": "1",
            # Buffered lines would arrive in blocks, long after the event that they report.
            "PYTHONUNBUFFERED": "1",
        }
    )
    environ.pop("RINGTUNE_SECRET_FILE", None)
    environ.pop("RINGTUNE_RUN_DIR", None)
    if job.run_dir is not None:
        environ["RINGTUNE_RUN_DIR"] = str(job.run_dir)
    return environ


def without_rank(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without what a launcher has set for this process, or a rank that is its parent."""
    return {name: value for name, value in environ.items() if not _FOREIGN_RENDEZVOUS.match(name)}


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def for_other_host(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without what belongs to this host or to the user's shell.

    Where the user keeps caches goes along, as the home folder does: the tuner of rank 0 remembers jobs there.
    """
    return {name: value for name, value in environ.items() if not _NOT_FOR_OTHER_HOSTS.match(name)}


def address_towards(host: str) -> str:
    """Return this machine's address on the way to `host`, by which that host can reach us.

    Falls back to this host's name: the other's may be known to ssh alone (an alias in its configuration).
    """
    name = host.rpartition("@")[2]
    return interfaces.outward_address(name) or interfaces.address_towards(name) or socket.gethostname()


def meeting_place(host: str, local: bool, others: Sequence[str], found: Routes) -> tuple[str, int]:
    """Return where ranks can meet on the host of rank 0: its address and a port that is probably free.

    Args:
        host: Name of rank 0's host.
        local: Whether that is this machine.
        others: Other hosts of the job.
        found: Addresses that were tried.
    """
    # The kernel's ephemeral ports are avoided: another socket could take one before rank 0 opens it.
    port = 20_000 + secrets.randbelow(10_000)
    if not local:
        return found.own.get(host) or host.rpartition("@")[2], port
    while not _is_free(port):
        port = 20_000 + secrets.randbelow(10_000)
    if not others:
        return _loopback_by_tcp(), port
    return found.own.get(host) or found.store.get(others[0]) or address_towards(others[0]), port


def _loopback_by_tcp() -> str:
    """Return the loopback address; `torch.distributed`'s own store, which listens there, supports TCP only."""
    found = interfaces.loopback()
    return "127.0.0.1" if found == interfaces.LOCAL else found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))
