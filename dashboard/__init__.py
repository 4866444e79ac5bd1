"""The dashboard: pages over a folder of runs, and the report that one run becomes.

Layers, each using only those before it:

    units, theme, routes      words, colours, addresses; no I/O
    data/                     run folder -> tables; no drawing
    figures/                  tables -> plotly figures; no I/O
    pages/                    figures and tables -> a page and its callbacks
    app, server, cli          the Dash app, how it is served, the commands
    notebook                  the same inside a notebook
    report, pictures          one run as a file; pages as pictures

Runs are only read, and nothing in them is trusted.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["show"]


def show(runs: str | os.PathLike[str] = "runs", height: int = 720, base_url: str | None = None) -> str:
    """Show the dashboard over a folder of runs (or one run) below the cell of a notebook, and return its address.

    It is served on 127.0.0.1 by a thread of the kernel, on any free port, and ends with the kernel. Another call for
    the folder uses the same server. A browser on another machine reaches it through Jupyter's own server, where that
    has the extension ``jupyter-server-proxy``.

    Args:
        runs: The folder.
        height: Of the frame, in pixels.
        base_url: Path of Jupyter's server (``/`` where it has none), to be shown through its proxy. None: under
            JupyterHub what the hub says, else the browser asks 127.0.0.1 itself.

    Raises:
        UsageError: There is no such folder, or IPython is not installed.
    """
    from ringtune.dashboard.notebook import show as show_in_notebook

    return show_in_notebook(Path(runs), height, base_url)
