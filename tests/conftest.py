"""For all tests: tools that must be there, and the promise that nothing is left behind."""

from __future__ import annotations

import glob
import importlib
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.leftovers import Leftovers

# Where pytest loads readline, its workers get them, as if there were a screen: what is printed depends on them.
for _name in ("COLUMNS", "LINES"):
    os.environ.pop(_name, None)

IN_CI = os.environ.get("CI", "").lower() in ("1", "true")

# Programs of which any one will do, and what brings them.
TOOLS: dict[str, tuple[tuple[str, ...], str]] = {
    "browser": (("chromium", "chromium-browser", "google-chrome"), "Chromium (Debian: chromium)"),
    "compiler": (("c++", "g++", "clang++"), "a C++ compiler (Debian: g++)"),
    "mpi": (("mpirun",), "mpirun (Debian: openmpi-bin)"),
    "ip": (("ip",), "ip (Debian: iproute2)"),
    "ssh": (("ssh",), "ssh (Debian: openssh-client)"),
    "postgresql": (("pg_ctl",), "pg_ctl (Debian: postgresql)"),
}

# Where Debian keeps what is not on the path, since several versions may be installed.
_MORE_FOLDERS = sorted(glob.glob("/usr/lib/postgresql/*/bin"))

# What Python itself ignores.
_IGNORED = {signal.SIGPIPE, signal.SIGXFSZ}

# The order of rooms: first those whose files take long, last those whose files take next to nothing, so that no worker
# is left with a long one when the others have run dry.
_ROOMS = ("benchmarks", "engines", "frameworks", "jobs", "launch", "dashboard", "tuner", "timeline", "core", "house")

_BEFORE = pytest.StashKey[Leftovers]()
_LEFT = pytest.StashKey[list[str]]()


def find_tool(name: str) -> str:
    """Return the path of a tool; without it the test is skipped, and with CI=true it fails.

    Args:
        name: A key of `TOOLS`.
    """
    programs, what = TOOLS[name]
    folders = os.pathsep.join([os.environ.get("PATH", os.defpath), *_MORE_FOLDERS])
    for program in programs:
        if path := shutil.which(program, path=folders):
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


def pytest_configure() -> None:
    """Give the tests the signals that a terminal gives.

    A shell without job control starts what it puts into the background with SIGINT ignored, nohup does so with SIGHUP;
    every process of a test would inherit that, and ringtune heeds it.
    """
    for number in signal.valid_signals() - _IGNORED:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    items.sort(key=lambda item: _ROOMS.index(item.path.relative_to(here).parts[0]))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With whole files for workers: those that watch pages never beside those that change the machine's network."""
    if config.getoption("dist") != "loadfile":
        return None
    from tests.scheduling import Scheduling

    return Scheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Look at what is there before any test; workers leave that to the process that started them."""
    if not hasattr(session.config, "workerinput"):
        session.config.stash[_BEFORE] = Leftovers()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """After all tests, and all workers: nothing of this session is left on the machine, or the session fails."""
    if _BEFORE not in session.config.stash:
        return
    deadline = time.monotonic() + 60
    while (left := session.config.stash[_BEFORE].found()) and time.monotonic() < deadline:
        time.sleep(0.1)
    session.config.stash[_LEFT] = left
    if left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if left := config.stash.get(_LEFT, []):
        terminalreporter.section("left behind by the tests", red=True)
        for one in left:
            terminalreporter.line(one)
