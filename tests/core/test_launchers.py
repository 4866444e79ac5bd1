"""The table of launchers, row by row, from environments as the launchers make them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringtune.bootstrap import launcher_traces, placement
from ringtune.bootstrap.launchers import LAUNCHERS, find_task, slurm_tasks_per_node
from ringtune.bootstrap.placement import LAUNCHER_VARIABLES, Placement
from ringtune.config import Config
from ringtune.errors import ConfigError

Environ = dict[str, str]


def recorded(text: str) -> Environ:
    """Return the variables of lines ``NAME=value``."""
    return dict(line.strip().split("=", 1) for line in text.strip().splitlines())


def detect(environ: Environ, **more: str) -> Placement:
    variables = {**environ, **more}
    return placement.detect(Config.from_environ(variables), variables)


# Rank 1 of 4 on the first of two hosts (of three, where a launcher starts one process a host).
TORCHRUN = recorded("""
    RANK=1
    WORLD_SIZE=4
    LOCAL_RANK=1
    LOCAL_WORLD_SIZE=2
    GROUP_RANK=0
    GROUP_WORLD_SIZE=2
    ROLE_RANK=1
    ROLE_WORLD_SIZE=4
    MASTER_ADDR=node1
    MASTER_PORT=29400
    TORCHELASTIC_RUN_ID=none
    TORCHELASTIC_RESTART_COUNT=0
    TORCHELASTIC_USE_AGENT_STORE=True
""")
RAY_TRAIN = recorded("""
    RANK=1
    WORLD_SIZE=4
    LOCAL_RANK=1
    LOCAL_WORLD_SIZE=2
    NODE_RANK=0
    MASTER_ADDR=10.0.0.1
    MASTER_PORT=40123
""")
OPENMPI_4 = recorded("""
    OMPI_COMM_WORLD_SIZE=4
    OMPI_UNIVERSE_SIZE=4
    OMPI_COMM_WORLD_LOCAL_SIZE=2
    OMPI_COMM_WORLD_RANK=1
    OMPI_COMM_WORLD_LOCAL_RANK=1
    OMPI_COMM_WORLD_NODE_RANK=1
    OMPI_MCA_ess_base_jobid=2418475009
    OMPI_MCA_ess_base_vpid=1
    OMPI_MCA_orte_hnp_uri=2418475008.0;tcp://10.0.0.1:41045
    PMIX_NAMESPACE=2418475009
    PMIX_RANK=1
""")
OPENMPI_5 = recorded("""
    OMPI_COMM_WORLD_RANK=1
    OMPI_COMM_WORLD_SIZE=4
    OMPI_COMM_WORLD_LOCAL_RANK=1
    OMPI_COMM_WORLD_LOCAL_SIZE=2
    OMPI_COMM_WORLD_NODE_RANK=1
    PMIX_NAMESPACE=prterun-node1-2304@1
    PMIX_RANK=1
    PMIX_VERSION=5.0.9
""")
MVAPICH = recorded("""
    MV2_COMM_WORLD_RANK=1
    MV2_COMM_WORLD_SIZE=4
    MV2_COMM_WORLD_LOCAL_RANK=1
    MV2_COMM_WORLD_LOCAL_SIZE=2
    MPIRUN_RSH_LAUNCH=1
""")
HYDRA = recorded("""
    PMI_RANK=1
    PMI_SIZE=4
    PMI_FD=9
    MPI_LOCALRANKID=1
    MPI_LOCALNRANKS=2
""")
HYDRA_IN_SLURM = {
    **HYDRA,
    **recorded("""
        SLURM_JOB_ID=7
        SLURM_STEP_ID=0
        SLURM_PROCID=0
        SLURM_LOCALID=0
        SLURM_NODEID=0
        SLURM_STEP_NUM_TASKS=2
        SLURM_STEP_TASKS_PER_NODE=1(x2)
    """),
}
JSRUN = recorded("""
    JSM_NAMESPACE_RANK=1
    JSM_NAMESPACE_SIZE=4
    JSM_NAMESPACE_LOCAL_RANK=1
    JSM_NAMESPACE_LOCAL_SIZE=2
    PMIX_NAMESPACE=3
    PMIX_RANK=1
    LSB_JOBID=812345
    LSB_MCPU_HOSTS=batch2 1 h36n01 42 h36n02 42
""")
FLUX = recorded("""
    FLUX_TASK_RANK=1
    FLUX_TASK_LOCAL_ID=1
    FLUX_JOB_SIZE=4
    FLUX_JOB_NNODES=2
    FLUX_JOB_ID=99589554176
    FLUX_URI=local:///run/flux/local
    PMI_FD=20
""")
PALS = recorded("""
    PALS_RANKID=1
    PALS_NRANKS=4
    PALS_LOCAL_RANKID=1
    PALS_LOCAL_SIZE=2
    PALS_APID=0c3f
    PALS_NODEID=0
    PBS_JOBID=101.server
    PBS_NODEFILE=/var/spool/pbs/aux/101.server
""")
SLURM = recorded("""
    SLURM_JOB_ID=7
    SLURM_JOBID=7
    SLURM_STEP_ID=0
    SLURM_STEPID=0
    SLURM_PROCID=1
    SLURM_LOCALID=1
    SLURM_NODEID=0
    SLURM_NTASKS=4
    SLURM_NPROCS=4
    SLURM_NNODES=2
    SLURM_STEP_NUM_TASKS=4
    SLURM_STEP_NUM_NODES=2
    SLURM_TASKS_PER_NODE=2(x2)
    SLURM_STEP_TASKS_PER_NODE=2(x2)
    SLURM_STEP_NODELIST=node[1-2]
    SLURM_LAUNCH_NODE_IPADDR=10.0.0.1
""")
SLURM_PMI2 = {**SLURM, "PMI_RANK": "1", "PMI_SIZE": "4", "PMI_FD": "12", "PMI_JOBID": "7.0"}
SLURM_PMIX = {**SLURM, "PMIX_RANK": "1", "PMIX_NAMESPACE": "slurm.pmix.7.0"}
JAX = recorded("""
    JAX_PROCESS_ID=1
    JAX_NUM_PROCESSES=3
    JAX_COORDINATOR_ADDRESS=train-node-0-0.train:29500
    JOB_COMPLETION_INDEX=1
""")
CLUSTER = {"chief": ["n1:2222"], "worker": ["n1:2223", "n2:2222", "n2:2223"], "ps": ["n3:2222"]}
TENSORFLOW = {"TF_CONFIG": json.dumps({"cluster": CLUSTER, "task": {"type": "worker", "index": 0}})}
INDEXED = recorded("""
    JOB_COMPLETION_INDEX=1
    RINGTUNE_SIZE=3
    RINGTUNE_STORE=train-0.train:29400
""")
PRRTE = recorded("""
    PMIX_RANK=1
    PMIX_NAMESPACE=prterun-node1-77@1
    RINGTUNE_SIZE=4
    RINGTUNE_LOCAL_SIZE=2
    RINGTUNE_LOCAL_RANK=1
""")
HOROVODRUN = recorded("""
    HOROVOD_RANK=1
    HOROVOD_SIZE=4
    HOROVOD_LOCAL_RANK=1
    HOROVOD_LOCAL_SIZE=2
    HOROVOD_CROSS_RANK=0
    HOROVOD_CROSS_SIZE=2
    HOROVOD_GLOO_RENDEZVOUS_ADDR=10.0.0.1
    HOROVOD_GLOO_RENDEZVOUS_PORT=4321
    HOROVOD_HOSTNAME=node1
""")
OWN = recorded("""
    RINGTUNE_RANK=1
    RINGTUNE_SIZE=4
    RINGTUNE_LOCAL_RANK=1
    RINGTUNE_LOCAL_SIZE=2
    RINGTUNE_STORE=node1:29400
""")

# Environment, launcher, (rank, size, local rank, local size), job.
RECORDED: dict[str, tuple[Environ, str, tuple[int, int, int | None, int | None], str]] = {
    "ringtune": (OWN, "ringtune", (1, 4, 1, 2), ""),
    "horovodrun": (HOROVODRUN, "horovodrun", (1, 4, 1, 2), ""),
    "torchrun": (TORCHRUN, "torchrun", (1, 4, 1, 2), "none.0"),
    "Ray Train": (RAY_TRAIN, "torchrun", (1, 4, 1, 2), ""),
    "Open MPI 4": (OPENMPI_4, "openmpi", (1, 4, 1, 2), "2418475009"),
    "Open MPI 5": (OPENMPI_5, "openmpi", (1, 4, 1, 2), "prterun-node1-2304@1"),
    "MVAPICH": (MVAPICH, "mvapich", (1, 4, 1, 2), ""),
    "hydra": (HYDRA, "pmi", (1, 4, 1, 2), ""),
    "hydra in SLURM": (HYDRA_IN_SLURM, "pmi", (1, 4, 1, 2), ""),
    "jsrun": (JSRUN, "jsrun", (1, 4, 1, 2), "812345.3"),
    "Flux": (FLUX, "flux", (1, 4, 1, None), "99589554176"),
    "PALS": (PALS, "pals", (1, 4, 1, 2), "101.server.0c3f"),
    "srun": (SLURM, "slurm", (1, 4, 1, 2), "7.0"),
    "srun --mpi=pmi2": (SLURM_PMI2, "slurm", (1, 4, 1, 2), "7.0"),
    "srun --mpi=pmix": (SLURM_PMIX, "slurm", (1, 4, 1, 2), "7.0"),
    "Kubeflow's JAX": (JAX, "jax", (1, 3, 0, 1), "train-node-0-0.train:29500"),
    "TF_CONFIG": (TENSORFLOW, "tensorflow", (1, 4, 1, 2), "n1:2222,n1:2223,n2:2222,n2:2223"),
    "indexed Job": (INDEXED, "kubernetes", (1, 3, 0, 1), ""),
    "PRRTE": (PRRTE, "pmix", (1, 4, 1, 2), "prterun-node1-77@1"),
}
ROWS = {row.name: environ for environ, name, _, _ in RECORDED.values() for row in LAUNCHERS if row.name == name}


@pytest.mark.parametrize("case", RECORDED)
def test_a_recorded_environment(case: str) -> None:
    environ, launcher, numbers, job = RECORDED[case]
    found = detect(environ)
    assert (found.launcher, found.job) == (launcher, job)
    assert (found.rank, found.size, found.local_rank, found.local_size) == numbers
    assert found.several_hosts


def test_every_row_has_a_recorded_environment() -> None:
    assert set(ROWS) == {row.name for row in LAUNCHERS}


@given(st.sets(st.sampled_from(sorted(ROWS)), min_size=1))
def test_who_started_a_process_last_counts(names: set[str]) -> None:
    """Whatever launchers' variables come together, the first row of the table decides alone."""
    together = {name: value for row in names for name, value in ROWS[row].items()}
    first = next(row.name for row in LAUNCHERS if row.name in names)
    if first == "pmi" and "slurm" in names:
        together |= {"SLURM_PROCID": "3"}  # of the proxy that srun started
    alone = find_task(ROWS[first])
    found = find_task(together)
    assert found is not None and alone is not None
    assert (found.launcher, found.rank, found.size) == (first, alone.rank, alone.size)
    assert detect(together, RINGTUNE_RANK="0", RINGTUNE_SIZE="1").launcher == "ringtune"
    assert detect(together, HOROVOD_RANK="0", HOROVOD_SIZE="1").launcher == "horovodrun"


NUMBERED = [row for row in LAUNCHERS if row.rank]


@given(st.sampled_from(NUMBERED), st.data())
def test_half_of_a_row_is_an_error_that_names_what_is_missing(row: Any, data: st.DataObject) -> None:
    if data.draw(st.booleans(), label="rank without size"):
        name = data.draw(st.sampled_from(row.rank))
        environ, missing = {name: "1"}, row.size
    elif row.name in ("slurm", "flux"):
        return  # a batch script may have the size without being a task
    else:
        name = data.draw(st.sampled_from(row.size))
        environ, missing = {name: "4"}, row.rank
    with pytest.raises(ConfigError, match=f"^{name} is set but {missing[0]} is not: set both"):
        detect(environ)


@given(st.sampled_from(NUMBERED), st.text(alphabet="0123456789-+.x ²").filter(str.strip))
def test_a_rank_is_a_number_or_an_error(row: Any, text: str) -> None:
    """A blank variable counts as one that is not set."""
    environ = {row.rank[0]: text, row.size[0]: "40"}
    word = text.strip()
    if word.isascii() and word.isdigit() and int(word) < 40:
        assert detect(environ).rank == int(word)
    else:
        with pytest.raises(ConfigError):
            detect(environ)


@pytest.mark.parametrize("row", [row for row in LAUNCHERS if row.local_rank and row.name not in ("torchrun", "slurm")])
def test_a_local_rank_alone_is_an_error(row: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{row.local_rank[0]} is set but {row.rank[0]} is not"):
        detect({row.local_rank[0]: "0"})


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"LOCAL_RANK": "0"},
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_NNODES": "2"},  # salloc
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"},  # sbatch
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967291"},
        {"LSB_JOBID": "1", "LSB_HOSTS": "blue red", "LSB_MCPU_HOSTS": "blue 4 red 4", "LSB_DJOB_HOSTFILE": "/x"},
        {"LSB_JOBID": "1", "LSB_MCPU_HOSTS": "login 1 red 4"},
        {"PBS_JOBID": "1", "PBS_NODEFILE": "/x", "PBS_TASKNUM": "1", "PBS_NODENUM": "0", "PBS_VNODENUM": "0"},
        {"FLUX_URI": "local:///run/flux/local", "FLUX_JOB_SIZE": "4"},
        {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": "0"},
        {"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"},
        {"TF_CONFIG": "{}"},
        {"TF_CONFIG": '{"task": {"type": "worker", "index": 0}}'},
        {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"},
    ],
    ids=str,
)
def test_a_batch_script_is_a_job_of_one(environ: Environ) -> None:
    assert detect(environ, RINGTUNE_HOSTNAME="blue.site").launcher == "single"


TRACES = [
    ({"JOB_COMPLETION_INDEX": "0"}, "JOB_COMPLETION_INDEX=0: .*set RINGTUNE_SIZE to the Job's completions"),
    ({"PMIX_RANK": "1", "PMIX_NAMESPACE": "x"}, "PMIX_RANK=1: .*set RINGTUNE_SIZE to their number"),
    ({"LSF_PM_TASKID": "1", "LSB_JOBID": "5"}, "LSF_PM_TASKID=1: LSF's blaunch .*`ringtune run -H"),
    ({"LSB_JOBID": "5", "LSB_MCPU_HOSTS": "red 4 blue 4"}, "LSB_JOBID=5: LSF's blaunch started this process on blue"),
    ({"LSB_JOBID": "5", "LSB_HOSTS": "red blue.site blue.site"}, "LSB_JOBID=5: LSF's blaunch"),
    ({"PBS_JOBID": "1", "PBS_TASKNUM": "2", "PBS_NODENUM": "0"}, "PBS_TASKNUM=2: PBS .*--hostfile \\$PBS_NODEFILE"),
    ({"PBS_JOBID": "1", "PBS_TASKNUM": "1", "PBS_NODENUM": "1"}, "PBS_NODENUM=1: PBS"),
    ({"PET_NNODES": "2", "PET_NODE_RANK": "0"}, "PET_NNODES=2: .*start the script by torchrun"),
    ({"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-2"}, "SM_HOSTS names 2 hosts .*torch_distributed"),
]


@pytest.mark.parametrize(("environ", "message"), TRACES)
def test_a_trace_that_is_not_understood_is_an_error_in_one_sentence(environ: Environ, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}.*for a job of this process alone set RINGTUNE_RANK=0") as raised:
        detect(environ, RINGTUNE_HOSTNAME="blue")
    assert "\n" not in str(raised.value)
    assert detect(environ, RINGTUNE_RANK="0", RINGTUNE_SIZE="1").size == 1
    assert detect({**environ, **OPENMPI_5}).launcher == "openmpi"


@pytest.mark.parametrize("environ", [environ for environ, _ in TRACES], ids=str)
def test_a_trace_places_nobody(environ: Environ) -> None:
    """Where torch.distributed knows the rank, what started the process beside others does not matter."""
    assert not placement.is_placed(Config.from_environ(environ), environ)
    assert all(placement.is_placed(Config.from_environ(one), one) for one, *_ in RECORDED.values())


def test_every_trace_is_a_variable_that_children_do_not_inherit() -> None:
    named = {name for names in LAUNCHER_VARIABLES.values() for name in names}
    assert {name for environ, _ in TRACES for name in environ} - named <= {
        "LSB_JOBID", "PBS_JOBID", "PMIX_NAMESPACE",  # what makes a job's name only
    }  # fmt: skip
    assert set(launcher_traces.RANK_ALONE) <= named


def test_a_size_alone_is_completed_by_the_rank_of_a_launcher_without_one() -> None:
    with pytest.raises(ConfigError, match="RINGTUNE_SIZE is set but RINGTUNE_RANK is not"):
        detect({"RINGTUNE_SIZE": "3"})
    with pytest.raises(ConfigError, match="rank 3 of 3"):
        detect(INDEXED, JOB_COMPLETION_INDEX="3")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "expected a JSON object"),
        ("[]", "expected a JSON object"),
        (json.dumps({"cluster": CLUSTER, "task": {"type": "ps", "index": 0}}), "task ps 0 is no worker"),
        (json.dumps({"cluster": CLUSTER, "task": {"type": "evaluator", "index": 0}}), "task evaluator 0 is no worker"),
        (json.dumps({"cluster": CLUSTER, "task": {"type": "worker", "index": 3}}), "no worker 3 in the cluster"),
    ],
)
def test_a_tf_config_without_a_worker_of_its_own(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"TF_CONFIG.*{message}"):
        detect({"TF_CONFIG": text})


@pytest.mark.parametrize(
    ("kind", "index", "rank", "local"), [("chief", 0, 0, (0, 2)), ("worker", 1, 2, (0, 2)), ("worker", 2, 3, (1, 2))]
)
def test_ranks_of_a_tf_config(kind: str, index: int, rank: int, local: tuple[int, int]) -> None:
    found = detect({"TF_CONFIG": json.dumps({"cluster": CLUSTER, "task": {"type": kind, "index": index}})})
    assert (found.rank, found.size, found.local_rank, found.local_size) == (rank, 4, *local)


@pytest.mark.parametrize(("text", "counts"), [("2", [2]), ("2(x3),1", [2, 2, 2, 1]), ("1,4(x2)", [1, 4, 4])])
def test_slurm_tasks_per_node(text: str, counts: list[int]) -> None:
    assert slurm_tasks_per_node(text) == counts
