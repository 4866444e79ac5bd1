"""Which process is the rank: children inherit the variables that name a rank, but they are not that rank.

A process that opens a session leaves a claim in its environment: its rank, and a checksum of each launcher's variables.
A process that finds another one's claim descends from it. Variables with the checksum of the claim were inherited and
are left out; others come from a launcher in between (`ringtune run`, torchrun, mpirun, a script that sets ranks) and
count. A process without a rank of its own is a job of one, as scripts need it: a spawned DataLoader worker imports the
script, ``init()`` included, and an evaluation in a sub-process calls ``init()`` as the training does.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from ringtune import native
from ringtune.bootstrap.address_file import start_time
from ringtune.bootstrap.placement import LAUNCHER_VARIABLES, Placement

VARIABLE = "_RINGTUNE_RANK_PROCESS"
"""Variable that holds the claim. It does not begin with ``RINGTUNE_``, since it is no setting."""

_TORCH = "torchrun"
# Outputs of a job belong to its rank too; each of these variables has a checksum of its own.
_OUTPUTS = tuple(
    f"{prefix}_{name}"
    for name in ("RUN_DIR", "TIMELINE", "METRICS_PORT", "AUTOTUNE", "AUTOTUNE_LOG", "AUTOTUNE_STUDY")
    for prefix in ("RINGTUNE", "HOROVOD")
)
_GROUPS: dict[str, tuple[str, ...]] = {**LAUNCHER_VARIABLES, **{name: (name,) for name in _OUTPUTS}}
_TELL_TIMEOUT_NS = 2_000_000_000


@dataclass(frozen=True)
class Claim:
    """What a rank tells the processes that it starts.

    Attributes:
        pid: Its process.
        started: When that was started, since process ids are used again.
        rank: Its rank.
        size: Ranks of its job.
        store: Address of the job's store; None for a job of one.
        secret: By which the store knows the job's processes.
        job: Key of the job in the store.
        sums: Checksum of each group of variables that was set.
    """

    pid: int
    started: str
    rank: int
    size: int
    store: tuple[str, int] | None
    secret: str
    job: str
    sums: dict[str, int]

    def is_own(self) -> bool:
        """Return whether this process made it (exec keeps a process what it is)."""
        return self.pid == os.getpid() and self.started == start_time(self.pid)


def publish(placement: Placement, address: tuple[str, int], job: str, secret: str) -> None:
    """Put this process's claim into the environment that its children inherit."""
    pid = os.getpid()
    store = address if placement.size > 1 else None
    claim = Claim(pid, start_time(pid), placement.rank, placement.size, store, secret, job, _sums(os.environ))
    os.environ[VARIABLE] = json.dumps(asdict(claim), separators=(",", ":"))


def inherits_outputs(environ: Mapping[str, str]) -> bool:
    """Return whether a rank started this process, and nothing in between has named other outputs than that rank's."""
    claim = _read(environ)
    if claim is None or claim.is_own():
        return False
    return all(claim.sums.get(name) == _sum((name,), environ) for name in _OUTPUTS)


def own_environment(environ: Mapping[str, str], *, tell: bool = True) -> dict[str, str]:
    """Return the environment without what was inherited from a rank; without a rank above, all of it.

    Args:
        environ: Environment of this process.
        tell: Warn, once a job, of a process that has no rank then.
    """
    claim = _read(environ)
    if claim is None or claim.is_own():
        return dict(environ)
    inherited = {
        name for group, names in _GROUPS.items() if _is_inherited(claim, group, names, environ) for name in names
    }
    own = {name: value for name, value in environ.items() if name not in inherited}
    if tell and claim.size > 1 and not any(name in own for names in LAUNCHER_VARIABLES.values() for name in names):
        _tell(claim)
    return own


def _is_inherited(claim: Claim, group: str, names: tuple[str, ...], environ: Mapping[str, str]) -> bool:
    if claim.sums.get(group) == _sum(names, environ):
        return True
    # Scripts export their own rank for torch.distributed after init(): these variables are still the rank's.
    there = (environ.get("RANK"), environ.get("WORLD_SIZE"))
    exported = there in ((str(claim.rank), str(claim.size)), (None, None))
    return exported and group == _TORCH and "TORCHELASTIC_RUN_ID" not in environ


def _sums(environ: Mapping[str, str]) -> dict[str, int]:
    return {group: found for group, names in _GROUPS.items() if (found := _sum(names, environ)) is not None}


def _sum(names: tuple[str, ...], environ: Mapping[str, str]) -> int | None:
    """Return a checksum of variables; None when none is set."""
    values = [f"{name}={environ[name]}" for name in names if name in environ]
    return zlib.crc32("\n".join(values).encode("utf-8", "surrogateescape")) if values else None


def _read(environ: Mapping[str, str]) -> Claim | None:
    try:
        found = json.loads(environ.get(VARIABLE, ""))
        store = found.pop("store")
        return Claim(**found, store=(str(store[0]), int(store[1])) if store else None)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError):
        return None


def _tell(claim: Claim) -> None:
    """Warn once a job that this process is no rank: there may be many workers, and new ones in every epoch."""
    assert claim.store is not None
    try:
        with native.translated():
            store = native.load().StoreClient(*claim.store, claim.secret, _TELL_TIMEOUT_NS, "child", claim.rank)
            count = store.add(f"{claim.job}/no_rank", 1)
    except native.error_class():
        count = 1  # the job has ended, and its counter with it
    if count == 1:
        print(
            f"ringtune warning: init() in process {os.getpid()}, which rank {claim.rank} started (a DataLoader worker, "
            f"a sub-process): it is none of the job's {claim.size} ranks and becomes a job of its own, rank 0 of 1. "
            f"To give it the rank's number, remove {VARIABLE} from its environment. This is said once a job.",
            file=sys.stderr,
            flush=True,
        )
