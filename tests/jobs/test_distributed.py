"""ringtune as a backend of torch.distributed, beside Gloo where both can do it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.jobs.cases import group as group_cases
from tests.jobs.cases import hook as hook_cases
from tests.jobs.cases import part as part_cases
from tests.jobs.launching import STARVED_S, Job

SIZES = [2, 3]
PARTS = [
    (what, dtype)
    for what in part_cases.CASES
    for dtype in ("float32", "int64", "uint8", "complex64")
    # Gloo gathers no complex numbers.
    if (what, dtype) != ("gather", "complex64")
]


def environ(size: int) -> dict[str, str]:
    return {"TEST_RANK": "{rank}", "TEST_SIZE": str(size)}


class Groups:
    """One job per size, with the world open, for all tests of this module."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._jobs: dict[int, Job] = {}

    def __call__(self, size: int) -> Job:
        if size not in self._jobs:
            self._jobs[size] = Job(size, self._folder, environ(size))
            found = self._jobs[size].run(
                group_cases.open_group, backend="ringtune", store=str(self._folder / f"store-{size}")
            )
            assert found == [(rank, size) for rank in range(size)]
        return self._jobs[size]

    def close(self) -> None:
        for job in self._jobs.values():
            assert job.run(group_cases.close_group) == [False] * job.size
            job.__exit__()


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Any:
    groups = Groups(tmp_path_factory.mktemp("groups"))
    yield groups
    groups.close()


def reduced(size: int, count: int, op: str) -> list[float]:
    columns = [[i + 10 * rank for rank in range(size)] for i in range(count)]
    how: dict[str, Callable[[list[int]], float]] = {
        "SUM": sum, "MIN": min, "MAX": max, "AVG": lambda values: sum(values) / len(values),
        "PRODUCT": lambda values: values[0] * values[1] * (values[2] if len(values) > 2 else 1),
    }  # fmt: skip
    return [how[op](column) for column in columns]


@pytest.mark.parametrize("size", SIZES, scope="module")
@pytest.mark.parametrize("op", ["SUM", "MIN", "MAX", "AVG", "PRODUCT"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("strided", [False, True])
def test_all_reduce(strided: bool, dtype: str, op: str, size: int, group: Groups) -> None:
    found = group(size).run(group_cases.all_reduce, dtype=dtype, op=op, count=4, strided=strided)
    expected = reduced(size, 8 if strided else 4, op)[:: 2 if strided else 1]
    if dtype == "int64":
        expected = [int(value) for value in expected]
    assert all(row == pytest.approx(expected) for row in found)
    assert all(row == found[0] for row in found)


@pytest.mark.parametrize("size", SIZES, scope="module")
def test_asynchronous_works_in_any_order(size: int, group: Groups) -> None:
    base = reduced(size, 5, "SUM")
    for row in group(size).run(group_cases.asynchronous):
        assert row == [[value + size * index for value in base] for index in range(10)]


@pytest.mark.parametrize("size", SIZES, scope="module")
@pytest.mark.parametrize("asynchronously", [False, True])
def test_a_call_that_blocks_is_done_when_it_returns(asynchronously: bool, size: int, group: Groups) -> None:
    for values, done in group(size).run(group_cases.waited, asynchronously=asynchronously):
        assert values == [size] * 3
        assert done != asynchronously


@pytest.mark.parametrize("size", SIZES, scope="module")
@pytest.mark.parametrize("root", [0, 1])
def test_collectives_with_a_root(root: int, size: int, group: Groups) -> None:
    for rank, found in enumerate(group(size).run(group_cases.rooted, root=root)):
        assert found["broadcast"] == [10 * root + i for i in range(3)]
        assert found["reduce"] == (reduced(size, 3, "SUM") if rank == root else [10 * rank + i for i in range(3)])
        assert found["gather"] == ([[10 * r, 10 * r + 1] for r in range(size)] if rank == root else None)
        assert found["scatter"] == [rank, rank]


@pytest.mark.parametrize("size", SIZES, scope="module")
@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "bfloat16", "float32", "float64", "int64", "complex64"])
@pytest.mark.parametrize("count", [1, 1000, 300_000])
def test_a_broadcast_is_exact_to_the_bit(count: int, dtype: str, size: int, group: Groups) -> None:
    assert group(size).run(part_cases.every_bit, dtype=dtype, count=count, root=1) == [True] * size


@pytest.mark.parametrize("size", SIZES, scope="module")
def test_monitored_barrier(size: int, group: Groups) -> None:
    assert group(size).run(group_cases.guarded, late=False) == ["all came"] * size


def test_a_monitored_barrier_says_that_somebody_did_not_come_and_the_group_goes_on(group: Groups) -> None:
    first, second = group(2).run(group_cases.guarded, late=True)
    assert "was not done within the 0.2 s of wait(timeout) and waits for rank 1; it goes on" in first
    assert second == "late"
    assert group(2).run(group_cases.guarded, late=False) == ["all came"] * 2


@pytest.mark.parametrize("size", SIZES, scope="module")
def test_collectives_of_everyone(size: int, group: Groups) -> None:
    for rank, found in enumerate(group(size).run(group_cases.everyone)):
        assert found["all_gather"] == [[[10 * r, 10 * r + 1], [10 * r + 2, 10 * r + 3]] for r in range(size)]
        assert found["all_gather_single"] == [10 * r + i for r in range(size) for i in range(2)]
        assert found["reduce_scatter"] == [size * rank + sum(range(size))] * 2
        begin = 6 * rank
        assert found["reduce_scatter_single"] == [
            [size * (begin + 3 * row + column) for column in range(3)] for row in range(2)
        ]
        assert found["all_to_all"] == [[10 * r + rank] * (r + 1) for r in range(size)]
        assert found["all_to_all_single"] == [[r, r] for r in range(size) for _ in range(r)]
        assert found["objects"] == [{"rank": r} for r in range(size)]


@pytest.mark.parametrize("size", SIZES, scope="module")
@pytest.mark.parametrize(("what", "dtype"), PARTS)
@pytest.mark.parametrize("strided", [False, True])
def test_parts_are_those_of_gloo(strided: bool, what: str, dtype: str, size: int, group: Groups) -> None:
    for ours, theirs in group(size).run(part_cases.beside_gloo, what=what, dtype=dtype, strided=strided):
        assert ours == theirs


@pytest.mark.parametrize("size", SIZES, scope="module")
def test_reduce_scatter_of_tensors_of_different_sizes(size: int, group: Groups) -> None:
    for rank, found in enumerate(group(size).run(part_cases.uneven_reduce_scatter)):
        assert found == [10 * rank * size + sum(range(size))] * (rank + 1)


@pytest.mark.parametrize("size", SIZES, scope="module")
def test_parts_without_elements(size: int, group: Groups) -> None:
    assert group(size).run(part_cases.nothing_at_all) == [[[0, 3], [0]]] * size


@pytest.mark.parametrize("size", SIZES, scope="module")
@pytest.mark.parametrize("how", ["none", "unused", *hook_cases.HOOKS])
def test_hooks_of_ddp_learn_as_on_gloo(how: str, size: int, group: Groups) -> None:
    for ours, theirs in group(size).run(hook_cases.beside_gloo, how=how, steps=12):
        assert ours == pytest.approx(theirs, abs=1e-5)
        assert len(set(ours)) == 12


@pytest.mark.parametrize("size", SIZES, scope="module")
@pytest.mark.parametrize("how", hook_cases.CHAINED)
def test_hooks_that_start_more_when_the_first_is_done(how: str, size: int, group: Groups) -> None:
    # On Gloo such hooks hang: its threads wait for one another.
    found = group(size).run(hook_cases.chained, how=how, steps=12)
    assert all(row == found[0] for row in found)
    plain, _ = group(size).run(hook_cases.beside_gloo, how="none", steps=12)[0]
    assert found[0] == pytest.approx(plain, abs=1e-5 if how == "twice" else 0.1)


def test_ctrl_c_interrupts_backward_and_the_group_goes_on(group: Groups) -> None:
    job = group(2)
    job.start(hook_cases.interrupted_backward)
    job.ranks[0].line_with("in backward")
    time.sleep(0.2)
    job.ranks[0].signal(signal.SIGINT)
    sent_at = time.monotonic()
    (came_at,), (other,) = job.collect()
    assert 0 < came_at - sent_at < 0.5 + STARVED_S
    assert other == 0.0
    assert group(2).run(group_cases.all_reduce, dtype="float32", op="SUM", count=2, strided=False)


def test_splits_that_disagree_are_named_and_the_group_goes_on(group: Groups) -> None:
    for rank, said in enumerate(group(2).run(part_cases.splits_that_disagree)):
        assert f"rank 0 sends 1 elements to rank {rank}, which expects 2" in said
    assert group(2).run(part_cases.nothing_at_all)


def test_complex_tensors(group: Groups) -> None:
    expected = [[value, -value] for value in reduced(2, 3, "SUM")]
    assert group(2).run(group_cases.complex_sum) == [expected] * 2


@pytest.mark.parametrize("size", SIZES, scope="module")
@pytest.mark.parametrize("tag_first", [1, 2])
def test_send_and_receive_by_tag(tag_first: int, size: int, group: Groups) -> None:
    for rank, found in enumerate(group(size).run(group_cases.passed_around, tag_first=tag_first)):
        before = 10 * ((rank - 1) % size)
        assert found == [before + 1, before + 2, before + 2, before + 3]


def test_ping_pong(group: Groups) -> None:
    assert group(2).run(group_cases.ping_pong, count=20) == [40.0, 39.0]


@pytest.mark.parametrize("size", SIZES, scope="module")
def test_sub_groups(size: int, group: Groups) -> None:
    for rank, found in enumerate(group(size).run(group_cases.sub_groups)):
        members = [r for r in range(size) if r % 2 == rank % 2]
        assert found == [sum(members), size, members.index(rank), len(members)]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("op", "ringtune reduces with SUM, AVG, MIN, MAX, PRODUCT, BAND, BOR and BXOR"),
        ("bits", "expected whole numbers"),
        ("splits", "larger than the tensors"),
    ],
)
def test_what_cannot_be_done_is_said_and_the_group_goes_on(what: str, words: str, group: Groups) -> None:
    assert all(words in found for found in group(2).run(group_cases.wrong, what=what))
    assert group(2).run(group_cases.all_reduce, dtype="float32", op="SUM", count=2, strided=False)


def losses(tmp_path: Path, kind: str, backend: str, size: int) -> list[float]:
    with Job(size, tmp_path, environ(size)) as job:
        found = job.run(
            group_cases.train, kind=kind, backend=backend, store=str(tmp_path / f"{backend}-{kind}"), steps=50
        )
    assert all(row == found[0] for row in found)
    result: list[float] = found[0]
    return result


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["ddp", "fsdp", "zero"])
def test_losses_equal_gloo_s(kind: str, size: int, tmp_path: Path) -> None:
    ours = losses(tmp_path, kind, "ringtune", size)
    theirs = losses(tmp_path, kind, "gloo", size)
    assert ours == pytest.approx(theirs, abs=1e-6)
    assert len(set(ours)) == 50


@pytest.mark.parametrize("size", SIZES)
def test_without_a_launcher_the_hook_reduces_over_the_ranks_of_torch(size: int, tmp_path: Path) -> None:
    """As under ``torch.multiprocessing.spawn``: only ``init_process_group`` is told which rank this is."""
    hooked, plain = losses(tmp_path, "hook", "gloo", size), losses(tmp_path, "ddp", "gloo", size)
    assert hooked == pytest.approx(plain, abs=1e-6)


def test_without_a_launcher_init_takes_the_ranks_of_torch_each_time(tmp_path: Path) -> None:
    with Job(3, tmp_path, environ(3)) as job:
        found = job.run(group_cases.init_again, store=str(tmp_path / "store"), times=3)
    assert found == [[(rank, 3, 6.0)] * 3 for rank in range(3)]


def test_a_hook_of_another_job_than_torch_s_says_so(tmp_path: Path) -> None:
    apart = {**environ(2), "RINGTUNE_RANK": "0", "RINGTUNE_SIZE": "1"}
    with Job(2, tmp_path, apart) as job:
        found = job.attempt(group_cases.train, kind="hook", backend="gloo", store=str(tmp_path / "store"), steps=1)
    assert all("torch.distributed has 2 ranks, ringtune's job 1" in failure.message for failure in found)


@pytest.mark.parametrize("size", SIZES)
def test_losses_of_the_distributed_optimizer_equal_ddp_s_on_gloo(size: int, tmp_path: Path) -> None:
    ours = losses(tmp_path, "hvd", "ringtune", size)
    theirs = losses(tmp_path, "ddp", "gloo", size)
    assert ours == pytest.approx(theirs, abs=1e-6)
    assert len(set(ours)) == 50


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("backend", "elsewhere"), [("cpu:ringtune", ""), ("cpu:ringtune,cuda:gloo", ""), ("cpu:ringtune,meta:fake", "meta")]
)
def test_each_device_has_its_backend(backend: str, elsewhere: str, size: int, tmp_path: Path) -> None:
    with Job(size, tmp_path, environ(size)) as job:
        found = job.run(part_cases.mixed, backend=backend, elsewhere=elsewhere, store=str(tmp_path / "store"))
    devices = [pair.split(":")[0] for pair in backend.split(",")]
    work = {"elsewhere": ["FakeWork", True]} if elsewhere else {}
    sums = [reduced(size, 3, "SUM"), list(range(size))]
    assert found == [{"devices": devices, "world": sums, "group": sums, **work}] * size


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch can make this group here")
def test_without_a_gpu_torch_refuses_its_backend_in_words(tmp_path: Path) -> None:
    with Job(2, tmp_path, environ(2)) as job:
        found = job.run(part_cases.refused, backend="cpu:ringtune,cuda:nccl", store=str(tmp_path / "store"))
    assert all("NCCL" in said for said in found)


def test_a_group_in_a_world_of_another_backend(tmp_path: Path) -> None:
    with Job(2, tmp_path, environ(2)) as job:
        for theirs, ours in job.run(part_cases.beside_another_world, store=str(tmp_path / "store")):
            assert ours == theirs == reduced(2, 3, "SUM")


def torchrun(tmp_path: Path, body: str, **variables: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(body, encoding="utf-8")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [*launcher, str(script)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
    )


def test_the_profiler_sees_every_operation_once(group: Groups) -> None:
    steps = 4
    for rank, found in enumerate(group(2).run(group_cases.profiled, steps=steps)):
        reduced = found.pop("ringtune:all_reduce")
        assert sorted(reduced) == sorted([[[64]]] * 3 * steps + [[[6]]] * 2)
        messages = {0: {"ringtune:send": [[[6]]]}, 1: {"ringtune:recv": [[[6]]]}}.get(rank, {})
        barrier = found.pop("ringtune:barrier")
        assert len(barrier) == 1 and "open" not in barrier
        assert found == {"ringtune:broadcast": [[[6]]], "ringtune:all_gather": [[[6]]], **messages}


SCRIPT = """
import os, sys, torch, torch.distributed as dist
import ringtune.torch as hvd
import ringtune.torch.distributed as rd
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("{backend}")
if "{backend}" == "gloo":
    hvd.init()
torch.manual_seed(0)
model = DDP(torch.nn.Linear(10, 1))
if "{backend}" == "gloo":
    model.register_comm_hook(None, hvd.ddp_hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    optimizer.zero_grad()
    model(torch.full((4, 10), float(dist.get_rank() + step))).sum().backward()
    optimizer.step()
weights = [torch.zeros(1, 10) for _ in range(dist.get_world_size())]
dist.all_gather(weights, model.module.weight.detach())
assert all(torch.equal(one, weights[0]) for one in weights)
if dist.get_rank() == 0:
    print("weight", round(weights[0].sum().item(), 4), "collectives", hvd.size())
dist.destroy_process_group()
if "{backend}" == "gloo":
    # A thread of torch's Gloo may want the GIL while the interpreter ends, and then aborts the process: so does this
    # script without ringtune, more often than not (torch 2.13).
    hvd.shutdown()
    sys.stdout.flush()
    os._exit(0)
"""


Backend = tuple[subprocess.CompletedProcess[str], Path]


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Backend:
    """The script under torchrun with ringtune as the backend, and the timeline that it was asked for."""
    folder = tmp_path_factory.mktemp("torchrun")
    trace = folder / "trace.json"
    return torchrun(folder, SCRIPT.replace("{backend}", "ringtune"), RINGTUNE_TIMELINE=str(trace)), trace


@pytest.mark.slow
def test_torchrun_and_the_hook_give_the_same(tmp_path: Path, backend: Backend) -> None:
    hook = torchrun(tmp_path, SCRIPT.replace("{backend}", "gloo"))
    assert backend[0].returncode == 0, backend[0].stderr
    assert hook.returncode == 0, hook.stderr
    assert backend[0].stdout == hook.stdout != ""


def test_ddp_users_get_timelines(backend: Backend) -> None:
    done, trace = backend
    assert done.returncode == 0, done.stderr
    text = trace.read_text(encoding="utf-8")
    assert text.count("allreduce.") > 10
