"""The file that the user named, while the job runs: rank 0's part under a second name.

A part is a complete array of events at any moment, so a second name suffices for what Horovod's users know: the file is
there from `init` on, and grows. The merge of all parts replaces it when the job ends.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from ringtune import layout

_SHOWN = "shown.json"
"""Name beside the parts that a symbolic link from another file system points to. A writer through the link replaces
this name and no part."""


def show(parts: Path, stem: str, target: Path) -> Path | None:
    """Let a target name the newest part of a rank from now on.

    Nothing happens where no link is possible (a device, a folder, a packed file); the merge writes there anyway.

    Args:
        parts: Folder of the parts.
        stem: What the names of the rank's parts begin with.
        target: The file that the user named.

    Returns:
        A symbolic link that stands there until `hide`; None where the file is the part itself.
    """
    target = Path(os.path.realpath(target))
    newest = max(parts.glob(f"{stem}.*json"), key=number_of, default=None)
    if newest is None or target.suffix == ".gz" or target == layout.timeline_file(parts.parent):
        return None
    if target.exists() and not target.is_file():
        return None
    name = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    with suppress(OSError):
        target.parent.mkdir(parents=True, exist_ok=True)
        _name(newest, name)
        os.replace(name, target)
    return target if target.is_symlink() else None


def hide(link: Path) -> None:
    """Take a symbolic link away before the merge writes the file; a second name is simply replaced by it."""
    with suppress(OSError):
        shown = Path(os.readlink(link))
        link.unlink()
        shown.unlink()


def _name(part: Path, name: Path) -> None:
    try:
        os.link(part, name)
    except OSError:  # another file system
        shown = part.with_name(_SHOWN)
        shown.unlink(missing_ok=True)
        os.link(part, shown)
        os.symlink(shown, name)


def number_of(part: Path) -> int:
    """Return the number of a rank's file: 0 for ``rank-00000.json``, 1 for ``rank-00000.1.json``."""
    number = part.name.split(".")[1]
    return int(number) if number.isdigit() else 0
