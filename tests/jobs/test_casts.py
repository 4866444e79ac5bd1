"""Compression on other ways than plain allreduce: DDP's hook, several ranks a host, RINGTUNE_CHECK, elastic states."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ringtune.torch as hvd
from tests.jobs.cases import cast as cast_cases
from tests.jobs.cases import common
from tests.jobs.cases import compression as compression_cases
from tests.jobs.launching import Job, variables

GetJob = Callable[..., Job]
UNIT = {"fp16": 2.0**-11, "bf16": 2.0**-8, "environment": 2.0**-8}


def beside_a_group(size: int) -> dict[str, str]:
    """Variables of ranks that open a process group of torch's as well."""
    return variables(size) | {"TEST_RANK": "{rank}", "TEST_SIZE": str(size)}


@pytest.mark.parametrize(("compression", "size"), [("none", 2), ("fp16", 2), ("bf16", 3), ("environment", 2)])
def test_the_ddp_hook_casts(compression: str, size: int, fresh: GetJob, tmp_path: Path) -> None:
    asked = {"RINGTUNE_COMPRESSION": "bf16" if compression == "environment" else "none"}
    job = fresh(size, join=False, environ={**beside_a_group(size), **asked})
    found = job.run(cast_cases.hooked, compression=compression, store=str(tmp_path / "store"))
    gradient = found[0][0]
    assert all(one == gradient for one, _ in found)
    parts = [own for _, own in found]
    wrong = [abs(value - sum(column) / size) for value, *column in zip(gradient, *parts, strict=True)]
    largest = max(max(own) for own in parts)
    assert max(wrong) <= largest * UNIT.get(compression, 2.0**-22) * (size + 1)
    assert (max(wrong) > 1e-5) == (compression != "none"), "it was not cast at all"


def test_the_environment_compresses_what_a_script_does_not(fresh: GetJob) -> None:
    """And leaves alone what a script asks for itself."""
    job = fresh(2, environ={**variables(2), "RINGTUNE_COMPRESSION": "bf16"})
    assert job.run(cast_cases.optimizers) == [("BF16Compressor", "FP16Compressor")] * 2


def test_the_ddp_hook_refuses_what_keeps_state(fresh: GetJob, tmp_path: Path) -> None:
    job = fresh(2, join=False, environ=beside_a_group(2))
    for said in job.run(cast_cases.hook_refuses, compression="topk", store=str(tmp_path / "store")):
        assert "expected None, Compression.fp16 or Compression.bf16" in said


@pytest.fixture(scope="module", params=["shm", "tcp"])
def hosts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """Four ranks on two hosts by name, which reduce within their hosts first."""
    environ = variables(4, transport="auto" if request.param == "shm" else "tcp", hierarchical_allreduce=1)
    with Job(4, tmp_path_factory.mktemp("hosts"), environ) as job:
        for number, rank in enumerate(job.ranks):
            mine = {name: value.replace("{rank}", str(number)) for name, value in environ.items()}
            rank.send(common.open_session, {"environ": {**mine, "RINGTUNE_HOSTNAME": f"host-{number // 2}"}})
        assert job.collect() == [((number, 4),) for number in range(4)]
        yield job


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("count", [1001, 300_007])
@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_hierarchical_casts_round_within_their_bound(compression: str, count: int, dtype: str, hosts: Job) -> None:
    bits = hosts.run(compression_cases.cast_sum, compression=compression, dtype=dtype, count=count)
    assert len(set(bits)) == 1


@pytest.mark.parametrize("op", ["Average", "Sum", "Max"])
@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_hierarchical_casts_of_small_integers_are_exact(compression: str, op: str, hosts: Job) -> None:
    hosts.run(compression_cases.cast_exact, compression=compression, dtype="float32", op=getattr(hvd, op))


@pytest.mark.parametrize("compression", ["bf16", "powersgd", "topk"])
def test_compressed_gradients_pass_the_check(compression: str, fresh: GetJob) -> None:
    job = fresh(3, environ=variables(3) | {"RINGTUNE_CHECK": "1"})
    assert job.run(cast_cases.checked, compression=compression, spoilt=False) == [["", "", ""]] * 3
    for said in job.run(cast_cases.checked, compression=compression, spoilt=True):
        assert said[0] == said[2] == ""
        assert "the gradient of 'given.2' differs between ranks" in said[1]
        assert "ranks 0, 2 agree; ranks 1 agree" in said[1]


@pytest.mark.parametrize("compression", ["fp16", "powersgd", "topk"])
def test_an_elastic_state_goes_back_to_the_residuals_of_its_commit(compression: str, job: GetJob) -> None:
    for first, second in job(2).run(cast_cases.restored, compression=compression):
        assert first == second
