"""Who ringtune is measured against: the registry behind every `--peers` option.

A peer is registered once with the contenders (see `contenders.py` and `training.py`) it sends into each benchmark and
with a check that says why it is absent here. A peer that is not installed is named in tables and files, never
dropped in silence.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ringtune.errors import UsageError

SUBJECT = "ringtune"


@dataclass(frozen=True)
class PeerSpec:
    """A peer.

    Args:
        name: as users write it.
        contenders: benchmark -> contenders that the peer sends into it.
        absent: returns why the peer cannot run here, or None when it can.
    """

    name: str
    contenders: Mapping[str, tuple[str, ...]]
    absent: Callable[[], str | None]


@dataclass(frozen=True)
class Selection:
    """The contenders that will run (ringtune first) and why the other peers asked for cannot."""

    contenders: tuple[str, ...]
    absent: Mapping[str, str]


def _gloo_absent() -> str | None:
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    import torch.distributed

    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        return "this build of torch has no gloo"
    return None


PEERS: dict[str, PeerSpec] = {
    spec.name: spec
    for spec in (
        PeerSpec("gloo", {"allreduce": ("gloo",), "gradients": ("gloo", "gloo-buckets")}, _gloo_absent),
        PeerSpec("ddp-gloo", {"resnet": ("ddp-gloo",)}, _gloo_absent),
    )
}


def select_peers(text: str, benchmark: str) -> Selection:
    """Returns who takes part in `benchmark`.

    Args:
        text: comma-separated peer names; empty for ringtune alone.
        benchmark: ``allreduce``, ``gradients`` or ``resnet``.

    Raises:
        UsageError: a peer is unknown or does not take part in this benchmark; the message lists those that do.
    """
    contenders = [SUBJECT]
    absent: dict[str, str] = {}
    for name in dict.fromkeys(word.strip() for word in text.split(",") if word.strip()):
        spec = PEERS.get(name)
        if spec is None or benchmark not in spec.contenders:
            known = ", ".join(peer.name for peer in PEERS.values() if benchmark in peer.contenders)
            raise UsageError(f"unknown peer {name!r} for 'ringtune bench {benchmark}'; known: {known}")
        reason = spec.absent()
        if reason is None:
            contenders.extend(spec.contenders[benchmark])
        else:
            absent[name] = reason
    return Selection(tuple(contenders), absent)
