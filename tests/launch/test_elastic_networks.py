"""Elastic jobs over hosts made of network namespaces, one of which is cut off."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping

import pytest

from tests.conftest import needs
from tests.launch.conftest import HANG_S, Jobs, wait_for
from tests.launch.test_elastic import TRAIN, discovery_script
from tests.namespaces import machines

needs("ringtune._native")
needs("torch")

BOUND_S = 25.0
"""Peers notice after 5 s, and the launcher gives up a host 3 s later; ssh would notice after 30 s."""
SSH = """#!{python}
import os, subprocess, sys, threading, time
host, command = sys.argv[-2:]
remote = subprocess.Popen(["ip", "netns", "exec", {spaces}[host], "sh", "-c", command], stdin=subprocess.PIPE)

def passes():
    return host != {cut_off!r} or not os.path.exists({cut!r})

def pass_on():
    while data := os.read(0, 1 << 16):
        if passes():
            remote.stdin.write(data)
            remote.stdin.flush()
    if passes():
        remote.stdin.close()

threading.Thread(target=pass_on, daemon=True).start()
while remote.poll() is None or not passes():  # a cut cable passes no end on
    time.sleep(0.05)
sys.exit(remote.returncode if remote.returncode >= 0 else 128 - remote.returncode)
"""


def by_ssh_until_cut(jobs: Jobs, spaces: Mapping[str, str], cut_off: str) -> dict[str, str]:
    """Return an environment whose ssh passes nothing to or from a host once the file ``cut`` is there."""
    folder = jobs.folder / "bin"
    folder.mkdir()
    names = {"python": sys.executable, "spaces": json.dumps(dict(spaces)), "cut_off": cut_off}
    (folder / "ssh").write_text(SSH.format(**names, cut=str(jobs.folder / "cut")), encoding="utf-8")
    (folder / "ssh").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def processes_in(space: str) -> list[str]:
    return subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "removed"), [(1, False), (0, True)])
def test_a_host_that_is_cut_off_costs_some_seconds(jobs: Jobs, victim: int, removed: bool) -> None:
    event = f"""
    if state.batch == 8 and hvd.rank() == {victim} and once("there"):
        time.sleep({HANG_S})  # until the cable is cut
    """.strip()
    script = jobs.folder / "train.py"
    script.write_text(TRAIN.replace("EVENT", event).replace("COMPRESSION", "none"), encoding="utf-8")
    with machines(2) as spaces:
        hosts = "".join(f"{address}:1\n" for address in spaces)
        discovery, listed = discovery_script(jobs.folder, hosts)
        cut_off = list(spaces)[victim]
        process = jobs.start(
            "-np", "2", "--min-np", "1", "--host-discovery-script", discovery, "--no-run-dir",
            sys.executable, str(script), str(jobs.folder), "20",
            environ=by_ssh_until_cut(jobs, spaces, cut_off),
        )  # fmt: skip
        wait_for((jobs.folder / "there").exists)
        subprocess.run(["ip", "link", "set", f"{spaces[cut_off]}o", "down"], check=True)
        (jobs.folder / "cut").touch()
        since = time.monotonic()
        if removed:
            listed.write_text("".join(f"{address}:1\n" for address in spaces if address != cut_off), encoding="utf-8")
        stdout, stderr = process.communicate(timeout=HANG_S)
        took_s = time.monotonic() - since
        said = stderr.decode()
        try:
            assert process.returncode == 0, said
            assert f"worker {victim} on {cut_off} cannot be reached, ending it" in said or removed, said
            assert "generation 2: 1 ranks" in said and "[0, 1, 20]" in stdout.decode(), said
            assert took_s < BOUND_S, said
        finally:
            for pid in processes_in(spaces[cut_off]):
                os.kill(int(pid), 9)
