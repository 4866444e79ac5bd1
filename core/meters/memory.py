"""The most memory that this process ever held."""

from __future__ import annotations

import resource
from pathlib import Path

_STATUS = Path("/proc/self/status")


def peak_bytes() -> int:
    """Return the most physical memory that this process has held since its program began, in bytes.

    ``ru_maxrss`` includes the peak of the parent process: a rank started out of a notebook would show the notebook's
    memory. It is returned only where the kernel offers nothing else.
    """
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
