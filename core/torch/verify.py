"""``RINGTUNE_CHECK=1``: after every step's reduction all ranks compare their gradients bit by bit."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from ringtune.common.process_sets import ProcessSet, global_process_set
from ringtune.errors import Mismatch
from ringtune.torch.asynchronous import allgather_async
from ringtune.torch.handles import at_once


def verify_gradients(named: Sequence[tuple[str, torch.Tensor]], process_set: ProcessSet = global_process_set) -> None:
    """Compare the reduced gradients of all ranks.

    Args:
        named: Name and parameter, in the same order on all ranks.
        process_set: The ranks that reduce them.

    Raises:
        Mismatch: On all ranks, when a gradient differs; names the first tensor and the ranks by their bits.
    """
    own = torch.tensor([[digest(param.grad) for _, param in named]], dtype=torch.int64)
    everyone: torch.Tensor = at_once(allgather_async, own, "check.gradients", process_set)
    differ = (everyone != everyone[:1]).any(0).nonzero().flatten().tolist()
    if not differ:
        return
    first = differ[0]
    by_digest: dict[int, list[int]] = {}
    members = process_set.ranks or list(range(len(everyone)))
    for rank, value in zip(members, everyone[:, first].tolist(), strict=True):
        by_digest.setdefault(value, []).append(rank)
    groups = "; ".join(f"ranks {', '.join(map(str, ranks))} agree" for ranks in by_digest.values())
    raise Mismatch(
        f"RINGTUNE_CHECK: the gradient of {named[first][0]!r} differs between ranks after its reduction ({groups}); "
        f"{len(differ)} of {len(named)} gradients differ. A rank has changed it, or its reduction is wrong."
    )


def digest(tensor: torch.Tensor | None) -> int:
    """Return a fingerprint of a gradient's bits; 0 for none."""
    if tensor is None:
        return 0
    parts = [tensor._indices(), tensor._values()] if tensor.is_sparse else [tensor]
    found = hashlib.blake2b(digest_size=8)
    for part in parts:
        found.update(part.detach().contiguous().view(-1).view(torch.uint8).numpy().data)
    return int.from_bytes(found.digest(), "little", signed=True)
