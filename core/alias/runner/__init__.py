"""``horovod.runner``."""

from __future__ import annotations

from ringtune.launch.run_function import run

__all__ = ["run"]
