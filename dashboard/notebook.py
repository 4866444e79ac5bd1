"""The dashboard inside a notebook: served by the kernel's own process, shown in a frame, gone with the kernel."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from ringtune.dashboard.server import ServeOptions, Server, new_token
from ringtune.errors import UsageError

HUB_PREFIX = "JUPYTERHUB_SERVICE_PREFIX"
"""JupyterHub sets it: the path under which its proxy shows this user's server."""

_SERVERS: dict[tuple[Path, str], Server] = {}
_LOCK = threading.Lock()


def show(runs: Path, height: int, base_url: str | None) -> str:
    """See `ringtune.dashboard.show`."""
    try:
        from IPython.display import IFrame, display
    except ImportError:
        raise UsageError(
            "show() draws into a notebook, and IPython is not installed here; outside of one use: ringtune dashboard"
        ) from None
    url = _served(runs.resolve(), os.environ.get(HUB_PREFIX, "") if base_url is None else base_url)
    display(IFrame(url, width="100%", height=height))
    return url


def _served(root: Path, base_url: str) -> str:
    """Return the address of the kernel's server over a folder, starting it when there is none.

    Behind a proxy the browser asks under the proxy's name, which looks like a foreign one: there a token gives access.
    """
    with _LOCK:
        server = _SERVERS.get((root, base_url))
        if server is None:
            options = ServeOptions(root, port=0, framed=True)
            if base_url:
                prefix = "/" + f"{base_url.strip('/')}/proxy/absolute/{{port}}/".lstrip("/")
                options = ServeOptions(root, port=0, framed=True, prefix=prefix, token=new_token())
            server = _SERVERS[root, base_url] = Server(options)
            threading.Thread(target=server.run, name="ringtune-dashboard", daemon=True).start()
        return server.path if base_url else server.url
