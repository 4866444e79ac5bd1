"""What happens when ranks disagree, die, stop, leave or are interrupted."""

from __future__ import annotations

import re
import signal
import socket
import time
from collections.abc import Callable

import pytest

from tests.jobs.cases import common
from tests.jobs.cases import error as error_cases
from tests.jobs.launching import LOST_WITHIN_S, STARVED_S, Job, variables, wait_until
from tests.ports import free_port

GetJob = Callable[..., Job]
TRANSPORTS = pytest.mark.parametrize("transport", ["shm", "tcp"])

BOTH_VALUES = {
    "shape": (r"\[4, 3\]", r"\[5, 3\]"),
    "dtype": ("float32", "float64"),
    "op": ("Sum", "Max"),
    "prescale": ("1", "2"),
    "root": ("0", "1"),
    "columns": (r"3\]", r"4\]"),
    "postscale": ("1", "2"),
    "dimensions": (r"\[\*, 3\]", r"\[\*\]"),
    "broadcast shape": (r"\[4, 3\]", r"\[5, 3\]"),
    "broadcast dtype": ("float32", "float64"),
    "gathered dtype": ("float32", "float64"),
    "kind": ("(?i)allreduce", "(?i)broadcast"),
}


@TRANSPORTS
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("what", list(BOTH_VALUES))
def test_disagreement_is_an_error_on_every_rank_and_the_job_goes_on(
    what: str, size: int, transport: str, job: GetJob
) -> None:
    messages = job(size, transport).run(common.mismatch, what=what)
    for message in messages:
        assert message.startswith("Mismatch: ")
        assert re.search(r"\bw\b", message) and re.search(r"\b1\b", message), message
        assert all(re.search(value, message) for value in BOTH_VALUES[what]), message


@TRANSPORTS
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("what", common.STARTS)
def test_a_name_in_flight_cannot_be_used_twice(what: str, size: int, transport: str, job: GetJob) -> None:
    (kind, message), *others = job(size, transport).run(common.duplicate_name, what=what)
    assert kind == "InvalidArgument" and f"{what}.twice" in message
    assert others == [("", "")] * (size - 1)


@TRANSPORTS
@pytest.mark.parametrize("victim", [0, 1])
def test_an_error_inside_one_runtime_is_told_to_the_others_at_once(victim: int, transport: str, fresh: GetJob) -> None:
    found = fresh(3, transport=transport).run(error_cases.run_out_of_memory, victim=victim)
    for number, (kind, message, after_s) in enumerate(found):
        if number == victim:
            assert kind != "none"
            continue
        assert kind == "PeerLost", message
        assert re.search(rf"rank {victim} on host \S+ has ended by an error of its own: .*alloc", message), message
        assert after_s < LOST_WITHIN_S


@TRANSPORTS
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_killed_rank_is_noticed_within_two_seconds(victim: int, transport: str, fresh: GetJob) -> None:
    job = fresh(3, transport=transport)
    job.start(common.until_failure)
    time.sleep(0.3)
    job.ranks[victim].signal(signal.SIGKILL)
    killed_at = time.monotonic()
    for number, result in enumerate(job.collect()):
        if number == victim:
            assert result is None
            continue
        ((kind, message, raised_at),) = result
        assert kind == "PeerLost" and re.match(
            rf"rank {victim} on host \S+ died without .* \(during 'allreduce.loop' \(allreduce\)\)$", message
        ), message
        assert raised_at - killed_at < LOST_WITHIN_S


@TRANSPORTS
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_killed_while_all_are_idle(victim: int, transport: str, fresh: GetJob) -> None:
    job = fresh(2, transport=transport)
    job.run(common.wait_for_all, name="x")
    job.ranks[victim].signal(signal.SIGKILL)
    time.sleep(0.5)
    survivor = job.ranks[1 - victim]
    survivor.send(common.after_failure, {})
    ((kind, took_s),) = survivor.answer()
    assert kind == "PeerLost" and took_s < LOST_WITHIN_S


@TRANSPORTS
@pytest.mark.parametrize("repeated", [False, True], ids=["idle", "reducing"])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_frozen_rank_is_an_error_that_names_it(victim: int, repeated: bool, transport: str, fresh: GetJob) -> None:
    """Rank 0 too, for which the others would else wait for ever: all of them negotiate through it."""
    limit_s = 2.0
    job = fresh(3, transport=transport, liveness_timeout=limit_s)
    job.run(common.wait_for_all, name="x")
    if repeated:
        job.start(common.until_failure)
        time.sleep(0.3)
    job.ranks[victim].signal(signal.SIGSTOP)
    stopped_at = time.monotonic()
    survivors = [rank for number, rank in enumerate(job.ranks) if number != victim]
    for rank in [] if repeated else survivors:
        rank.send(common.until_failure, {})
    for rank in survivors:
        ((kind, message, raised_at),) = rank.answer()
        assert kind == "PeerLost"
        assert re.search(rf"rank {victim} on host \S+ has given no sign of life for 2 s", message), message
        assert "allreduce.loop" in message, message
        assert raised_at - stopped_at < limit_s + LOST_WITHIN_S


def freeze_rank_0(job: Job) -> list[tuple[str, str, float]]:
    """Freeze it while all reduce; return what the others got: kind and text of the error, seconds since."""
    job.run(common.wait_for_all, name="x")
    job.start(common.until_failure)
    time.sleep(0.3)
    job.ranks[0].signal(signal.SIGSTOP)
    stopped_at = time.monotonic()
    answers = [rank.answer()[0] for rank in job.ranks[1:]]
    return [(kind, message, raised_at - stopped_at) for kind, message, raised_at in answers]


def test_the_liveness_timeout_of_rank_0_counts_on_all_ranks(fresh: GetJob) -> None:
    for kind, message, after_s in freeze_rank_0(fresh(3, liveness_timeout="2e{rank}")):
        assert kind == "PeerLost" and "has given no sign of life for 2 s" in message, message
        assert after_s < 2.0 + LOST_WITHIN_S


@pytest.mark.long
def test_a_frozen_rank_0_is_an_error_that_names_it_without_any_setting(fresh: GetJob) -> None:
    for kind, message, after_s in freeze_rank_0(fresh(3)):
        assert kind == "PeerLost"
        assert re.match(
            rf"rank 0 on host {re.escape(socket.gethostname())} has given no sign of life for 60 s.*'allreduce.loop'",
            message,
        ), message
        assert after_s < 60.0 + LOST_WITHIN_S


@TRANSPORTS
def test_a_rank_that_waits_for_a_killed_one(transport: str, fresh: GetJob) -> None:
    job = fresh(2, transport=transport)
    job.ranks[0].send(common.until_failure, {})
    time.sleep(0.3)
    job.ranks[1].signal(signal.SIGKILL)
    killed_at = time.monotonic()
    ((kind, _, raised_at),) = job.ranks[0].answer()
    assert kind == "PeerLost" and raised_at - killed_at < LOST_WITHIN_S


@TRANSPORTS
@pytest.mark.parametrize("stopped", [False, True], ids=["late", "stopped"])
def test_a_stall_names_tensor_missing_ranks_and_age(stopped: bool, transport: str, fresh: GetJob) -> None:
    job = fresh(3, transport=transport, stall_check_time_seconds=0.5)
    job.run(common.wait_for_all, name="warm")
    if stopped:
        job.ranks[1].signal(signal.SIGSTOP)
    for number in (0, 2):
        job.ranks[number].send(common.wait_for_all, {"name": "late"})
    warning = job.ranks[0].line_with(r"allreduce\.late")
    job.ranks[1].signal(signal.SIGCONT)
    job.ranks[1].send(common.wait_for_all, {"name": "late"})
    assert job.collect() == [([3.0, 3.0],)] * 3
    assert re.search(r"\b1\b", warning) and re.search(r"\d+(\.\d+)? ?(s|ms)\b", warning), warning


def test_a_stall_can_end_the_job(fresh: GetJob) -> None:
    job = fresh(2, stall_check_time_seconds=0.2, stall_shutdown_time_seconds=0.6)
    job.ranks[0].send(common.until_failure, {})
    ((_, message, _),) = job.ranks[0].answer()
    assert "allreduce.loop" in message


def test_missing_ranks_are_named_at_start(fresh: GetJob) -> None:
    job = fresh(3, join=False, start_timeout=1)
    for number in (0, 2):
        job.ranks[number].send(common.open_session, {})
    for number in (0, 2):
        failure = job.ranks[number].answer()
        assert failure.kind[0] == "InitializationFailed"
        assert re.match(r"Horovod initialization failed: .*\b1\b", failure.message), failure.message


def test_ctrl_c_interrupts_init(fresh: GetJob) -> None:
    port = free_port()
    job = fresh(2, join=False, environ=variables(2) | {"RINGTUNE_STORE": f"127.0.0.1:{port}"})
    job.ranks[0].send(common.open_session, {})
    wait_until(lambda: listens(port))  # init() serves the store, and then waits for rank 1
    time.sleep(0.2)
    job.ranks[0].signal(signal.SIGINT)
    sent_at = time.monotonic()
    failure = job.ranks[0].answer()
    assert failure.kind[0] == "KeyboardInterrupt" and failure.at_s - sent_at < 0.5 + STARVED_S


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@TRANSPORTS
def test_ctrl_c_interrupts_a_wait_and_the_job_goes_on(transport: str, fresh: GetJob) -> None:
    job = fresh(2, transport=transport)
    job.ranks[0].send(common.interrupted_wait, {"name": "w"})
    job.ranks[0].line_with("waiting")
    time.sleep(0.2)
    job.ranks[0].signal(signal.SIGINT)
    sent_at = time.monotonic()
    (came_at,) = job.ranks[0].answer()
    assert came_at - sent_at < 0.5 + STARVED_S
    job.ranks[0].send(common.finish_kept, {})
    job.ranks[1].send(common.wait_for_all, {"name": "w"})
    assert job.collect() == [([2.0, 2.0],)] * 2


@TRANSPORTS
@pytest.mark.parametrize("last", [0, 1, 2])
def test_ranks_may_leave_at_different_times(last: int, transport: str, fresh: GetJob) -> None:
    job = fresh(3, transport=transport)
    for number, rank in enumerate(job.ranks):
        rank.send(common.leave, {"delay_s": 0.6 if number == last else 0.0})
    took = [result[0] for result in job.collect()]
    assert max(took) < 3 + STARVED_S


@TRANSPORTS
def test_init_shutdown_init(transport: str, fresh: GetJob) -> None:
    job = fresh(3, join=False, transport=transport)
    assert job.run(common.many_sessions, rounds=5) == [[3.0] * 5] * 3


def test_one_rank_joins_and_leaves_often(fresh: GetJob) -> None:
    assert fresh(1, join=False, environ={}).run(common.many_sessions, rounds=5) == [[1.0] * 5]


@pytest.mark.slow
@pytest.mark.parametrize("recording", [False, True], ids=["quiet", "recording"])
@TRANSPORTS
def test_an_idle_rank_uses_less_than_a_hundredth_of_a_core(
    transport: str, recording: bool, fresh: GetJob, tmp_path: object
) -> None:
    settings = {"run_dir": f"{tmp_path}/run", "timeline": f"{tmp_path}/t.json"} if recording else {}
    job = fresh(3, transport=transport, **settings)
    assert max(job.run(common.cpu_while_idle, seconds=3.0)) < 0.01


LAUNCHERS = {
    "by hand": variables(2),
    "master": {"OMPI_COMM_WORLD_RANK": "{rank}", "OMPI_COMM_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"},
    "mpirun": {
        "OMPI_COMM_WORLD_RANK": "{rank}", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "{rank}",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "test@1",
    },
    "hydra": {"PMI_RANK": "{rank}", "PMI_SIZE": "2", "MPI_LOCALRANKID": "{rank}", "MPI_LOCALNRANKS": "2"},
    "srun": {
        "SLURM_PROCID": "{rank}", "SLURM_NTASKS": "2", "SLURM_LOCALID": "{rank}", "SLURM_TASKS_PER_NODE": "2",
        "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0",
    },
    "horovodrun": {
        "HOROVOD_RANK": "{rank}", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": "{rank}", "HOROVOD_LOCAL_SIZE": "2",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": "1",
    },
    "torchrun without agent": {
        "RANK": "{rank}", "WORLD_SIZE": "2", "LOCAL_RANK": "{rank}", "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "t", "TORCHELASTIC_USE_AGENT_STORE": "False",
    },
    "srun on several hosts": {
        "SLURM_PROCID": "{rank}", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "SLURM_TASKS_PER_NODE": "1(x2)",
        "SLURM_NODEID": "{rank}", "SLURM_JOB_NODELIST": "localhost,other", "SLURM_STEP_ID": "0",
    },
}  # fmt: skip


@pytest.mark.parametrize("launcher", list(LAUNCHERS))
def test_ranks_of_each_launcher_find_each_other_twice(launcher: str, fresh: GetJob) -> None:
    environ = dict(LAUNCHERS[launcher])
    if "MASTER_ADDR" in environ:
        environ["MASTER_PORT"] = variables(2)["RINGTUNE_STORE"].rpartition(":")[2]
    if "SLURM_JOB_NODELIST" in environ:  # the port is made of this number: another job of this host has another
        environ["SLURM_JOB_ID"] = variables(2)["RINGTUNE_STORE"].rpartition(":")[2]
    job = fresh(2, join=False, environ=environ)
    for _ in range(2):
        assert job.run(common.join_and_sum) == [(0, 2, 3.0), (1, 2, 3.0)]
