"""Peers in environments of their own, as `make bench-peers` installs them, and how their jobs are started.

An environment is a folder ``build/peers/<name>`` with a Python, NumPy, mpi4py and one MPI as a wheel. Its ranks run
`harness/race`, which they import through a folder that holds nothing but a link to these benchmarks.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ringtune.benchmarks.harness.jobs import thread_variables
from ringtune.benchmarks.harness.racejob import JobPlan
from ringtune.benchmarks.harness.scratch import scratch_folder
from ringtune.benchmarks.netlab.network import Network

SUBJECT = "ringtune"
LIMIT = "copy-limit"
_RACE = "ringtune.benchmarks.harness.race"
_BENCHMARKS = Path(__file__).resolve().parents[1]
# Variables that a surrounding launcher or environment leaves behind and that another MPI would believe.
_FOREIGN = ("OMPI_", "PMIX_", "PRTE_", "PMI_", "MPI_", "I_MPI_", "HYDRA_", "RINGTUNE_", "HOROVOD_")


@dataclass(frozen=True)
class Setting:
    """What all jobs of a race have in common.

    Args:
        ranks: ranks of each job.
        hosts: as for `ringtune run -H`; None for this host.
        threads: compute threads per rank.
        link: folder through which the ranks of other environments import these benchmarks.
        network: hosts that the ranks of a training run on; None for this one.
        device: where tensors lie, ``cpu`` or ``cuda``.
    """

    ranks: int
    hosts: str | None
    threads: int
    link: Path
    network: Network | None = None
    device: str = "cpu"


Contenders = Mapping[str, str]
Start = Callable[[Setting, Contenders], JobPlan]


@dataclass(frozen=True)
class MpiPeer:
    """An MPI of `build/peers`.

    Args:
        name: of the peer.
        environment: name of the folder.
        launcher: program in its ``bin`` and options before ``-n``.
        variables: environment variables that make it the tuned variant.
        worker: module of `harness/race` that its ranks run.
    """

    name: str
    environment: str
    launcher: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)
    worker: str = "mpi"

    def absent(self) -> str | None:
        """Returns why it cannot run here, None when it can."""
        folder = peers_folder() / self.environment
        if not (folder / "complete").exists():
            return f"there is no {folder}; 'make bench-peers' installs it"
        return None

    def start(self, setting: Setting, contenders: Contenders) -> JobPlan:
        """Returns how to start its ranks."""
        folder = peers_folder() / self.environment / "bin"

        def commands(join: str) -> list[list[str]]:
            launch = [str(folder / self.launcher[0]), *self.launcher[1:], "-n", str(setting.ranks)]
            return [[*launch, str(folder / "python"), "-m", f"{_RACE}.{self.worker}", join]]

        environ = {**bare_environ(setting), **self.variables}
        environ["PATH"] = f"{folder}{os.pathsep}{environ.get('PATH', os.defpath)}"
        if os.geteuid() == 0:
            environ |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return JobPlan(self.name, contenders, setting.ranks, commands, environ)


def peers_folder() -> Path:
    """Returns where the environments of peers lie: in the checkout, or else under the current directory."""
    checkout = _BENCHMARKS.parent / "build" / "peers"
    return checkout if checkout.is_dir() else Path("build/peers").resolve()


def start_torch(library: str, setting: Setting, contenders: Contenders) -> JobPlan:
    """Returns how to start a job of `comm/micro_worker.py` through `ringtune run`."""
    hosts = ["-H", setting.hosts] if setting.hosts else []

    def commands(join: str) -> list[list[str]]:
        run = [sys.executable, "-m", "ringtune.cli", "run", "-np", str(setting.ranks), *hosts, "--no-run-dir"]
        worker = [sys.executable, "-m", "ringtune.benchmarks.comm.micro_worker", join, str(setting.threads), library]
        worker.append(setting.device)
        return [[*run, *worker]]

    environ = {**os.environ, **thread_variables(setting.threads)}
    host = os.uname().nodename if setting.hosts else "127.0.0.1"
    return JobPlan(library, contenders, setting.ranks, commands, environ, host)


def start_limit(setting: Setting) -> JobPlan:
    """Returns how to start the ranks that only copy."""

    def commands(join: str) -> list[list[str]]:
        copying = [sys.executable, "-m", f"{_RACE}.copying", join]
        return [[*copying, str(rank), str(setting.ranks)] for rank in range(setting.ranks)]

    return JobPlan(LIMIT, {LIMIT: LIMIT}, setting.ranks, commands, bare_environ(setting))


def bare_environ(setting: Setting) -> dict[str, str]:
    """Returns the environment of ranks that import `harness/race` and nothing else of ringtune."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    return {**kept, **thread_variables(setting.threads), "PYTHONPATH": str(setting.link)}


@contextmanager
def linked_benchmarks() -> Iterator[Path]:
    """Holds a folder in which ``ringtune.benchmarks`` is importable and nothing else of ringtune."""
    with scratch_folder() as folder:
        package = folder / "ringtune"
        package.mkdir()
        (package / "benchmarks").symlink_to(_BENCHMARKS)
        yield folder


def gloo_absent() -> str | None:
    """Returns why torch's gloo cannot run here, None when it can."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    import torch.distributed

    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        return "this build of torch has no gloo"
    return None
