"""A worker of an engine as a rank: its variables, the store of rank 0, joining and leaving a job."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ringtune import session
from ringtune.bootstrap import address_file, interfaces
from ringtune.bootstrap.rendezvous import Rendezvous, bind_host
from ringtune.config import Config
from ringtune.errors import InvalidArgument
from ringtune.launch.environment import meeting_place, without_rank
from ringtune.launch.routes import Routes

KEPT = "RINGTUNE_ELASTIC_STATE"
"""Variable that names the folder in which the committed state outlives the processes."""

_NOT_FOR_RANKS = ("RINGTUNE_SECRET", "RINGTUNE_SECRET_FILE", "RINGTUNE_STORE", "RINGTUNE_JOB", "RINGTUNE_LAUNCHER")
_PATHS = ("RINGTUNE_TIMELINE", "RINGTUNE_RUN_DIR")


@dataclass(frozen=True)
class EngineJob:
    """What all ranks of a job in an engine share; the engine carries it to them.

    Attributes:
        engine: Name of the engine.
        name: Name of the job.
        secret: By which its processes know each other.
        settings: Variables of all ranks.
        keeps_state: Whether the committed state is kept on each host's disk, for a start after a failure.
        restart: How often the job was started again.
    """

    engine: str
    name: str
    secret: str = field(repr=False)
    settings: Mapping[str, str] = field(default_factory=dict)
    keeps_state: bool = False
    restart: int = 0


@dataclass(frozen=True)
class Meeting:
    """Where the ranks of a job meet, as rank 0 tells it.

    Attributes:
        store: Address of ringtune's store.
        master: Address at which ``torch.distributed`` can meet.
    """

    store: tuple[str, int]
    master: tuple[str, int]


_served: list[Rendezvous] = []
"""Keeps the store of the last job alive; the ranks of that before have left it."""


def new_job(engine: str, settings: Mapping[str, str] | None = None, *, keeps_state: bool = False) -> EngineJob:
    """Return a job with a secret of its own, and with the settings of this process's environment.

    Args:
        engine: Name of the engine.
        settings: Further variables, which win.
        keeps_state: See `EngineJob`.
    """
    given = {str(name): str(value) for name, value in (settings or {}).items()}
    return EngineJob(
        engine, f"{engine}-{secrets.token_hex(8)}", secrets.token_hex(32), {**_own_settings(), **given}, keeps_state
    )


def _own_settings() -> dict[str, str]:
    """Return ringtune's settings in this environment; paths as they are meant from here."""
    found = {
        name: value
        for name, value in without_rank(os.environ).items()
        if name.startswith("RINGTUNE_") and name not in _NOT_FOR_RANKS
    }
    for name in _PATHS:
        if found.get(name, "").strip().upper() not in ("", "DYNAMIC"):
            found[name] = str(Path(found[name]).absolute())
    return found


def serve(job: EngineJob, addresses: Sequence[str]) -> Meeting:
    """Serve the job's store in this process, which becomes rank 0.

    Args:
        job: The job.
        addresses: Where the ranks are, by rank, as the engine names their hosts.

    Raises:
        RingtuneError: No port can be opened.
    """
    several_hosts = len(set(addresses)) > 1
    rendezvous = Rendezvous(secret=job.secret)
    own = Config.from_environ(job.settings).own_address or addresses[0]
    host = own if several_hosts else interfaces.loopback()
    address = rendezvous.serve_on(bind_host(host), host)
    _served[:] = [rendezvous]
    return Meeting(address, meeting_place(host, not several_hosts, [], Routes()))


def variables(job: EngineJob, rank: int, hosts: Sequence[str], meeting: Meeting) -> dict[str, str]:
    """Return the variables of a rank: ringtune's, and torchrun's for ``torch.distributed``.

    Args:
        job: The job.
        rank: The rank.
        hosts: Names of the hosts by rank; ranks of one name share memory.
        meeting: Where they meet.
    """
    here = hosts[rank]
    local_rank, local_size = hosts[:rank].count(here), hosts.count(here)
    nodes = list(dict.fromkeys(hosts))
    numbers = {"RANK": rank, "LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": local_size, "WORLD_SIZE": len(hosts),
               "GROUP_RANK": nodes.index(here), "MASTER_PORT": meeting.master[1],
               "RINGTUNE_RANK": rank, "RINGTUNE_SIZE": len(hosts), "RINGTUNE_RESTART": job.restart,
               "RINGTUNE_LOCAL_RANK": local_rank, "RINGTUNE_LOCAL_SIZE": local_size}  # fmt: skip
    host, port = meeting.store
    return {
        **job.settings,
        **{name: str(number) for name, number in numbers.items()},
        "MASTER_ADDR": meeting.master[0],
        "RINGTUNE_HOSTNAME": here,
        "RINGTUNE_STORE": f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        "RINGTUNE_JOB": job.name,
        "RINGTUNE_SECRET": job.secret,
    }


def join(job: EngineJob, own: Mapping[str, str]) -> dict[str, str]:
    """Make this process a rank, until `leave`; return the environment that it had.

    Args:
        job: The job.
        own: The rank's variables.

    Raises:
        InvalidArgument: It is one already, with an open session.
    """
    if session.state.current is not None:
        raise InvalidArgument(
            f"a session is open in this worker of {job.engine}'s: the function that opened it must call shutdown()"
        )
    before = dict(os.environ)
    _replace_environment({**without_rank(before), **own})
    if job.keeps_state and not os.environ.get(KEPT):
        os.environ[KEPT] = str(address_file.private_folder() / f"state-{job.name}")
        Path(os.environ[KEPT]).mkdir(mode=0o700, exist_ok=True)
    return before


def leave(before: Mapping[str, str]) -> None:
    """Leave the job and give the process the environment that it had; in ``except`` the other ranks get the reason."""
    try:
        of_torch = sys.modules.get("torch.distributed")
        if of_torch is not None and of_torch.is_initialized():
            of_torch.destroy_process_group()
        session.shutdown()
    finally:
        _replace_environment(before)


@contextmanager
def as_rank(job: EngineJob, own: Mapping[str, str]) -> Iterator[None]:
    """Be a rank for the body of a ``with`` statement; see `join`."""
    before = join(job, own)
    try:
        yield
    except BaseException:
        leave(before)
        raise
    leave(before)


def forget_state(job: EngineJob) -> None:
    """Remove the folder of a state that the job kept on this host, which has ended well."""
    folder = address_file.private_folder() / f"state-{job.name}"
    for part in folder.glob("*"):
        part.unlink(missing_ok=True)
    if folder.exists():
        folder.rmdir()


def _replace_environment(wanted: Mapping[str, str]) -> None:
    for name in set(os.environ) - set(wanted):
        del os.environ[name]
    os.environ.update(wanted)
