"""Which files of tests run on one worker, one after the other.

Chromium drops what it is loading (ERR_NETWORK_CHANGED) when a network link of this machine comes or goes, and then a
page without its scripts stays empty. So the files that watch pages are never run beside those that make networks.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

from xdist.scheduler import LoadFileScheduling

_SENSITIVE = re.compile(r'\bVisit\b|require_tool\("browser"\)')
_DISTURBING = re.compile(r"\btests\.namespaces\b|\bnetwork\.hosts\(|\bimport\b.*\bBed\b")
TOGETHER = "browsers and networks"


@functools.cache
def scope_of(file: Path) -> str:
    """Return what a file's tests share with those that must not run beside them; its own path where there are none."""
    text = file.read_text(encoding="utf-8")
    return TOGETHER if _SENSITIVE.search(text) or _DISTURBING.search(text) else str(file)


class Scheduling(LoadFileScheduling):
    """Hands out whole files to workers, and those of one scope to the same worker."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(self.config.rootpath / super()._split_scope(nodeid))
