"""Where ranks on several hosts meet, by what their launcher says."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from ringtune.bootstrap import first_host, placement
from ringtune.bootstrap.deadline import Deadline
from ringtune.bootstrap.first_host import first_node, port_of, slurm_address
from ringtune.config import Config
from ringtune.errors import ConfigError, Timeout
from tests.core.test_launchers import (
    FLUX,
    INDEXED,
    JAX,
    JSRUN,
    MVAPICH,
    OPENMPI_5,
    PALS,
    SLURM,
    SLURM_PMI2,
    TENSORFLOW,
    Environ,
)


def address(environ: Environ, **more: str) -> tuple[str, int] | None:
    variables = {**environ, **more}
    return first_host.address(placement.detect(Config.from_environ(variables), variables), variables)


@pytest.fixture
def files(tmp_path: Path) -> Environ:
    (tmp_path / "rankfile").write_text("batch2\nh36n01\nh36n01\nh36n02\nh36n02\n", encoding="utf-8")
    (tmp_path / "nodefile").write_text("x1001\nx1001\nx1002\nx1002\n", encoding="utf-8")
    flux = tmp_path / "flux"
    flux.write_text('#!/bin/sh\ntest "$*" = "hostlist local" && echo "corona[82,171]"\n', encoding="utf-8")
    flux.chmod(0o755)
    return {
        "LSB_DJOB_RANKFILE": str(tmp_path / "rankfile"),
        "PBS_NODEFILE": str(tmp_path / "nodefile"),
        "PATH": f"{tmp_path}:/usr/bin:/bin",
    }


@pytest.mark.parametrize(
    ("environ", "host"),
    [
        (SLURM, "node1"),
        (SLURM_PMI2, "node1"),
        (JSRUN, "h36n01"),
        ({**OPENMPI_5, **JSRUN}, "h36n01"),
        (FLUX, "corona82"),
        (PALS, "x1001"),
        (JAX, "train-node-0-0.train"),
        (TENSORFLOW, "n1"),
        ({**OPENMPI_5, "AZ_BATCH_MASTER_NODE": "10.0.0.4:6000"}, "10.0.0.4"),
        ({**OPENMPI_5, "SM_HOSTS": '["algo-1", "algo-2"]'}, "algo-1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_first_host(environ: Environ, host: str, files: Environ, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", files["PATH"])
    found = address({**environ, **files})
    assert found is not None and found[0] == host and 15000 <= found[1] < 31000


@pytest.mark.parametrize("environ", [OPENMPI_5, MVAPICH, {**SLURM, "SLURM_STEP_TASKS_PER_NODE": "4"}])
def test_a_host_that_nobody_names(environ: Environ) -> None:
    assert address(environ) is None


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (JSRUN, "LSB_DJOB_RANKFILE='' does not name the ranks' first host"),
        ({**PALS, "PBS_NODEFILE": "/nowhere"}, "PBS_NODEFILE='/nowhere' cannot be read \\(No such file"),
        (FLUX, "`flux hostlist local` does not tell this job's first host"),
        ({name: value for name, value in SLURM.items() if "NODELIST" not in name}, "SLURM_JOB_NODELIST is not set"),
        (
            {name: value for name, value in INDEXED.items() if "STORE" not in name},
            "RINGTUNE_STORE is not: set it in all",
        ),
    ],
)
def test_what_cannot_be_read_says_what_to_set(
    environ: Environ, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=message) as raised:
        address(environ)
    assert "RINGTUNE_STORE" in str(raised.value)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node1", "node1"),
        ("node1,node2", "node1"),
        ("gpu[03-05,9],cpu1", "gpu03"),
        ("gpu[7]", "gpu7"),
        ("a,b[1-2]", "a"),
        ("rack[1-2]-node[3-4],x", "rack1-node3"),
        ("n[1-2].site", "n1.site"),
    ],
)
def test_first_node_of_a_slurm_list(nodes: str, first: str) -> None:
    assert first_node(nodes) == first


def test_slurm_port_depends_on_job_and_step() -> None:
    ports = {slurm_address({"SLURM_JOB_NODELIST": "a", "SLURM_JOB_ID": "5", "SLURM_STEP_ID": s})[1] for s in "0123"}
    assert len(ports) == 4 and all(15000 <= port < 31000 for port in ports)
    assert slurm_address(SLURM) == ("node1", port_of("7.0"))


def test_the_name_of_a_pod_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def look_up(host: str, port: object) -> list[object]:
        asked.append(host)
        if len(asked) < 3:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return []

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    pod = placement.detect(Config.from_environ(INDEXED), INDEXED)
    first_host.wait_for_name(pod, "train-0.train", Deadline.after_ns(60_000_000_000))
    assert asked == ["train-0.train"] * 3
    asked.clear()
    with pytest.raises(Timeout, match=r"the name train-0.train of rank 0 was not known within the start timeout"):
        first_host.wait_for_name(pod, "train-0.train", Deadline.after_ns(0))
    asked.clear()
    first_host.wait_for_name(placement.detect(Config.from_environ(SLURM), SLURM), "node1", Deadline.after_ns(10**10))
    assert not asked
