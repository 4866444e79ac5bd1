"""What ``import horovod`` gives."""

from __future__ import annotations

from ringtune.launch.run_function import run

__ringtune__ = True
__version__ = "0.28.1"
"""The version of Horovod whose behaviour ringtune keeps; scripts compare it."""

__all__ = ["run"]
