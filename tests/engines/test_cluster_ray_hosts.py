"""`ringtune.ray` on two nodes that only a network joins, as two machines are: Ray's daemons in namespaces."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines import cases
from tests.namespaces import machines

pytest.importorskip("ray", reason="ray is not installed; `make test-engines` makes an environment")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

HANG_S = 300.0  # a bound on hangs, not a measure
PORT = 6379
# A node gives up where its agents have not chosen their ports within 15 s: these are given.
AGENTS = ("--dashboard-agent-grpc-port=6381", "--dashboard-agent-listen-port=6382", "--metrics-export-port=6383",
          "--runtime-env-agent-port=6384")  # fmt: skip
ROOT = Path(__file__).parents[2]
DRIVER = """
import json, sys
import ray
from ringtune.ray import RayExecutor
from tests.engines import cases

address, sizes, name, arguments, variables = json.loads(sys.argv[1])
ray.cloudpickle.register_pickle_by_value(cases)
ray.init(address, log_to_driver=False, logging_level="ERROR")
settings = RayExecutor.create_settings(timeout_s=240, placement_group_timeout_s=240)
executor = RayExecutor(settings, **sizes)
executor.start(extra_env_vars=variables)
try:
    found = executor.run(lambda: (getattr(cases, name)(*arguments), __import__("socket").gethostname()))
except Exception as error:
    found = f"{type(error).__name__}: {error}"
executor.shutdown()
print(json.dumps(found))
"""

Drive = Callable[..., Any]


class Host:
    """A machine of one network: its first process runs a command, and its end ends all others there.

    Args:
        name: The host's name.
        space: Its network namespace.
        folder: Has ``hosts``, the names of all, and ``own``, which is another folder on each; what the command says
            goes there.
        command: Words of the command.
        environ: Its environment.
    """

    def __init__(self, name: str, space: str, folder: Path, command: list[str], environ: dict[str, str]) -> None:
        self._folder, self._environ = folder, environ
        (folder / name).mkdir()
        mounts = f"mount --bind {folder}/hosts /etc/hosts; mount --bind {folder}/{name} {folder}/own"
        # Ray gives a node 30 s to start, in which one may not have started where others fill the machine.
        before = f'hostname {name}; {mounts}; for try in 1 2 3; do "$@"; done'
        self._log = folder / f"{name}.log"
        with self._log.open("wb") as log:
            self._first = subprocess.Popen(
                ["nsenter", f"--net=/run/netns/{space}", "unshare", "--uts", "--mount", "--pid", "--mount-proc",
                 "--fork", "--kill-child", "sh", "-c", before, "sh", *command],
                env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command as from a shell of the host, and wait for its end."""
        [inside] = Path(f"/proc/{self._first.pid}/task/{self._first.pid}/children").read_text().split()
        return subprocess.run(
            ["nsenter", "--target", inside, "--net", "--uts", "--mount", "--pid", "env", "-C", str(ROOT), *words],
            env=self._environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=HANG_S, check=False,
        )  # fmt: skip

    def said(self) -> str:
        """Return what the command has said."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def running(self) -> bool:
        """Return whether its first process runs."""
        return self._first.poll() is None

    def end(self) -> None:
        """Turn it off."""
        self._first.kill()
        self._first.wait()


@pytest.fixture(scope="module")
def drive() -> Iterator[Drive]:
    """Return a function that runs one of `cases` on ranks of both hosts, from a driver on the first."""
    own = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_memory_monitor_refresh_ms": "0", "RAY_worker_niceness": "0"}
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    environ = {**os.environ, **own, **token}
    # The names of Ray's sockets may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as name, machines(2) as spaces:
        folder, hosts = Path(name), list[Host]()
        names = "".join(f"{address} h{number}\n" for number, address in enumerate(spaces))
        (folder / "own").mkdir()
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n{names}", encoding="utf-8")
        head = f"{next(iter(spaces))}:{PORT}"
        try:
            for number, (address, space) in enumerate(spaces.items()):
                command = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--num-cpus=1",
                           f"--node-ip-address={address}", "--object-store-memory=100000000", *AGENTS]  # fmt: skip
                first = ["--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={folder}/own"]
                command += [f"--address={head}"] if number else first
                hosts.append(Host(f"h{number}", space, folder, command, environ))
                _await(hosts[-1])

            def run(function: str, *arguments: Any, variables: dict[str, str] | None = None, **sizes: int) -> Any:
                given = json.dumps([head, sizes, function, arguments, variables or {}])
                done = hosts[0].run(sys.executable, "-c", DRIVER, given)
                assert done.returncode == 0, done.stderr + "".join(host.said() for host in hosts)
                return json.loads(done.stdout.splitlines()[-1])

            yield run
        finally:
            for host in hosts:
                host.end()


def _await(host: Host) -> None:
    """Wait until a node of Ray's has started."""
    deadline = time.monotonic() + HANG_S
    while "Ray runtime started" not in host.said():
        assert host.running() and time.monotonic() < deadline, host.said()
        time.sleep(0.1)


def test_training_reaches_the_loss_of_one_process(drive: Drive, tmp_path: Path, alone: float) -> None:
    trace = tmp_path / "trace.json"
    variables = {"RINGTUNE_TIMELINE": str(trace), "RINGTUNE_RUN_DIR": str(tmp_path / "run")}
    found = drive("train", num_hosts=2, num_workers_per_host=1, variables=variables)
    assert [(rank["rank"], rank["local_size"]) for rank, _ in found] == [(0, 1), (1, 1)]
    hosts = [host for _, host in found]  # Ray says which comes first
    assert sorted(hosts) == ["h0", "h1"]
    assert [rank["loss"] for rank, _ in found] == pytest.approx([alone] * 2, rel=1e-9)
    record = json.loads((tmp_path / "run/run.json").read_text(encoding="utf-8"))
    assert record["hosts"] == hosts
    cases.merged(trace)
    cases.seen_in_the_dashboard(tmp_path / "run")


def test_a_killed_rank_is_named_on_the_other_host(
    drive: Drive, tmp_path: Path, noticed: Callable[[Path], None]
) -> None:
    said = drive("die_on", 1, str(tmp_path), num_hosts=2, num_workers_per_host=1)
    assert "RankFailed: " in said or "ProcessDied: " in said
    assert "a process of the job ended without a result: rank 1 on" in said
    assert "PeerLost: rank 1" in (tmp_path / "error-0").read_text()
    noticed(tmp_path)


def test_an_elastic_job_goes_on_from_its_last_commit(drive: Drive, tmp_path: Path, alone: float) -> None:
    found = drive("train_elastically", str(tmp_path), 7, min_workers=2, max_workers=2)
    assert sorted(host for _, host in found) == ["h0", "h1"]
    assert [rank["loss"] for rank, _ in found] == pytest.approx([alone] * 2, rel=1e-9)
    assert (tmp_path / "starts").read_text().splitlines() == ["0 2", "7 2"]
