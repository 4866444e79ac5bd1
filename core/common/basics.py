"""``horovod.common.basics``: the object behind ``init``, ``rank`` and their like."""

from __future__ import annotations

from ringtune.torch.basics import HorovodBasics

__all__ = ["HorovodBasics"]
