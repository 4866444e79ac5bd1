"""``horovod.runner.elastic.worker``."""

from __future__ import annotations

from ringtune.elastic.results import HostUpdateResult

__all__ = ["HostUpdateResult"]
