from __future__ import annotations

from typing import Any

import pytest

from ringtune.bootstrap import placement
from ringtune.bootstrap.placement import Placement
from ringtune.config import Config
from ringtune.errors import ConfigError


def detect(**environ: Any) -> Placement:
    variables = {name: str(value) for name, value in environ.items()}
    return placement.detect(Config.from_environ(variables), variables)


RINGTUNE = {"RINGTUNE_RANK": 1, "RINGTUNE_SIZE": 4, "RINGTUNE_LOCAL_RANK": 1, "RINGTUNE_LOCAL_SIZE": 2}
HOROVOD = {"HOROVOD_RANK": 1, "HOROVOD_SIZE": 4, "HOROVOD_LOCAL_RANK": 1, "HOROVOD_LOCAL_SIZE": 2}
TORCHRUN = {
    "RANK": 1, "WORLD_SIZE": 4, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2,
    "MASTER_ADDR": "node1", "MASTER_PORT": 29500, "TORCHELASTIC_RUN_ID": "x",
}  # fmt: skip
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": 1, "OMPI_COMM_WORLD_SIZE": 4,
    "OMPI_COMM_WORLD_LOCAL_RANK": 1, "OMPI_COMM_WORLD_LOCAL_SIZE": 2,
}  # fmt: skip
HYDRA = {"PMI_RANK": 1, "PMI_SIZE": 4, "MPI_LOCALRANKID": 1, "MPI_LOCALNRANKS": 2}
SLURM = {
    "SLURM_PROCID": 1, "SLURM_NTASKS": 4, "SLURM_LOCALID": 1, "SLURM_TASKS_PER_NODE": "2(x2)",
    "SLURM_JOB_ID": 7, "SLURM_STEP_ID": 0, "SLURM_NODEID": 0,
}  # fmt: skip
ALL = {
    "ringtune": RINGTUNE, "horovodrun": HOROVOD, "torchrun": TORCHRUN, "openmpi": OPENMPI, "pmi": HYDRA, "slurm": SLURM,
}  # fmt: skip


@pytest.mark.parametrize("launcher", list(ALL))
def test_each_launcher_is_understood(launcher: str) -> None:
    found = detect(**ALL[launcher])
    assert (found.rank, found.size, found.local_rank, found.local_size) == (1, 4, 1, 2)
    assert found.launcher == launcher and found.several_hosts


PAIRS = [
    (there, missing)
    for variables in (RINGTUNE, HOROVOD)
    for there, missing in (list(variables)[:2], list(variables)[1::-1])
]


@pytest.mark.parametrize(("there", "missing"), PAIRS)
def test_half_a_pair_is_an_error_that_names_both(there: str, missing: str) -> None:
    with pytest.raises(ConfigError, match=f"{there} is set but {missing} is not"):
        detect(**{there: 1})


def test_nothing_is_a_job_of_one() -> None:
    found = detect()
    assert (found.rank, found.size, found.local_rank, found.local_size, found.launcher) == (0, 1, 0, 1, "single")
    assert found.host and not found.several_hosts and found.store is None


def test_ringtunes_own_variables_win() -> None:
    assert detect(**{**OPENMPI, **TORCHRUN, "RINGTUNE_RANK": 0, "RINGTUNE_SIZE": 1}).launcher == "ringtune"


def test_torchrun_under_mpirun_and_slurm_wins() -> None:
    assert detect(**{**OPENMPI, **SLURM, **TORCHRUN}).launcher == "torchrun"


def test_a_slurm_batch_script_is_no_task() -> None:
    assert detect(SLURM_PROCID=0, SLURM_NTASKS=4, SLURM_JOB_ID=7).launcher == "single"


def test_slurm_variables_of_a_step_win_over_those_of_the_job() -> None:
    assert (
        detect(**{**SLURM, "SLURM_STEP_NUM_TASKS": 2, "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_LOCALID": 0}).size
        == 2
    )


def test_names_of_jobs() -> None:
    assert detect(**SLURM).job == "7.0"
    assert detect(**{**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": 2}).job == "x.2"
    assert detect(**{**OPENMPI, "PMIX_NAMESPACE": "host-1@1"}).job == "host-1@1"
    assert detect(**{**SLURM, "RINGTUNE_JOB": "mine"}).job == "mine"


def test_master_address_is_the_store_except_under_torchrun() -> None:
    assert detect(**OPENMPI, MASTER_ADDR="node1", MASTER_PORT=1234).store == ("node1", 1234)
    assert detect(**TORCHRUN).store is None
    assert detect(**{**TORCHRUN, "RINGTUNE_STORE": "a:1"}).store == ("a", 1)
    assert detect(MASTER_ADDR="node1", MASTER_PORT=1234).store is None


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"RINGTUNE_RANK": 2, "RINGTUNE_SIZE": 2}, "rank 2 of 2 .*expected 0 <= rank < size"),
        ({"OMPI_COMM_WORLD_RANK": "x", "OMPI_COMM_WORLD_SIZE": 2}, "OMPI_COMM_WORLD_RANK='x': expected a whole number"),
        ({"RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 3}, "local size 3"),
        ({"RANK": 0, "WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 2, "LOCAL_RANK": 2}, "local rank 2"),
    ],
)
def test_numbers_that_contradict_each_other(environ: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        detect(**environ)


def test_hostname_can_be_named() -> None:
    assert detect(RINGTUNE_HOSTNAME="blue").host == "blue"
