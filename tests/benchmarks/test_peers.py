from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ringtune.benchmarks.harness import environments, peers
from ringtune.benchmarks.harness.environments import Setting, linked_benchmarks
from ringtune.benchmarks.harness.peers import PEERS, Ground, PeerSpec, Selection, job_plans, select_peers
from ringtune.benchmarks.netlab.network import Host, Network
from ringtune.benchmarks.training.launching import training_plans
from ringtune.errors import UsageError


def test_ringtune_alone() -> None:
    assert select_peers("", "allreduce") == Selection(("ringtune",), {})


def test_a_peer_may_send_several_contenders() -> None:
    chosen = select_peers("gloo,gloo", "gradients")
    assert chosen.contenders == ("ringtune", "gloo", "gloo-buckets", "gloo-bucket-views")
    assert chosen.peers == (PEERS["gloo"],)


@pytest.mark.parametrize(
    ("name", "benchmark"), [("openmp", "allreduce"), ("ddp-gloo", "allreduce"), ("gloo", "resnet")]
)
def test_unknown_peer_lists_the_known(name: str, benchmark: str) -> None:
    with pytest.raises(UsageError, match=f"unknown peer '{name}' for 'ringtune bench {benchmark}'; known: "):
        select_peers(name, benchmark)


def test_an_absent_peer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = PeerSpec("other", {"allreduce": {"other": "other"}}, lambda: "it is not installed")
    monkeypatch.setitem(peers.PEERS, "other", spec)
    chosen = select_peers("other,gloo", "allreduce")
    assert (chosen.contenders, chosen.absent) == (("ringtune", "gloo"), {"other": "it is not installed"})


def test_an_mpi_that_is_not_installed_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(environments, "peers_folder", lambda: tmp_path)
    chosen = select_peers("all", "allreduce")
    assert chosen.contenders == ("ringtune", "gloo")
    known = {
        name
        for name, spec in PEERS.items()
        if "allreduce" in spec.contenders and not spec.named_only and "cpu" in spec.devices
    }
    assert set(chosen.absent) == known - {"gloo"}
    assert chosen.absent["impi"] == f"there is no {tmp_path / 'impi'}; 'make bench-peers' installs it"


def test_on_other_hosts_only_torch_peers_take_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "impi").mkdir()
    (tmp_path / "impi" / "complete").touch()
    monkeypatch.setattr(environments, "peers_folder", lambda: tmp_path)
    assert select_peers("impi", "allreduce").contenders == ("ringtune", "impi")
    assert select_peers("gloo,impi", "allreduce", Ground("a:1,b:1")).absent == {
        "impi": "it is started on this host only; leave out -H"
    }


def test_commands_of_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    chosen = Selection(("ringtune", "openmpi-tuned"), {}, (PEERS["openmpi-tuned"],))
    ours, theirs = job_plans(chosen, "gradients", Setting(2, None, 1, Path("link")))
    assert ours.contenders == {"ringtune": "ringtune-async"}
    grouped = replace(chosen, grouped=True)
    assert job_plans(grouped, "gradients", Setting(2, None, 1, Path("link")))[0].contenders == {
        "ringtune": "ringtune-group"
    }
    [command] = ours.commands("127.0.0.1:9/x")
    assert command[-5:] == ["ringtune.benchmarks.comm.micro_worker", "127.0.0.1:9/x", "1", "ringtune", "cpu"]
    assert theirs.name == "openmpi-tuned"
    [command] = theirs.commands("127.0.0.1:9/x")
    assert command[1:4] == ["--oversubscribe", "-n", "2"]
    assert command[-2:] == ["ringtune.benchmarks.harness.race.mpi", "127.0.0.1:9/x"]
    assert "mmap_threshold" in theirs.environ["GLIBC_TUNABLES"]
    assert theirs.environ["PYTHONPATH"] == "link"
    assert "OMPI_COMM_WORLD_RANK" not in theirs.environ


def test_a_training_on_hosts_of_its_own_runs_a_rank_on_each() -> None:
    wires = Network("10.0.0.1", [Host("left", "10.0.0.2"), Host("right", "10.0.0.3")])
    setting = Setting(2, None, 1, Path("link"), wires)
    ours, ddp, topk = training_plans(select_peers("ringtune-topk", "train"), setting)
    assert [plan.name for plan in (ours, ddp, topk)] == ["ringtune", "ringtune-ddp", "ringtune-topk"]
    assert topk.host == "10.0.0.1"
    first, second = topk.commands("10.0.0.1:9/x")
    assert first[:5] == ["ip", "netns", "exec", "left", "env"]
    assert second[3] == "right"
    assert {"RINGTUNE_RANK=1", "RINGTUNE_SIZE=2", "RINGTUNE_INTERFACE_ADDRESS=10.0.0.3"} < set(second)
    stores = {next(word for word in plan.commands("x")[0] if "STORE" in word) for plan in (ours, ddp, topk)}
    assert len(stores) == 3, "two jobs at one store"


def test_the_link_holds_these_benchmarks_alone() -> None:
    with linked_benchmarks() as link:
        assert [path.name for path in (link / "ringtune").iterdir()] == ["benchmarks"]
        assert (link / "ringtune" / "benchmarks" / "harness" / "race" / "mpi.py").is_file()
    assert not link.exists()
