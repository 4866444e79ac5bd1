"""What one session of tests has to itself on this machine, and what it must not leave there.

A session is one call of pytest, with all its workers. Every process that it starts inherits its name, so what has lost
its parent is found too, and what belongs to another session is nobody's business here.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

_VARIABLE = "PYTEST_SESSION_NAME"
SESSION = os.environ.setdefault(_VARIABLE, secrets.token_hex(8))

# Workers of pytest-xdist are numbered from gw0 on; without it there is one.
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))

# How the names of network namespaces and links of this session begin; a link's may have 15 characters.
NETWORK_TAG = f"rt{SESSION[:4]}"

ROOT = Path(__file__).parents[1]
_SHM = Path("/dev/shm")
_NETWORK = (Path("/run/netns"), Path("/sys/class/net"))
# Folders of tools, which come and go with any call of them; what begins with a dot is a tool's too.
_TOOLS = {"__pycache__", "build", "dist"}
# Suffixes of what somebody may be writing in an editor meanwhile.
_WRITTEN = {".py", ".pyi", ".cc", ".h", ".md", ".toml", ".txt"}


@dataclass
class Leftovers:
    """Compares this machine with what it was when the object was made."""

    tree: set[str] = field(default_factory=lambda: set(_tree(ROOT)))
    memory: set[str] = field(default_factory=lambda: set(_shared_memory()))

    def found(self) -> list[str]:
        """Describe every process, network namespace, name in shared memory and file that is there and should not."""
        return [
            *(f"process {_describe(process)}" for process in _processes()),
            *(f"{folder}/{name}" for folder in _NETWORK for name in _names(folder) if name.startswith(NETWORK_TAG)),
            *(f"{_SHM}/{name}" for name in sorted(set(_shared_memory()) - self.memory)),
            *(str(ROOT / name) for name in sorted(set(_tree(ROOT)) - self.tree)),
        ]


def _processes() -> Iterator[psutil.Process]:
    """Living processes of this session but this one."""
    children = set(psutil.Process().children(recursive=True))
    for process in psutil.process_iter():
        try:
            ours = process in children or process.environ().get(_VARIABLE) == SESSION
            if not ours or process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            # Python's own helper of multiprocessing lives as long as this interpreter.
            if "resource_tracker" not in " ".join(process.cmdline()):
                yield process
        except psutil.Error:  # it has ended meanwhile, or is another user's
            continue


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid} ({' '.join(process.cmdline())[:200]})"
    except psutil.NoSuchProcess:
        return str(process.pid)


def _names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder)) if folder.is_dir() else []


def _shared_memory() -> Iterator[str]:
    """This user's names in /dev/shm; a browser's own go with its processes, which are looked for above."""
    for name in _names(_SHM):
        try:
            if "chromium" not in name and os.stat(_SHM / name).st_uid == os.getuid():
                yield name
        except FileNotFoundError:  # another session's, gone since it was listed
            continue


def _tree(folder: Path) -> Iterator[str]:
    """Paths below the working tree, a folder that holds nothing of ours among them."""
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _TOOLS and not name.startswith(".")]
        relative = Path(place).relative_to(ROOT)
        yield from (str(relative / name) for name in folders)
        yield from (str(relative / name) for name in files if not _may_be_written(name))


def _may_be_written(name: str) -> bool:
    return name.startswith(".") or Path(name).suffix in _WRITTEN
