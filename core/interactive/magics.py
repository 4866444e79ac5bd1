"""`%ringtune`: ranks under a notebook. `%load_ext ringtune` calls `load_ipython_extension`."""

from __future__ import annotations

import atexit
import shlex
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from ringtune.errors import RingtuneError, UsageError
from ringtune.interactive.session import Ranks

GROUP = "ringtune.notebook"
"""Entry-point group of what upper rooms show in a notebook."""

USAGE = """\
%ringtune start N    start N ranks on this machine; then %%px runs a cell on all of them
%ringtune status     say what runs, and where it is recorded
%ringtune timeline   show what was recorded so far; the ranks go on
%ringtune dashboard  show the dashboard over this run
%ringtune stop       end the ranks"""


class RanksMagic:
    """The command `%ringtune` of one notebook.

    Args:
        shell: IPython's shell.

    Attributes:
        ranks: The ranks that run; None without any.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self.ranks: Ranks | None = None
        self._commands = {
            "start": self._start,
            "status": self._status,
            "timeline": self._timeline,
            "dashboard": self._dashboard,
            "stop": self._stop,
        }

    def __call__(self, line: str) -> Any:
        """Run a command; an error is one line, as everywhere in ringtune."""
        words = shlex.split(line)
        command = self._commands.get(words[0]) if words else None
        if command is None:
            print(USAGE)
            return None
        try:
            return command(words[1:])
        except RingtuneError as error:
            print(f"ringtune: {error}")
            return None

    def close(self) -> None:
        """End the ranks."""
        if self.ranks is not None:
            self.ranks.close()
            self.ranks = None

    def _start(self, words: list[str]) -> None:
        if self.ranks is not None:
            raise UsageError(f"{self.ranks.size} ranks run already: %ringtune stop ends them")
        if len(words) != 1 or not words[0].isdigit() or int(words[0]) < 1:
            raise UsageError("%ringtune start N: how many ranks? For example %ringtune start 2")
        self.ranks = Ranks(int(words[0]))
        view = self.ranks.client[:]
        view.block = True  # a cell's output is seen when the cell has run
        view.activate()  # ipyparallel's %px and %%px mean these engines from now on
        print(f"{words[0]} ranks: %%px runs a cell on all of them")

    def _status(self, words: list[str]) -> None:
        run = self._running().run_folder()
        print(
            f"{self._running().size} ranks, " + (f"recorded in {run}" if run else "no session yet: hvd.init() in %%px")
        )

    def _timeline(self, words: list[str]) -> Any:
        from IPython.display import IFrame

        with tempfile.TemporaryDirectory() as folder:
            html = self._running().report(Path(folder) / "report.html")
        attribute = html.replace("&", "&amp;").replace('"', "&quot;")
        return IFrame("about:blank", width="100%", height=600, extras=[f'srcdoc="{attribute}"'])

    def _dashboard(self, words: list[str]) -> None:
        run = self._running().run_folder()
        if run is None:
            raise UsageError("nothing is recorded yet: call hvd.init() on the ranks first (%%px)")
        for entry in metadata.entry_points(group=GROUP, name="dashboard"):
            entry.load()(run)
            return
        raise UsageError("the dashboard is not installed: pip install 'ringtune[dashboard]'")

    def _stop(self, words: list[str]) -> None:
        self._running()
        self.close()

    def _running(self) -> Ranks:
        if self.ranks is None:
            raise UsageError("no ranks run: %ringtune start 2 starts two")
        return self.ranks


def load_ipython_extension(shell: Any) -> None:
    """Bring the command `%ringtune` into a notebook or a terminal of IPython's."""
    magic = RanksMagic(shell)
    shell.register_magic_function(magic, magic_kind="line", magic_name="ringtune")
    shell.ringtune = magic
    atexit.register(magic.close)


def unload_ipython_extension(shell: Any) -> None:
    """End the ranks that the notebook has started."""
    magic = getattr(shell, "ringtune", None)
    if magic is not None:
        magic.close()
        atexit.unregister(magic.close)
