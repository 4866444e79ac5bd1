"""Placement: rank, host and job of this process, found in the variables of its launcher.

Everything here is a pure function of the environment. `ringtune.bootstrap.rendezvous` then brings the ranks together.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from ringtune.bootstrap import launcher_traces
from ringtune.bootstrap.launchers import LAUNCHERS, Task, find_task, half_a_pair
from ringtune.config import Config, parse_address
from ringtune.elastic.job_timeline import JobTimeline
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
        launcher: ``ringtune``, ``horovodrun``, a name in `ringtune.bootstrap.launchers.LAUNCHERS` (``torchrun``,
            ``openmpi``, ``slurm`` ...), ``kubernetes``, ``pmix``, or ``single``: none.
        job: Name of the job as far as the launcher gives one, else empty.
        generation: Number of the set of ranks in an elastic job; None in a job with fixed ranks.
        hosts: Number of hosts of the job as the launcher said; None if it did not.
        timeline: The place of an elastic job's set of ranks in the job's timeline; None in a job with fixed ranks.
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
    hosts: int | None = None
    timeline: JobTimeline | None = None

    @property
    def track(self) -> int:
        """This process's number in timeline and run folder: its rank, in an elastic job that of its worker."""
        return self.rank if self.timeline is None else self.timeline.ranks[self.rank]

    @property
    def several_hosts(self) -> bool:
        """Whether the launcher says that the job spans hosts; False when it does not say."""
        return (self.hosts or 1) > 1 or (self.local_size is not None and self.local_size < self.size)


_RANK_INFO = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "HOSTNAME")
LAUNCHER_VARIABLES: dict[str, tuple[str, ...]] = {
    "ringtune": tuple(f"RINGTUNE_{name}" for name in (*_RANK_INFO, "STORE", "JOB", "WORKER", "RESTART", "LAUNCHER")),
    "horovodrun": tuple(
        f"HOROVOD_{name}" for name in (*_RANK_INFO, "GLOO_RENDEZVOUS_ADDR", "GLOO_RENDEZVOUS_PORT", "ELASTIC")
    ),
    **{row.name: row.variables for row in LAUNCHERS},
    **launcher_traces.TRACES,
}
"""The variables by which each launcher tells a process its rank, and where the ranks meet."""


def detect(config: Config, environ: Mapping[str, str] | None = None) -> Placement:
    """Find this process's placement: by ringtune's own variables, else by a launcher's, else it is a job of one rank.

    Args:
        config: Settings already read (``RINGTUNE_RANK`` and so on).
        environ: Environment to look in; default: the process's.

    Raises:
        ConfigError: Rank without size or the reverse, numbers that contradict each other, or a process that something
            started beside others without telling it its rank.
    """
    environ = os.environ if environ is None else environ
    host = config.hostname or socket.gethostname()
    found = _own_task(config, environ) or find_task(environ)
    if found is None:
        launcher_traces.refuse(environ, host)
        found = Task("single", rank=0, size=1, local_rank=0, local_size=1)
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
        hosts=found.nodes,
    )
    _check(placement)
    return placement


def is_placed(config: Config, environ: Mapping[str, str]) -> bool:
    """Whether a launcher has given this process its rank.

    Raises:
        ConfigError: It has given half of it.
    """
    return (_own_task(config, environ) or find_task(environ)) is not None


def _own_task(config: Config, environ: Mapping[str, str]) -> Task | None:
    """Return what ringtune's or Horovod's variables say; a rank whose launcher gives no size completes a size alone."""
    if config.rank is None and config.size is None:
        return None
    own = environ.get("RINGTUNE_RANK") or environ.get("RINGTUNE_SIZE")
    prefix, launcher = ("RINGTUNE_", "ringtune") if own else ("HOROVOD_", "horovodrun")
    if config.rank is None and config.size is not None and (alone := launcher_traces.lone_rank(environ)) is not None:
        name, rank = alone
        if name == "JOB_COMPLETION_INDEX":
            return Task("kubernetes", rank, config.size, config.local_rank or 0, config.local_size or 1)
        return Task("pmix", rank, config.size, config.local_rank, config.local_size, environ.get("PMIX_NAMESPACE", ""))
    if config.rank is None or config.size is None:
        there, missing = ("SIZE", "RANK") if config.rank is None else ("RANK", "SIZE")
        raise half_a_pair(prefix + there, prefix + missing)
    return Task(launcher, config.rank, config.size, config.local_rank, config.local_size)


def _master(environ: Mapping[str, str]) -> tuple[str, int] | None:
    """PyTorch's way to name the host of rank 0; under torchrun the port belongs to torch's own store."""
    address, port = environ.get("MASTER_ADDR", "").strip(), environ.get("MASTER_PORT", "").strip()
    if not address or not port or environ.get("TORCHELASTIC_RUN_ID"):
        return None
    return parse_address("MASTER_ADDR:MASTER_PORT", f"[{address}]:{port}" if ":" in address else f"{address}:{port}")


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
