from __future__ import annotations

import pytest

from ringtune.benchmarks import peers
from ringtune.benchmarks.peers import PeerSpec, Selection, select_peers
from ringtune.errors import UsageError


def test_ringtune_alone() -> None:
    assert select_peers("", "allreduce") == Selection(("ringtune",), {})


def test_a_peer_may_send_several_contenders() -> None:
    assert select_peers("gloo,gloo", "gradients").contenders == ("ringtune", "gloo", "gloo-buckets")


@pytest.mark.parametrize(
    ("name", "benchmark"), [("openmp", "allreduce"), ("ddp-gloo", "allreduce"), ("gloo", "resnet")]
)
def test_unknown_peer_lists_the_known(name: str, benchmark: str) -> None:
    with pytest.raises(UsageError, match=f"unknown peer '{name}' for 'ringtune bench {benchmark}'; known: "):
        select_peers(name, benchmark)


def test_an_absent_peer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = PeerSpec("other", {"allreduce": ("other",)}, lambda: "it is not installed")
    monkeypatch.setitem(peers.PEERS, "other", spec)
    assert select_peers("other,gloo", "allreduce") == Selection(("ringtune", "gloo"), {"other": "it is not installed"})
