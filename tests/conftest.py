"""For all tests: tools that must be there, and the promise that nothing is left behind."""

from __future__ import annotations

import importlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pytest

IN_CI = os.environ.get("CI", "").lower() in ("1", "true")

# Programs of which any one will do, and what brings them.
TOOLS: dict[str, tuple[tuple[str, ...], str]] = {
    "browser": (("chromium", "chromium-browser", "google-chrome"), "Chromium (Debian: chromium)"),
    "compiler": (("c++", "g++", "clang++"), "a C++ compiler (Debian: g++)"),
    "mpi": (("mpirun",), "mpirun (Debian: openmpi-bin)"),
    "ip": (("ip",), "ip (Debian: iproute2)"),
    "ssh": (("ssh",), "ssh (Debian: openssh-client)"),
}

_SHM = Path("/dev/shm")


def find_tool(name: str) -> str:
    """Return the path of a tool; without it the test is skipped, and with CI=true it fails.

    Args:
        name: A key of `TOOLS`.
    """
    programs, what = TOOLS[name]
    for program in programs:
        if path := shutil.which(program):
            return path
    missing(f"needs {what}")


def missing(message: str) -> NoReturn:
    """Skip the test for want of something on this machine; with CI=true that is a failure."""
    if IN_CI:
        pytest.fail(f"{message}; with CI=true a missing tool is a failure")
    pytest.skip(message, allow_module_level=True)


def needs(module: str) -> Any:
    """Import a package; without it the test or file is skipped, and with CI=true it fails."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing(f"needs {module}: {error}")


@pytest.fixture(scope="session")
def require_tool() -> Callable[[str], str]:
    """`find_tool`, for tests: ``path = require_tool("browser")``."""
    return find_tool


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """After all tests: no child process of ours is alive and no new shared memory stands in /dev/shm."""
    before = _shared_memory()
    yield
    deadline = time.monotonic() + 60
    while (left := _leftovers(before)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left, "the tests left behind: " + "; ".join(left)


def _leftovers(before: set[str]) -> list[str]:
    children = [f"process {_describe(child)}" for child in psutil.Process().children(recursive=True) if _alive(child)]
    return children + [f"{_SHM}/{name}" for name in sorted(_shared_memory() - before)]


def _alive(process: psutil.Process) -> bool:
    try:
        # Python's own helper of multiprocessing lives as long as this interpreter.
        return process.status() != psutil.STATUS_ZOMBIE and "resource_tracker" not in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid} ({' '.join(process.cmdline())[:200]})"
    except psutil.NoSuchProcess:
        return str(process.pid)


def _shared_memory() -> set[str]:
    """This user's names in /dev/shm; a browser's own go with its processes, which are looked for above."""
    if not _SHM.is_dir():
        return set()
    return {
        entry.name for entry in os.scandir(_SHM) if entry.stat().st_uid == os.getuid() and "chromium" not in entry.name
    }
