"""A SLURM cluster of two nodes on this machine: the real daemons, each node in namespaces of its own."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.conftest import missing
from tests.namespaces import machines

HANG_S = 240.0  # a bound on hangs, not a measure
NODES = ("n1", "n2")
CPUS = 4
_CONF = """
ClusterName=ringtune
SlurmctldHost=n1({first})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout=5
KillWait=2
MessageTimeout=30
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
PluginDir=/usr/lib/x86_64-linux-gnu/slurm-wlm
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@dataclass
class Cluster:
    """A running cluster.

    Attributes:
        folder: What the daemons write, and the folder of the jobs.
        daemons: The first process of each node, and munged's, by name.
    """

    folder: Path
    spaces: Mapping[str, str] = field(default_factory=dict)
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def run(
        self, *words: str, environ: Mapping[str, str] | None = None, node: str = "n1"
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a node, as from a shell there, and wait for its end."""
        return subprocess.run(
            self.on(node, words),
            env={**self.environ(), **(environ or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )

    def on(self, node: str, words: Sequence[str]) -> list[str]:
        """Return a command that runs another one on a node."""
        return ["nsenter", "--target", str(self._init(node)), "--net", "--uts", "--mount", "--pid",
                "env", "-C", str(self.folder), *words]  # fmt: skip

    def script(self, name: str, text: str) -> Path:
        """Write a program or batch script."""
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
        return path

    def state(self, job: str) -> str:
        """Return the state of a job: RUNNING, COMPLETED, ..."""
        shown = self.run("scontrol", "--oneliner", "show", "job", job).stdout
        return shown.partition("JobState=")[2].partition(" ")[0]

    def wait_for(self, what: str, check: Callable[[], object]) -> None:
        """Wait until a check is true; `what` says what is wrong if it never is."""
        deadline = time.monotonic() + HANG_S
        while not check():
            assert time.monotonic() < deadline, f"{what}\n{self.logs()}"
            time.sleep(0.1)

    def wait_until(self, what: str, words: Sequence[str], shows: str, node: str = "n1") -> None:
        """Wait until the output of a command on a node has these words."""
        self.wait_for(what, lambda: shows in self.run(*words, node=node).stdout)

    def logs(self) -> str:
        """Return the ends of the daemons' logs."""
        return "\n".join(f"-- {path.name}\n{path.read_text()[-1500:]}" for path in sorted(self.folder.glob("*.log")))

    def kill_node(self, node: str) -> None:
        """End a node with all that runs there, as a power failure does."""
        self.daemons[node].kill()
        self.daemons[node].wait()

    def start_node(self, node: str) -> None:
        """Start a node: its slurmd, and on the first one slurmctld too."""
        daemon = f"slurmd -D -N {node}"
        start = f"""
            hostname {node}
            mount --bind {self.folder}/hosts /etc/hosts
            {"slurmctld -D &" if node == "n1" else ""}
            {daemon} &
            wait
        """
        # The node's processes end with its first one, whatever becomes of this session.
        self.daemons[node] = subprocess.Popen(
            ["nsenter", f"--net=/run/netns/{self.spaces[node]}", "unshare", "--uts", "--mount", "--pid", "--mount-proc",
             "--fork", "--kill-child", "sh", "-c", start],
            cwd=self.folder,
            env=self.environ(),
            stdin=subprocess.DEVNULL,
            stdout=(self.folder / f"{node}.out").open("wb"),
            stderr=subprocess.STDOUT,
        )  # fmt: skip

    def _init(self, node: str) -> int:
        """Return the first process inside a node's namespaces."""
        children = Path(f"/proc/{self.daemons[node].pid}/task/{self.daemons[node].pid}/children")
        deadline = time.monotonic() + HANG_S
        while not (found := children.read_text().split()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return int(found[0])

    def environ(self) -> dict[str, str]:
        """Return the environment of a shell on a node."""
        own = ("SLURM_", "RINGTUNE_", "HOROVOD_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
        tools = f"{Path(sys.executable).parent}:{kept['PATH']}:/usr/sbin:/sbin"
        return {**kept, "PATH": tools, "SLURM_CONF": f"{self.folder}/slurm.conf", "HOME": str(self.folder)}


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Start munge, one controller and two nodes; end them all, with whatever they have started.

    Skips, and in CI fails, where SLURM is not installed or namespaces are forbidden.

    Args:
        folder: An empty folder.
    """
    for tool in ("munged", "slurmctld", "slurmd", "srun", "sbatch", "nsenter", "unshare"):
        if shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None:
            missing(f"{tool} is not installed (Debian: slurm-wlm)")
    with machines(len(NODES)) as spaces:
        addresses = dict(zip(NODES, spaces, strict=True))
        made = Cluster(folder, dict(zip(NODES, spaces.values(), strict=True)))
        for name in ("munge", "state", *(f"spool-{node}" for node in NODES)):
            (folder / name).mkdir()
        nodes = "\n".join(
            f"NodeName={node} NodeAddr={address} CPUs={CPUS} RealMemory=1000" for node, address in addresses.items()
        )
        conf = _CONF.format(folder=folder, first=addresses["n1"], nodes=nodes)
        (folder / "slurm.conf").write_text(conf, encoding="utf-8")
        names = "".join(f"{address} {node}\n" for node, address in addresses.items())
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n{names}", encoding="utf-8")
        try:
            _start_munge(made)
            for node in NODES:
                made.start_node(node)
            made.wait_until("no node is there", ["sinfo", "--noheader", "-o", "%D %t"], f"{len(NODES)} idle")
            yield made
        finally:
            for process in made.daemons.values():
                process.send_signal(signal.SIGKILL)  # of the node's first process: the kernel ends all others in it
                process.wait()


def _start_munge(made: Cluster) -> None:
    folder = made.folder / "munge"
    folder.chmod(0o755)
    (folder / "key").write_bytes(secrets.token_bytes(128))
    (folder / "key").chmod(0o400)
    made.daemons["munge"] = subprocess.Popen(
        ["/usr/sbin/munged", "--foreground", "--force", f"--socket={folder}/socket", f"--key-file={folder}/key",
         f"--pid-file={folder}/pid", f"--log-file={folder}/log", f"--seed-file={folder}/seed"],
        stdin=subprocess.DEVNULL,
        stdout=(folder / "out").open("wb"),
        stderr=subprocess.STDOUT,
    )  # fmt: skip
    deadline = time.monotonic() + HANG_S
    while not (folder / "socket").exists():
        assert made.daemons["munge"].poll() is None and time.monotonic() < deadline, (folder / "out").read_text()
        time.sleep(0.02)
