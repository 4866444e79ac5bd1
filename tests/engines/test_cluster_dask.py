"""`ringtune.dask.run` on a cluster of worker processes on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ringtune.errors import InvalidArgument, RankFailed, Timeout
from tests.engines import cases

distributed = pytest.importorskip(
    "distributed", reason="distributed is not installed; `make test-engines` makes an environment"
)

import dask  # noqa: E402

import ringtune.dask  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = str(tmp_path_factory.mktemp("dask"))
    arguments = {"n_workers": 2, "threads_per_worker": 2, "dashboard_address": None, "local_directory": folder}
    # Dask gives a worker up that its nanny has not started again within 15 s, which a starved machine may need.
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "240s"}),
        distributed.LocalCluster(host="127.0.0.1", **arguments) as cluster,
        distributed.Client(cluster) as found,
    ):
        yield found


def test_training_reaches_the_loss_of_one_process(client: Any, alone: float) -> None:
    found = ringtune.dask.run(client, cases.train, args=["digits"])
    assert [one["rank"] for one in found] == [0, 1] and len({one["pid"] for one in found}) == 2
    assert found[0]["loss"] == found[1]["loss"] == pytest.approx(alone, rel=1e-9)
    assert ringtune.dask.run(client, cases.reduce_in_torch) == [3.0, 3.0]
    assert [one["WORD"] for one in ringtune.dask.run(client, cases.place, env={"WORD": "ring"})] == ["ring"] * 2
    assert client.submit(cases.place, 1, pure=False).result()["RINGTUNE_SECRET"] is None


def test_the_rank_that_fails_is_named(client: Any) -> None:
    with pytest.raises(RankFailed, match=r"rank 1 on .* raised KeyError: 'no such row on rank 1'") as caught:
        ringtune.dask.run(client, cases.fail_on, args=(1,))
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_killed_worker_is_named_and_comes_back(
    client: Any, tmp_path: Path, text_of: Callable[[Path], str], noticed: Callable[[Path], None]
) -> None:
    with pytest.raises(RankFailed, match=r"ended without a result: rank 1: Dask has lost its worker tcp://127.0.0.1"):
        ringtune.dask.run(client, cases.die_on, args=(1, str(tmp_path)))
    assert "PeerLost" in text_of(tmp_path / "error-0")
    noticed(tmp_path)
    assert len(ringtune.dask.run(client, cases.place, num_proc=2, start_timeout=240)) == 2


def test_a_job_is_started_again_from_its_last_commit(client: Any, tmp_path: Path, alone: float) -> None:
    found = ringtune.dask.run(
        client, cases.train_elastically, (str(tmp_path), 7), num_proc=2, restarts=1, start_timeout=240
    )
    assert found[0]["loss"] == found[1]["loss"] == pytest.approx(alone, rel=1e-9)
    assert (tmp_path / "starts").read_text().splitlines() == ["0 2", "7 2"]


def test_the_timeline_of_both_ranks_is_merged(client: Any, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    env = {"RINGTUNE_TIMELINE": str(trace), "RINGTUNE_RUN_DIR": str(tmp_path / "run")}
    ringtune.dask.run(client, cases.train, num_proc=2, env=env)
    cases.merged(trace)
    cases.seen_in_the_dashboard(tmp_path / "run")


def test_more_ranks_than_workers(client: Any) -> None:
    with pytest.raises(Timeout, match="9 ranks need 9 workers, and the cluster has 2 after 1 s"):
        ringtune.dask.run(client, cases.place, num_proc=9, start_timeout=1)


def test_workers_of_one_process_are_refused() -> None:
    arguments = {"n_workers": 2, "processes": False, "dashboard_address": None}
    with (
        distributed.LocalCluster(**arguments) as cluster,
        distributed.Client(cluster) as found,
        pytest.raises(InvalidArgument, match="threads of one process"),
    ):
        ringtune.dask.run(found, cases.place)


def test_wrong_arguments(client: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"expected a distributed.Client, got str"):
        ringtune.dask.run("tcp://127.0.0.1:8786", cases.place)
    with pytest.raises(InvalidArgument, match="num_proc=0"):
        ringtune.dask.run(client, cases.place, num_proc=0)
    with pytest.raises(InvalidArgument, match="expected a function"):
        ringtune.dask.run(client, "train.py")
