"""The dashboard inside a notebook: served by the kernel's own process, shown in a frame, gone with the kernel."""

from __future__ import annotations

import threading
from pathlib import Path

from ringtune.dashboard.server import ServeOptions, Server
from ringtune.errors import UsageError

_SERVERS: dict[Path, Server] = {}
_LOCK = threading.Lock()


def show(runs: Path, height: int) -> str:
    """See `ringtune.dashboard.show`."""
    try:
        from IPython.display import IFrame, display
    except ImportError:
        raise UsageError(
            "show() draws into a notebook, and IPython is not installed here; outside of one use: ringtune dashboard"
        ) from None
    url = _served(runs.resolve())
    display(IFrame(url, width="100%", height=height))
    return url


def _served(root: Path) -> str:
    """Return the address of the kernel's server over a folder, starting it when there is none."""
    with _LOCK:
        server = _SERVERS.get(root)
        if server is None:
            server = _SERVERS[root] = Server(ServeOptions(root, port=0, framed=True))
            threading.Thread(target=server.run, name="ringtune-dashboard", daemon=True).start()
        return server.url
