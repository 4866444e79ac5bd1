from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from ringtune.bootstrap import address_file, placement
from ringtune.bootstrap.address_file import AddressFile
from ringtune.bootstrap.deadline import Deadline
from ringtune.bootstrap.interfaces import any_address
from ringtune.bootstrap.placement import Placement
from ringtune.bootstrap.rendezvous import Rendezvous, bind_host
from ringtune.config import Config
from ringtune.errors import ConfigError, RingtuneError, Timeout

MPI = Placement(rank=1, size=2, local_rank=1, local_size=2, launcher="openmpi", job="ns")


def find(**environ: Any) -> tuple[str, int]:
    variables = {name: str(value) for name, value in environ.items()}
    config = Config.from_environ(variables)
    return Rendezvous().find(placement.detect(config, variables), config, variables)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("host", "bind"),
    [
        ("localhost", "127.0.0.1"),
        ("127.0.0.1", "127.0.0.1"),
        ("10.0.0.2", "10.0.0.2"),
        ("::1", "::1"),
        ("n1", any_address()),
    ],
)
def test_where_a_store_listens(host: str, bind: str) -> None:
    assert bind_host(host) == bind


def test_the_given_store_is_used(fake: None) -> None:
    assert find(RINGTUNE_RANK=1, RINGTUNE_SIZE=2, RINGTUNE_STORE="node1:29400") == ("node1", 29400)


def test_ranks_by_hand_need_a_store() -> None:
    with pytest.raises(ConfigError, match="RINGTUNE_STORE is not"):
        find(RINGTUNE_RANK=1, RINGTUNE_SIZE=2)


def test_several_hosts_under_mpirun_say_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "mpi4py", None)
    with pytest.raises(ConfigError, match=r"RINGTUNE_STORE=host:port .*MASTER_ADDR and MASTER_PORT.*mpi4py"):
        find(PMI_RANK=1, PMI_SIZE=4, MPI_LOCALRANKID=1, MPI_LOCALNRANKS=2)


def test_torchrun_without_master_says_so() -> None:
    with pytest.raises(ConfigError, match="MASTER_ADDR is not"):
        find(RANK=1, WORLD_SIZE=2, LOCAL_RANK=1, LOCAL_WORLD_SIZE=2)


def test_job_keys_count_sessions_of_a_store() -> None:
    meeting = Rendezvous()
    here, there = ("here", 1), ("there", 1)
    named, nameless = Placement(job="a"), Placement()
    keys = [meeting.job_key(named, here), meeting.job_key(named, here), meeting.job_key(nameless, there)]
    assert keys == ["a.1", "a.2", "job.1"]


def test_address_file_round_trip(temporary: Path) -> None:
    file = AddressFile.for_job(MPI, {})
    assert file.read() is None
    file.publish("127.0.0.1", 4711)
    assert AddressFile.for_job(MPI, {}).wait(1, Deadline.after_ns(0)) == ("127.0.0.1", 4711)
    assert [path.name for path in file.path.parent.iterdir()] == [file.path.name]
    file.remove()
    assert not file.path.exists()


def test_address_file_of_a_dead_process_does_not_count(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = AddressFile.for_job(MPI, {})
    file.publish("127.0.0.1", 4711)
    monkeypatch.setattr(address_file, "start_time", lambda pid: "another")
    assert file.read() is None


def test_waiting_for_the_address_is_bounded(temporary: Path) -> None:
    with pytest.raises(Timeout, match="rank 1: rank 0 did not publish"):
        AddressFile.for_job(MPI, {}).wait(1, Deadline.after_ns(50_000_000))


def test_jobs_have_files_of_their_own(temporary: Path) -> None:
    other = Placement(rank=1, size=2, launcher="openmpi", job="other")
    assert AddressFile.for_job(MPI, {}) != AddressFile.for_job(other, {})
    assert AddressFile.for_job(MPI, {}) == AddressFile.for_job(Placement(0, 2, launcher="openmpi", job="ns"), {})


def test_the_folder_is_private(temporary: Path) -> None:
    folder = address_file.private_folder()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o755)
    with pytest.raises(RingtuneError, match="mode 0700"):
        address_file.private_folder()


def test_start_time_of_this_process() -> None:
    assert int(address_file.start_time(os.getpid())) > 0
    assert address_file.start_time(2**22 + 1) == ""
