"""Pods of an indexed Job, as network namespaces: the name of rank 0 is known after other ranks have started."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import missing
from tests.launch.conftest import HANG_S
from tests.namespaces import machines

pytestmark = pytest.mark.slow

SCRIPT = """
import numpy as np
from ringtune import session
from ringtune.operations import Barrier
here = session.init()
here.wait(here.submit(Barrier("all")))
print("rank", here.placement.rank, "of", here.placement.size, "met", flush=True)
"""
VARIABLES = {
    "RINGTUNE_SIZE": "2",
    "RINGTUNE_STORE": "train-0.train:29400",
    "RINGTUNE_SECRET": "words that all pods know",
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
}


class Pods:
    """Pods that share one list of names, which stands for the cluster's DNS.

    Args:
        folder: Where the list lies.
        spaces: Namespaces by address.
    """

    def __init__(self, folder: Path, spaces: dict[str, str]) -> None:
        self.addresses, self._spaces = list(spaces), list(spaces.values())
        self._names = folder / "names"
        self._names.write_text("127.0.0.1 localhost\n", encoding="utf-8")
        self._started: list[subprocess.Popen[str]] = []

    def know(self, index: int) -> None:
        """Make the name of a pod known."""
        with self._names.open("a", encoding="utf-8") as file:
            file.write(f"{self.addresses[index]} train-{index}.train train-{index}\n")

    def start(self, index: int, **more: str) -> subprocess.Popen[str]:
        """Start the pod of an index."""
        before = f'hostname train-{index}; mount --bind {self._names} /etc/hosts; exec "$@"'
        words = [
            "nsenter",
            f"--net=/run/netns/{self._spaces[index]}",
            "unshare",
            "--uts",
            "--mount",
            "sh",
            "-c",
            before,
        ]
        process = subprocess.Popen(
            [*words, "sh", sys.executable, "-c", SCRIPT],
            env={**os.environ, **VARIABLES, "JOB_COMPLETION_INDEX": str(index), **more},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def end(self) -> None:
        """End those that still run."""
        for process in self._started:
            process.kill()
            process.communicate()


@contextmanager
def pods(folder: Path) -> Iterator[Pods]:
    with machines(2) as spaces:
        if subprocess.run(["unshare", "--uts", "--mount", "true"], capture_output=True, check=False).returncode:
            missing("needs root for `unshare --mount`")
        made = Pods(folder, spaces)
        try:
            yield made
        finally:
            made.end()


def test_ranks_wait_for_the_name_of_the_first_pod_and_say_so(tmp_path: Path) -> None:
    with pods(tmp_path) as cluster:
        second = cluster.start(1, RINGTUNE_START_TIMEOUT=str(int(HANG_S)))
        assert second.stderr is not None
        said = second.stderr.readline()
        assert said == "ringtune: rank 1 waits for the name train-0.train of rank 0, which is not known yet\n"
        # The pod starts first, its name is known later even to itself.
        first = cluster.start(0, RINGTUNE_START_TIMEOUT=str(int(HANG_S)))
        assert first.stderr is not None
        assert "rank 0 waits for the name train-0.train" in first.stderr.readline()
        cluster.know(0)
        for index, process in enumerate((first, second)):
            out, errors = process.communicate(timeout=HANG_S)
            assert (process.returncode, out) == (0, f"rank {index} of 2 met\n"), errors


def test_a_name_that_is_never_known_is_told(tmp_path: Path) -> None:
    with pods(tmp_path) as cluster:
        second = cluster.start(1, RINGTUNE_START_TIMEOUT="3")
        _, errors = second.communicate(timeout=HANG_S)
        assert second.returncode != 0
        assert "rank 1: the name train-0.train of rank 0 was not known within the start timeout" in errors
        # The name without the pod: nobody serves the store there.
        cluster.know(0)
        third = cluster.start(1, RINGTUNE_START_TIMEOUT="3")
        _, errors = third.communicate(timeout=HANG_S)
        assert third.returncode != 0 and "train-0.train:29400" in errors.splitlines()[-1], errors
