"""The file through which ranks of one host find their store when the launcher gives them only rank numbers.

It lies in a folder of the temporary directory that only this user can enter, named after the job, and is written
in one piece. Rank 0 removes it when all ranks have met.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ringtune.bootstrap.deadline import Deadline
from ringtune.bootstrap.placement import Placement
from ringtune.errors import RingtuneError, Timeout

_STARTERS = ("mpirun", "mpiexec", "orterun", "prterun", "orted", "prted", "hydra_pmi_proxy", "slurmstepd", "horovodrun")


@dataclass(frozen=True)
class AddressFile:
    """Where rank 0 of a job publishes its store's address to ranks of the same host and user."""

    path: Path

    @classmethod
    def for_job(cls, placement: Placement, environ: Mapping[str, str]) -> AddressFile:
        """Return the job's file.

        The name is made of what all ranks share and no other job does: the launcher's name for the job, the
        address of Horovod's rendezvous, and the process that started the ranks with its start time.
        """
        horovod = f"{environ.get('HOROVOD_GLOO_RENDEZVOUS_ADDR', '')}:{environ.get('HOROVOD_GLOO_RENDEZVOUS_PORT', '')}"
        job = "|".join(
            [placement.launcher, str(placement.size), placement.job, horovod, starter() if horovod == ":" else ""]
        )
        name = hashlib.sha256(job.encode()).hexdigest()[:24]
        return cls(private_folder() / f"store-{name}.json")

    def publish(self, host: str, port: int) -> None:
        """Write the address so that a reader sees all of it or nothing."""
        part = self.path.with_suffix(f".{os.getpid()}.part")
        text = json.dumps({"host": host, "port": port, "pid": os.getpid(), "started": start_time(os.getpid())})
        part.write_text(text, encoding="utf-8")
        os.replace(part, self.path)

    def read(self) -> tuple[str, int] | None:
        """Return the published address, or None while no living process has published one."""
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            alive = start_time(int(found["pid"])) == found["started"]
            return (str(found["host"]), int(found["port"])) if alive else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def wait(self, rank: int, deadline: Deadline) -> tuple[str, int]:
        """Wait for the address.

        Raises:
            Timeout: Rank 0 published none before the deadline.
        """
        while True:
            address = self.read()
            if address is not None:
                return address
            if deadline.passed:
                raise Timeout(
                    f"rank {rank}: rank 0 did not publish the address of its store in {self.path}: did it start and "
                    "call init() on this host? Otherwise set RINGTUNE_STORE=host:port on all ranks"
                )
            deadline.pause(0.02)

    def remove(self) -> None:
        """Delete the file if this process wrote it."""
        try:
            if json.loads(self.path.read_text(encoding="utf-8")).get("pid") == os.getpid():
                self.path.unlink(missing_ok=True)
        except (OSError, ValueError):
            return


def private_folder() -> Path:
    """Return a folder of the temporary directory that belongs to this user alone (mode 0700).

    Raises:
        RingtuneError: Another user made it, or other users may enter it.
    """
    folder = Path(tempfile.gettempdir()) / f"ringtune-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise RingtuneError(f"{folder}: must be a folder of this user with mode 0700; remove it or set TMPDIR")
    return folder


def starter() -> str:
    """Return pid and start time of the process that started all ranks of this host.

    That is the nearest ancestor which is a known launcher (a shell may stand between), else the parent.
    """
    pid = os.getppid()
    walk = pid
    while walk > 1:
        name, parent = _name_and_parent(walk)
        if name in _STARTERS:
            pid = walk
            break
        walk = parent
    return f"{pid}:{start_time(pid)}"


def start_time(pid: int) -> str:
    """Return when a process was started, in the kernel's ticks; empty if there is no such process."""
    fields = _stat_fields(pid)
    return fields[19] if len(fields) > 19 else ""


def _name_and_parent(pid: int) -> tuple[str, int]:
    try:
        name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        return "", 0
    fields = _stat_fields(pid)
    return name, int(fields[1]) if len(fields) > 1 else 0


def _stat_fields(pid: int) -> list[str]:
    """Return the fields of ``/proc/<pid>/stat`` after the name in parentheses, which may hold anything."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return []
    return text.rpartition(")")[2].split()
