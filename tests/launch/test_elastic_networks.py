"""Elastic jobs over hosts made of network namespaces, one of which is cut off."""

from __future__ import annotations

import os
import sys
import time

import pytest

from tests.conftest import needs
from tests.launch.conftest import HANG_S, Jobs, wait_for
from tests.launch.cut_hosts import CutHosts
from tests.launch.test_elastic import TRAIN, discovery_script
from tests.namespaces import machines

needs("ringtune._native")
needs("torch")

BOUND_S = 25.0
"""Peers notice after 5 s, and the launcher gives up a host 3 s later; ssh would notice after 30 s."""


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "removed"), [pytest.param(1, False, marks=pytest.mark.long), (0, True)])
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
        cut_off, network = list(spaces)[victim], CutHosts(jobs.folder, spaces)
        process = jobs.start(
            "-np", "2", "--min-np", "1", "--host-discovery-script", discovery, "--no-run-dir",
            sys.executable, str(script), str(jobs.folder), "20",
            environ=network.environ,
        )  # fmt: skip
        wait_for((jobs.folder / "there").exists)
        network.cut(cut_off)
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
            for pid in network.processes(cut_off):
                os.kill(pid, 9)
