"""A ``horovodrun`` that is ``ringtune run --as-horovod``: ``python -m ringtune.alias.install_horovodrun``.

It is not part of the installation, since it would shadow Horovod's own. It is written beside this Python's programs, or
into the folder that is given, unless a ``horovodrun`` of somebody else's is there or on ``PATH``.
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from ringtune.errors import UsageError

_NAME = "horovodrun"
_MARK = "# Made by ringtune (python -m ringtune.alias.install_horovodrun); --remove takes it away."
_PROGRAM = """#!{python}
{mark}
import sys

from ringtune.cli import main

sys.exit(main(["run", "--as-horovod", *sys.argv[1:]]))
"""


def install(folder: Path) -> Path:
    """Write the program into a folder; one that this function wrote earlier is replaced.

    Raises:
        UsageError: Another ``horovodrun`` is there or on ``PATH``, or the folder cannot be written.
    """
    program = folder / _NAME
    for found in (program, *(Path(one) for one in (shutil.which(_NAME),) if one is not None)):
        if found.exists() and not _is_ours(found):
            raise UsageError(f"{found} is there already and not ringtune's; it stays: use `ringtune run --as-horovod`")
    try:
        program.write_text(_PROGRAM.format(python=sys.executable, mark=_MARK), encoding="utf-8")
        program.chmod(0o755)
    except OSError as error:
        raise UsageError(f"{program}: cannot be written: {error.strerror}; name a folder that is on PATH") from None
    return program


def remove(folder: Path) -> Path:
    """Take the program away again.

    Raises:
        UsageError: It is not there, or is somebody else's.
    """
    program = folder / _NAME
    if not program.exists() or not _is_ours(program):
        raise UsageError(f"{program} is not there or not ringtune's")
    program.unlink()
    return program


def main(arguments: Sequence[str]) -> int:
    """Install into the folder that is named, or beside this Python's programs; ``--remove`` takes it away."""
    folders = [Path(word) for word in arguments if word != "--remove"]
    if len(folders) > 1 or any(str(folder).startswith("-") for folder in folders):
        print("use: python -m ringtune.alias.install_horovodrun [--remove] [FOLDER]", file=sys.stderr)
        return 2
    folder = folders[0] if folders else Path(sysconfig.get_path("scripts"))
    try:
        print(remove(folder) if "--remove" in arguments else install(folder))
    except UsageError as error:
        print(f"ringtune: {error}", file=sys.stderr)
        return 2
    return 0


def _is_ours(program: Path) -> bool:
    try:
        return _MARK in program.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
