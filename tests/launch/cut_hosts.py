"""Hosts made of network namespaces that can be cut off: their network cable, and with it the ssh that leads to them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

# Passes nothing to a host or back, the end of a process neither, while the host's file is there; as ssh, for a while.
_SSH = """#!{python}
import os, subprocess, sys, threading, time
host, command = sys.argv[-2:]
cut = os.path.join({folder!r}, "cut-" + host)
if os.path.exists(cut):
    time.sleep(1)
    sys.exit("ssh: connect to host " + host + ": No route to host")
remote = subprocess.Popen(["ip", "netns", "exec", {spaces}[host], "sh", "-c", command], stdin=subprocess.PIPE)

def pass_on():
    while data := os.read(0, 1 << 16):
        if not os.path.exists(cut):
            remote.stdin.write(data)
            remote.stdin.flush()
    if not os.path.exists(cut):
        remote.stdin.close()

threading.Thread(target=pass_on, daemon=True).start()
while remote.poll() is None or os.path.exists(cut):
    time.sleep(0.05)
sys.exit(remote.returncode if remote.returncode >= 0 else 128 - remote.returncode)
"""


class CutHosts:
    """Hosts by address, reached by an ssh that enters their namespaces.

    Args:
        folder: Where the ssh and what it looks at are kept.
        spaces: Address -> namespace, of `tests.namespaces.machines`.

    Attributes:
        environ: Environment in which the ssh is found.
    """

    def __init__(self, folder: Path, spaces: Mapping[str, str]) -> None:
        self._folder, self._spaces = folder, spaces
        tools = folder / "bin"
        tools.mkdir()
        text = _SSH.format(python=sys.executable, folder=str(folder), spaces=json.dumps(dict(spaces)))
        (tools / "ssh").write_text(text, encoding="utf-8")
        (tools / "ssh").chmod(0o755)
        self.environ = {"PATH": f"{tools}:{os.environ['PATH']}"}

    def cut(self, host: str) -> None:
        """Pull a host's cable."""
        self._link(host, "down")
        (self._folder / f"cut-{host}").touch()

    def mend(self, host: str) -> None:
        """Plug it in again."""
        (self._folder / f"cut-{host}").unlink()
        self._link(host, "up")

    def processes(self, host: str) -> list[int]:
        """Return the processes of a host."""
        command = ["ip", "netns", "pids", self._spaces[host]]
        return [int(pid) for pid in subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()]

    def _link(self, host: str, state: str) -> None:
        subprocess.run(["ip", "link", "set", f"{self._spaces[host]}o", state], check=True)
