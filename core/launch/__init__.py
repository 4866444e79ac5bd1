"""Starting jobs: ``ringtune run`` and, for other rooms, `launch` with `LaunchOptions`."""

from __future__ import annotations

from ringtune.launch.launcher import launch
from ringtune.launch.options import LaunchOptions

__all__ = ["LaunchOptions", "launch"]
