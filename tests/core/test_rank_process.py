"""Which variables a process inherited from a rank, and which came from a launcher in between."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringtune.bootstrap import placement, rank_process
from ringtune.bootstrap.address_file import start_time
from ringtune.bootstrap.placement import LAUNCHER_VARIABLES, Placement
from ringtune.bootstrap.rank_process import VARIABLE, inherits_outputs, own_environment
from ringtune.config import Config

LAUNCHED = {
    "ringtune": {"RINGTUNE_RANK": "1", "RINGTUNE_SIZE": "2", "RINGTUNE_STORE": "h:1", "RINGTUNE_JOB": "j"},
    "elastic": {"RINGTUNE_WORKER": "1", "RINGTUNE_STORE": "h:1", "RINGTUNE_JOB": "j", "HOROVOD_ELASTIC": "1"},
    "horovodrun": {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", "HOROVOD_GLOO_RENDEZVOUS_PORT": "5"},
    "torchrun": {
        "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x",
        "MASTER_ADDR": "h", "MASTER_PORT": "29500",
    },
    "by hand": {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "29500"},
    "mpirun": {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "n"},
    "pmi": {"PMI_RANK": "1", "PMI_SIZE": "2"},
    "srun": {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"},
}  # fmt: skip
OTHER = {"PATH": "/bin", "RINGTUNE_CYCLE_TIME": "2", "HOROVOD_LOG_LEVEL": "info"}
OUTPUTS = {"RINGTUNE_RUN_DIR": "/run", "HOROVOD_TIMELINE": "t.json", "RINGTUNE_METRICS_PORT": "1"}
launchers = st.sampled_from(sorted(LAUNCHED))


def claimed(
    environ: Mapping[str, str], *, own: bool = False, rank_and_size: tuple[int, int] = (1, 1)
) -> dict[str, str]:
    """Return the environment as the children of a rank inherit it."""
    claim = rank_process.Claim(
        os.getpid() if own else os.getppid(),
        start_time(os.getpid()),
        *rank_and_size,
        None,
        "the secret",
        "j.1",
        rank_process._sums(environ),
    )
    return {**environ, VARIABLE: json.dumps(claim.__dict__)}


def size_of(environ: Mapping[str, str]) -> int:
    own = own_environment(environ)
    return placement.detect(Config.from_environ(own), own).size


@pytest.mark.parametrize("name", sorted(LAUNCHED))
def test_a_child_of_a_rank_has_neither_its_place_nor_its_outputs(name: str) -> None:
    environ = claimed({**LAUNCHED[name], **OUTPUTS, **OTHER})
    assert own_environment(environ) == {**OTHER, VARIABLE: environ[VARIABLE]}


@pytest.mark.parametrize("name", sorted(LAUNCHED))
def test_the_rank_itself_keeps_all_also_after_exec(name: str) -> None:
    environ = claimed({**LAUNCHED[name], **OUTPUTS, **OTHER}, own=True)
    assert own_environment(environ) == environ


@pytest.mark.parametrize("text", ["", "x", "1", "[]", "{}", '{"pid":"x"}', '{"store":null}', '{"store":[1]}'])
def test_what_is_no_claim_is_none(text: str) -> None:
    environ = {**LAUNCHED["ringtune"], VARIABLE: text}
    assert own_environment(environ) == environ


@given(outer=launchers, inner=launchers, rank=st.integers(0, 2), more=st.integers(0, 3))
def test_a_launcher_inside_a_rank_deals_out_places(outer: str, inner: str, rank: int, more: int) -> None:
    if inner == "elastic":
        return
    size = str(3 + more)
    changed = {
        name: size if name.endswith(("SIZE", "NTASKS")) else str(rank)
        for name in LAUNCHED[inner]
        if name.endswith(("RANK", "SIZE", "PROCID", "NTASKS"))
    }
    local = {"LOCAL_WORLD_SIZE": size} if inner == "torchrun" else {}
    environ = {**claimed({**LAUNCHED[outer], **OUTPUTS}), **LAUNCHED[inner], **changed, **local}
    assert size_of(environ) == int(size)
    assert not any(name in own_environment(environ) for name in OUTPUTS)


def test_torchrun_of_as_many_ranks_inside_a_rank_is_a_job_of_its_own() -> None:
    environ = claimed(LAUNCHED["ringtune"], rank_and_size=(1, 1))
    assert size_of({**environ, **LAUNCHED["torchrun"]}) == 2


def test_what_a_rank_exports_for_torch_after_init_is_still_its_own_place() -> None:
    exported = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "h", "MASTER_PORT": "9"}
    assert size_of({**claimed(LAUNCHED["ringtune"], rank_and_size=(0, 1)), **exported}) == 1
    assert "RANK" not in own_environment({**claimed(LAUNCHED["ringtune"], rank_and_size=(0, 1)), **exported})


def test_outputs_that_a_launcher_in_between_names_count() -> None:
    environ = {**claimed({**LAUNCHED["ringtune"], **OUTPUTS}), "RINGTUNE_RUN_DIR": "/another"}
    assert own_environment(environ)["RINGTUNE_RUN_DIR"] == "/another"
    assert "HOROVOD_TIMELINE" not in own_environment(environ)


@pytest.mark.parametrize("name", sorted(LAUNCHED))
def test_a_childs_outputs_are_inherited_unless_a_launcher_names_others(name: str) -> None:
    rank = {**LAUNCHED[name], **OUTPUTS, **OTHER}
    assert not inherits_outputs(rank) and not inherits_outputs(claimed(rank, own=True))
    child = claimed(rank)
    assert inherits_outputs(child)
    assert inherits_outputs({**child, **LAUNCHED["torchrun"], "RANK": "0"}), "torchrun names none"
    for output in ({"RINGTUNE_RUN_DIR": "/another"}, {"RINGTUNE_TIMELINE": "another.json"}):
        assert not inherits_outputs({**child, **output})


def test_a_session_leaves_its_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")
    for name, value in LAUNCHED["ringtune"].items():
        monkeypatch.setenv(name, value)
    rank_process.publish(Placement(rank=1, size=2), ("127.0.0.1", 7), "j.1", "the secret")
    claim = rank_process._read(os.environ)
    assert claim is not None and claim.is_own()
    assert (claim.rank, claim.size, claim.store, claim.job) == (1, 2, ("127.0.0.1", 7), "j.1")
    assert own_environment(os.environ) == dict(os.environ)


def test_every_launchers_variables_are_in_the_table() -> None:
    named = {name for names in LAUNCHER_VARIABLES.values() for name in names}
    assert not {name for variables in LAUNCHED.values() for name in variables} - named
