"""An elastic job over hosts in network namespaces whose ranks change again and again, and its loss curve.

``python -m tests.launch.soak --changes 30`` makes 30 changes and says how long each took: slots that come and go,
workers that are killed or frozen, hosts whose cable is cut. The losses must be those of one process that nothing
happens to, bit for bit, also where a batch was computed again after a failure.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil

from tests.launch.conftest import DRIVER
from tests.launch.cut_hosts import CutHosts
from tests.launch.soak_worker import first_weights, stepped, sums_of
from tests.namespaces import machines

KINDS = ("slots", "killed", "frozen", "cut")
WORKER = Path(__file__).with_name("soak_worker.py")
HOSTS, MOST_RANKS = 3, 4
SOME_BATCHES = 3
BOUND_S = 120.0
"""So long a change may take on a starved machine; a hang takes longer."""


@dataclass
class Soak:
    """One job and what is done to it.

    Attributes:
        changes: Kind of each change, and seconds until a new set of ranks trained.
        losses: Every loss that any worker noted, by batch.
    """

    folder: Path
    rng: random.Random
    changes: list[tuple[str, float]] = field(default_factory=list)
    losses: dict[int, set[str]] = field(default_factory=dict)
    _slots: dict[str, int] = field(default_factory=dict)
    _said: list[str] = field(default_factory=list)

    def run(self, kinds: list[str]) -> None:
        """Start the job, make the changes, and let it end.

        Raises:
            AssertionError: It hangs, fails, or leaves something behind.
        """
        for name in ("workers", "steps"):
            (self.folder / name).mkdir()
        with machines(HOSTS) as spaces:
            network = CutHosts(self.folder, spaces)
            self._slots = dict.fromkeys(spaces, 1)
            self._list_hosts()
            with self._job(network) as process:
                self._settled(0, process)
                for kind in kinds:
                    self._until(self._is_whole, "hosts that have cooled down are not used again", process)
                    began, before = time.monotonic(), self._generation()[0]
                    undo = self._change(kind, network)
                    self._settled(before, process)
                    self.changes.append((kind, time.monotonic() - began))
                    undo()
                (self.folder / "stop").touch()
                self._until(lambda: process.poll() is not None, "the job did not end", process)
                assert process.returncode == 0, "".join(self._said[-80:])
            left = [pid for host in spaces for pid in network.processes(host)]
            assert not left, f"left behind: {[psutil.Process(pid).cmdline() for pid in left]}"
        for notes in (self.folder / "steps").iterdir():
            for line in notes.read_text(encoding="utf-8").splitlines():
                _, batch, loss = line.split()
                self.losses.setdefault(int(batch), set()).add(loss)

    def wrong(self) -> list[str]:
        """Compare the losses with those of one process that nothing happened to."""
        found, weights = [], first_weights()
        for batch in range(max(self.losses) + 1):
            *gradient, loss = sums_of(weights, batch, 0, 1)
            noted = self.losses.get(batch, set())
            if noted != {float(loss).hex()}:
                found.append(f"batch {batch}: {sorted(noted)} instead of {float(loss).hex()}")
            weights = stepped(weights, np.array(gradient))
        return found

    # -- changes: each returns what to do once the job has got over it -----------------------------------------------

    def _change(self, kind: str, network: CutHosts) -> Callable[[], object]:
        if kind == "slots":
            self._change_slots()
            return lambda: None
        victim = self.rng.choice(self._workers())
        if kind == "cut":
            network.cut(victim["host"])
            return lambda: network.mend(victim["host"])
        os.kill(victim["pid"], signal.SIGKILL if kind == "killed" else signal.SIGSTOP)
        return lambda: None

    def _change_slots(self) -> None:
        while True:
            host, slots = self.rng.choice(list(self._slots)), self.rng.randint(0, 2)
            others = [name for name, count in {**self._slots, host: slots}.items() if count]
            total = sum(self._slots.values()) - self._slots[host] + slots
            if slots != self._slots[host] and 3 <= total <= MOST_RANKS and len(others) > 1:
                self._slots[host] = slots
                return self._list_hosts()

    def _list_hosts(self) -> None:
        part = self.folder / "hosts.part"
        part.write_text("".join(f"{host}:{slots}\n" for host, slots in self._slots.items() if slots), encoding="utf-8")
        part.rename(self.folder / "hosts")

    # -- the job ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _job(self, network: CutHosts) -> Iterator[subprocess.Popen[str]]:
        script = self.folder / "discover"
        script.write_text(f"#!/bin/sh\ncat {self.folder / 'hosts'}\n", encoding="utf-8")
        script.chmod(0o755)
        command = [
            sys.executable, str(DRIVER), "run", "-np", "2", "--min-np", "1", "--host-discovery-script", str(script),
            "--blacklist-cooldown-range", "2", "4", "--start-timeout", "30", "--elastic-timeout", "90", "--no-run-dir",
            sys.executable, str(WORKER), str(self.folder),
        ]  # fmt: skip
        environ = {
            **os.environ,
            **network.environ,
            "RINGTUNE_LIVENESS_TIMEOUT": "3",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        with subprocess.Popen(
            command, cwd=self.folder, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            listener = threading.Thread(target=lambda: self._said.extend(process.stdout or ()))
            listener.start()
            try:
                yield process
            finally:
                process.kill()
                listener.join()

    def _generation(self) -> tuple[int, int]:
        """Return the latest generation and its number of ranks."""
        found = [re.match(r"ringtune: generation (\d+): (\d+) ranks", line) for line in self._said]
        return max((int(one[1]), int(one[2])) for one in [*found, re.match("(0)(0)", "00")] if one)

    def _workers(self) -> list[dict[str, Any]]:
        """Return those that train in the latest generation, and have done some batches."""
        generation, _ = self._generation()
        found = []
        for notes in (self.folder / "steps").iterdir():
            lines = notes.read_text(encoding="utf-8").splitlines()[-SOME_BATCHES:]
            if [line.split()[0] for line in lines] == [str(generation)] * SOME_BATCHES:
                found.append(json.loads((self.folder / "workers" / notes.name).read_text(encoding="utf-8")))
        return found

    def _is_whole(self) -> bool:
        """Whether all slots of all hosts train, so that each change leads to other ranks."""
        return len(self._workers()) == self._generation()[1] == sum(self._slots.values())

    def _settled(self, after: int, process: subprocess.Popen[str]) -> None:
        """Wait until all ranks of a later generation train."""

        def all_train() -> bool:
            generation, size = self._generation()
            return generation > after and len(self._workers()) == size

        self._until(all_train, "no new set of ranks trains", process)

    def _until(self, what: Callable[[], object], else_say: str, process: subprocess.Popen[str]) -> None:
        deadline = time.monotonic() + BOUND_S
        while not what():
            going_on = process.poll() is None and time.monotonic() < deadline
            assert going_on, f"{else_say} after {self.changes}: {''.join(self._said[-80:])}"
            time.sleep(0.05)


def kinds_of(count: int, rng: random.Random) -> list[str]:
    """Return so many changes, of every kind alike, in random order."""
    kinds = [KINDS[number % len(KINDS)] for number in range(count)]
    rng.shuffle(kinds)
    return kinds


def run(count: int, seed: int) -> Soak:
    """Run a job with so many changes.

    Raises:
        AssertionError: It hangs, fails, or leaves something behind.
    """
    with tempfile.TemporaryDirectory(prefix="soak") as folder:
        rng = random.Random(seed)
        soak = Soak(Path(folder), rng)
        soak.run(kinds_of(count, rng))
        return soak


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=30)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    soak = run(given.changes, given.seed)
    for kind in KINDS:
        took = sorted(seconds for one, seconds in soak.changes if one == kind)
        if took:
            print(
                f"{kind}: {len(took)} changes, new ranks trained within {took[-1]:.1f} s, median {median(took):.1f} s"
            )
    wrong = soak.wrong()
    print(f"{len(soak.losses)} batches, {len(wrong)} with another loss", *wrong[:9], sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
