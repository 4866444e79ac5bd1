"""Folders of packages with NVIDIA's libraries. Nothing of them is imported, since every start of a job runs this."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def folders_of(package: str) -> list[Path]:
    """Return the folders of a package, of several wheels perhaps; none where it is not installed."""
    try:
        spec = find_spec(package)
    except (ModuleNotFoundError, ValueError):  # its parent is missing; or a module that no import system has found
        return []
    return [] if spec is None else [Path(folder) for folder in spec.submodule_search_locations or ()]
