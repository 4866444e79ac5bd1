"""The file that the user named, while the job runs: rank 0's spans as a Chrome trace.

Parts are records, but Horovod's users know a file of events that is there from `init` on, and grows. So rank 0 writes
one beside its part, a complete array of events at any moment, of which the named file is a second name. The merge of
all parts replaces it when the job ends.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from ringtune import layout


def target(run: Path, file: Path) -> Path | None:
    """Return the file that can be looked at while the job runs; None where the merge alone writes what was named.

    Args:
        run: Folder of the run.
        file: What the user named: a device, a folder, a packed file or the run's own timeline is not shown.
    """
    found = Path(os.path.realpath(file))
    if found.suffix == ".gz" or found == layout.timeline_file(run) or (found.exists() and not found.is_file()):
        return None
    return found


def fresh(run: Path) -> Path:
    """Return where rank 0 may write; what an earlier recording of the session has shown stays under its own name."""
    shown = layout.shown_file(run)
    shown.unlink(missing_ok=True)
    return shown


def show(run: Path, target: Path) -> Path | None:
    """Let a target name what rank 0 writes from now on. Nothing happens where no link is possible.

    Returns:
        A symbolic link that stands there until `hide`; None where the file is the trace itself.
    """
    shown, name = layout.shown_file(run), target.with_name(f".{target.name}.{os.getpid()}.tmp")
    if not shown.is_file():
        return None
    with suppress(OSError):
        target.parent.mkdir(parents=True, exist_ok=True)
        _name(shown, name)
        os.replace(name, target)
    return target if target.is_symlink() else None


def hide(link: Path) -> None:
    """Take a symbolic link away before the merge writes the file; a second name is simply replaced by it."""
    with suppress(OSError):
        link.unlink()


def _name(shown: Path, name: Path) -> None:
    try:
        os.link(shown, name)
    except OSError:  # another file system
        os.symlink(shown, name)


def number_of(part: Path) -> int:
    """Return the number of a rank's file: 0 for ``rank-00000.spans``, 1 for ``rank-00000.1.spans``."""
    number = part.name.split(".")[1]
    return int(number) if number.isdigit() else 0
