"""`ringtune run` inside an allocation: its hosts by recorded environments, ranks by its own starter."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringtune.bootstrap import hostlist
from ringtune.errors import UsageError
from ringtune.launch import allocation, launcher, remote
from ringtune.launch.options import LaunchOptions
from tests.launch.conftest import Jobs

Environ = dict[str, str]

SLURM = {
    "SLURM_JOB_ID": "71",
    "SLURM_JOBID": "71",
    "SLURM_JOB_NODELIST": "gpu[03-04],login1",
    "SLURM_NODELIST": "gpu[03-04],login1",
    "SLURM_JOB_NUM_NODES": "3",
    "SLURM_NTASKS": "9",
    "SLURM_NPROCS": "9",
    "SLURM_TASKS_PER_NODE": "4(x2),1",
    "SLURM_PROCID": "0",  # a batch script has the first task's numbers, without a step
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
}
LSF = {
    "LSB_JOBID": "8154",
    "LSB_HOSTS": "hostA hostA hostB hostB",
    "LSB_MCPU_HOSTS": "hostA 2 hostB 2 ",
    "LSB_DJOB_NUMPROC": "4",
}
PBS = {"PBS_JOBID": "12.pbs", "PBS_NODEFILE": "node-file", "PBS_ENVIRONMENT": "PBS_BATCH", "PBS_TASKNUM": "1"}
COBALT = {"COBALT_JOBID": "9", "COBALT_NODEFILE": "node-file"}
GRID_ENGINE = {"JOB_ID": "55", "PE_HOSTFILE": "pe-file", "NSLOTS": "6", "NHOSTS": "2"}
FLUX = {"FLUX_URI": "local:///tmp/flux-x/local-0", "FLUX_ENCLOSING_ID": "f2Vqg", "FLUX_JOB_ID": "f2Vqg"}
MPI_JOB = {
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "K_MPI_JOB_ROLE": "launcher",
    "OMPI_MCA_orte_default_hostfile": "mpi-file",
    "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
}
SAGEMAKER = {"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1", "SM_NUM_GPUS": "4", "SM_NUM_CPUS": "48"}

FILES = {
    "node-file": "x1001\nx1001\nx1002\nx1002\n",
    "pe-file": "node1 4 all.q@node1 UNDEFINED\nnode2 2 all.q@node2 UNDEFINED\n",
    "mpi-file": "train-worker-0.train.ml.svc slots=2\ntrain-worker-1.train.ml.svc slots=2\n",
    "lsf-file": "hostA\nhostA\nhostB\n",
}
# The resource set of a job of two hosts (RFC 20), as `flux resource R` prints it.
FLUX_R = {
    "version": 1,
    "execution": {
        "R_lite": [{"rank": "0-1", "children": {"core": "0-7", "gpu": "0-3"}}],
        "starttime": 1.7e9,
        "expiration": 1.8e9,
        "nodelist": ["tuolumne[1005,1008]"],
    },
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the environments name, first on PATH."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    program(tmp_path, "flux", f'test "$*" = "resource R" && cat <<EOF\n{json.dumps(FLUX_R)}\nEOF')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    (folder / name).chmod(0o755)


def without(environ: Environ, *names: str, **more: str) -> Environ:
    return {**{name: value for name, value in environ.items() if name not in names}, **more}


@pytest.mark.parametrize(
    ("environ", "system", "hosts"),
    [
        (SLURM, "SLURM (job 71)", "gpu03:4 gpu04:4 login1:1"),
        (
            without(SLURM, "SLURM_NTASKS", "SLURM_NPROCS", SLURM_GPUS_PER_NODE="a100:8"),
            "SLURM (job 71)",
            "gpu03:8 gpu04:8 login1:8",
        ),
        (without(SLURM, "SLURM_NTASKS", "SLURM_NPROCS"), "SLURM (job 71)", "gpu03:4 gpu04:4 login1:1"),
        ({**SLURM, "SLURM_STEP_ID": "4294967290"}, "SLURM (job 71)", "gpu03:4 gpu04:4 login1:1"),
        (LSF, "LSF (job 8154)", "hostA:2 hostB:2"),
        (without(LSF, "LSB_MCPU_HOSTS"), "LSF (job 8154)", "hostA:2 hostB:2"),
        (
            without(LSF, "LSB_MCPU_HOSTS", "LSB_HOSTS", LSB_DJOB_HOSTFILE="lsf-file"),
            "LSF (job 8154)",
            "hostA:2 hostB:1",
        ),
        (PBS, "PBS (job 12.pbs)", "x1001:2 x1002:2"),
        (COBALT, "Cobalt (job 9)", "x1001:2 x1002:2"),
        (GRID_ENGINE, "Grid Engine (job 55)", "node1:4 node2:2"),
        (FLUX, "Flux (job f2Vqg)", "tuolumne1005:4 tuolumne1008:4"),
        ({**SLURM, "SLURM_JOB_NODELIST": "tuolumne[1005-1007]", **FLUX}, "Flux (job f2Vqg)", None),
        (MPI_JOB, "Kubernetes (mpi-file)", "train-worker-0.train.ml.svc:2 train-worker-1.train.ml.svc:2"),
        (SAGEMAKER, "SageMaker (algo-1)", "localhost:4"),
        ({**SAGEMAKER, "SM_NUM_GPUS": "0"}, "SageMaker (algo-1)", "localhost:48"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_hosts_of_an_allocation(environ: Environ, system: str, hosts: str | None) -> None:
    if "FLUX_URI" in environ:
        environ = {**environ, "PATH": os.environ["PATH"]}
    if "SLURM_JOB_NODELIST" in environ and hosts is None:
        environ = {**environ, "SLURM_TASKS_PER_NODE": "1(x3)"}
    found = allocation.find(environ)
    assert found is not None and found.system == system
    if hosts is not None:
        assert " ".join(f"{host.name}:{host.slots}" for host in found.hosts) == hosts


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"KUBERNETES_SERVICE_HOST": "10.0.0.1"},
        {"OMPI_MCA_orte_default_hostfile": "mpi-file"},
        {"FLUX_URI": "local:///run/flux/local"},  # a login node of a system that Flux manages
        {**SLURM, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"},  # one of two tasks: each starts ranks of its own
        {**PBS, "PMI_RANK": "0", "PMI_SIZE": "4"},
    ],
)
@pytest.mark.usefixtures("folder")
def test_no_allocation(environ: Environ) -> None:
    assert allocation.find(environ) is None


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({**SLURM, "SLURM_TASKS_PER_NODE": "4(x2)"}, "names 3 hosts and SLURM_TASKS_PER_NODE=4\\(x2\\) is for 2"),
        ({**SLURM, "SLURM_TASKS_PER_NODE": "many"}, "SLURM_TASKS_PER_NODE='many': expected counts"),
        ({**SLURM, "SLURM_JOB_NODELIST": "gpu[3-"}, "expected a list of hosts such as"),
        ({**SLURM, "SLURM_HET_SIZE": "2"}, "is made of several jobs"),
        ({**LSF, "LSB_MCPU_HOSTS": "hostA 2 hostB"}, "expected pairs of host and slots"),
        ({**LSF, "CSM_ALLOCATION_ID": "4"}, "starts its ranks by jsrun"),
        ({**PBS, "PBS_NODEFILE": "nowhere"}, "PBS_NODEFILE='nowhere' cannot be read \\(No such file"),
        ({**GRID_ENGINE, "PE_HOSTFILE": "lsf-file"}, "expected lines `host slots queue processors`"),
        ({**FLUX, "PATH": "/nowhere"}, "`flux resource R` does not tell the hosts"),
        (
            {**SLURM, **PBS},
            "SLURM \\(job 71\\) gives gpu03, gpu04, login1, and PBS \\(job 12.pbs\\) gives x1001, x1002",
        ),
        ({"SM_HOSTS": '["algo-1", "algo-2"]'}, "SageMaker runs this on each of 2 hosts"),
        ({"SM_HOSTS": "algo-1"}, "expected a JSON list"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_what_makes_no_sense_is_an_error_in_one_sentence(
    environ: Environ, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", environ.get("PATH", os.environ["PATH"]))
    with pytest.raises(UsageError, match=message) as raised:
        launcher.plan(LaunchOptions(["true"], environ=environ))
    assert "-H host:slots" in str(raised.value) and "\n" not in str(raised.value)
    # Hosts that the user names are the answer.
    assert len(launcher.plan(LaunchOptions(["true"], hosts="a:2,b:1", environ=environ))) == 3


@pytest.mark.usefixtures("folder")
def test_several_launchers_beside_each_other_are_named() -> None:
    step = {**SLURM, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "9"}
    with pytest.raises(UsageError, match="slurm has started this 9 times: start it once, in the batch script"):
        launcher.plan(LaunchOptions(["true"], environ=step))
    assert {slot.host for slot in launcher.plan(LaunchOptions(["true"], num_proc=2, environ=step))} == {"localhost"}


@pytest.mark.parametrize(
    ("environ", "name", "words"),
    [
        (SLURM, "srun", ["--jobid", "71", "--overlap", "--nodelist=gpu04"]),
        (LSF, "blaunch", ["hostB"]),
        (GRID_ENGINE, "qrsh", ["-inherit", "node2"]),
        (FLUX, "flux", ["exec", "--rank", "1"]),
        (PBS, "", []),
        (MPI_JOB, "", []),
    ],
)
def test_the_systems_own_starter(environ: Environ, name: str, words: list[str], folder: Path) -> None:
    environ = {**environ, "PATH": f"{folder}:/usr/bin:/bin"}
    if name and name != "flux":
        program(folder, name, "exit 0")
    options = launcher.in_allocation(LaunchOptions(["true"], environ=environ))
    assert options.allocation is not None
    host = options.allocation.hosts[1].name
    command = remote.remote_rank_agent_command(host, options)
    assert remote.starter_of(options) == (name or "ssh")
    if name:
        assert command[0] == str(folder / name) and set(words) <= set(command)
        assert command[-4:] == remote.rank_agent_command()
    else:
        assert command[0] == "ssh" and command[-2] == host


# A starter as LSF's: the host, then plain words. It tells what it was asked, and sets what its host's GPUs are.
BLAUNCH = """
echo "$*" >>{log}
host=$1; shift
[ "$host" != 192.0.2.66 ] || {{ echo "blaunch: host 192.0.2.66 is not allocated" >&2; exit 255; }}
cd / && exec env -i PATH="$PATH" CUDA_VISIBLE_DEVICES=6,7 "$@"
"""


def test_ranks_on_hosts_of_an_allocation(jobs: Jobs) -> None:
    log = jobs.folder / "log"
    program(jobs.folder, "blaunch", BLAUNCH.format(log=log))
    environ = {
        **LSF,
        "LSB_MCPU_HOSTS": "localhost 1 192.0.2.1 2",
        "PATH": f"{jobs.folder}:{os.environ['PATH']}",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "MINE": "with 'quotes' and $signs",
    }
    script = jobs.script('print(rank, size, os.environ["MINE"], os.environ["CUDA_VISIBLE_DEVICES"])')
    result = jobs.run("--no-run-dir", "--verbose", sys.executable, script, environ=environ)
    assert result.returncode == 0, result.stderr
    tail = "with 'quotes' and $signs"
    assert sorted(result.stdout.splitlines()) == [f"[0] 0 3 {tail} 0,1", f"[1] 1 3 {tail} 6,7", f"[2] 2 3 {tail} 6,7"]
    assert "ranks 1-2 on 192.0.2.1 by blaunch" in result.stderr
    assert all(line.startswith("192.0.2.1 ") and "quotes" not in line for line in log.read_text().splitlines())
    environ["LSB_MCPU_HOSTS"] = "localhost 1 192.0.2.66 2"
    result = jobs.run("--no-run-dir", sys.executable, script, environ=environ)
    assert result.stderr == (
        "ringtune: host 192.0.2.66 cannot be reached by blaunch: blaunch: host 192.0.2.66 is not allocated\n"
    )


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 99), st.integers(0, 9)), min_size=1, max_size=4))
def test_a_list_of_hosts_has_every_name_once_more(parts: list[tuple[str, int, int]]) -> None:
    text = ",".join(f"{name}[{first:03}-{first + more:03}]x" for name, first, more in parts)
    expected = [f"{name}{number:03}x" for name, first, more in parts for number in range(first, first + more + 1)]
    assert hostlist.expand(text) == expected


@pytest.mark.parametrize("text", ["", "a[", "a[1", "a[x]", "a[1-2]]", ",", "a,,b", "a[]"])
def test_what_is_no_list_of_hosts(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected a list of hosts|no range"):
        hostlist.expand(text)


def test_a_starter_that_ends_well_without_its_rank_is_a_failure(jobs: Jobs) -> None:
    """`srun` ends with 0 when the node of its task has died."""
    lost = 'case "$*" in *rank_agent*) exec 0<&-; echo "Node failure on $1" >&2; exit 0;; esac; shift; exec "$@"'
    program(jobs.folder, "blaunch", lost)
    path = {"PATH": f"{jobs.folder}:{os.environ['PATH']}"}
    environ = {**LSF, "LSB_MCPU_HOSTS": "localhost 1 192.0.2.1 1", **path}
    result = jobs.run("--no-run-dir", sys.executable, jobs.script("time.sleep(rank == 0)"), environ=environ)
    assert result.returncode == 255
    assert "[1] Node failure on 192.0.2.1" in result.stderr
    assert "rank 1 on 192.0.2.1 exited with code 255" in result.stderr
    # What the rank itself writes is passed on, whatever it looks like; the launcher ends its last line.
    program(jobs.folder, "blaunch", 'shift; exec "$@"')
    script = jobs.script(r'sys.stderr.write("a\0b\n\0" if rank else "")')
    result = jobs.run("--no-run-dir", "--no-prefix", sys.executable, script, environ=environ)
    assert (result.returncode, result.stderr) == (0, "a\0b\n\0\n")
