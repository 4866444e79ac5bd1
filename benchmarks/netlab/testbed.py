"""A test bed for predictions: jobs on network namespaces that are started once, and play the steps they are sent.

All jobs share the hosts of one network; while one plays, the others sleep. Links are shaped anew between cases.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from ringtune.benchmarks.harness.jobs import thread_variables
from ringtune.benchmarks.harness.racejob import JobPlan, RaceJob
from ringtune.benchmarks.netlab import network
from ringtune.benchmarks.netlab.network import Host
from ringtune.knobs import Knobs
from ringtune.tuner.model.workload import Workload

_WORKER = "ringtune.benchmarks.netlab.replay_worker"
_PLAY_SECONDS = 110.0
_FIRST_STORE_PORT = 29480
_FULL_RATE = 10e9
"""Bits per second of the network on which a profile's bytes are all played."""


@dataclass(frozen=True)
class Shape:
    """So many ranks on each of so many hosts."""

    hosts: int
    slots: int

    @property
    def ranks(self) -> int:
        """Of the job."""
        return self.hosts * self.slots


class Job:
    """Ranks that play steps. Owns their processes; `close` ends them.

    Args:
        shape: of the job.
        hosts: the first ones are used.
        driver: address under which the hosts reach this process.
        store_port: of its rendezvous on the first host; every job needs its own.
        run: folder for what is recorded.
    """

    def __init__(self, shape: Shape, hosts: Sequence[Host], driver: str, store_port: int, run: Path) -> None:
        self.run = run
        self._job = RaceJob(_plan(shape, hosts, driver, store_port, run))

    def play(self, work: Workload, knobs: Knobs, steps: int, *, record: bool = False) -> list[list[int]]:
        """Plays so many steps of `work` under `knobs`; returns the times of each rank's steps in ns.

        Raises:
            JobLost: a rank failed or did not answer.
        """
        self._job.ask(_PLAY_SECONDS, do="knobs", knobs=knobs.as_dict())
        answers = self._job.ask(_PLAY_SECONDS, do="play", work=document(work), steps=steps, record=record)
        return [answer["wall_ns"] for answer in answers]

    def others_s(self) -> float:
        """CPU time that processes outside this job have used in user mode since some moment, and other machines."""
        machine = psutil.cpu_times()
        own = sum(psutil.Process(pid).cpu_times().user for pid in self._job.pids)
        return float(machine.user + machine.nice + getattr(machine, "steal", 0.0) - own)

    def close(self) -> None:
        """Ends the ranks."""
        self._job.close()


class Bed:
    """Hosts on one shaped network, and a job for each shape that was asked for. A context manager: owns them all.

    Args:
        hosts: the most that a job needs.

    Raises:
        RingtuneError: on entry, when the kernel refuses namespaces.
    """

    def __init__(self, hosts: int) -> None:
        self._count = hosts
        self._stack = ExitStack()
        self._hosts: list[Host] = []
        self._driver = ""
        self._jobs: dict[Shape, Job] = {}
        self._ports = itertools.count(_FIRST_STORE_PORT)
        self._rate = network.UNSHAPED

    def __enter__(self) -> Bed:
        folder = self._stack.enter_context(tempfile.TemporaryDirectory())
        self._folder = Path(folder)
        self._driver, self._hosts = self._stack.enter_context(network.hosts(self._count, None))
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()

    @property
    def hosts(self) -> list[Host]:
        """All of them; there are none outside the context."""
        return self._hosts

    def shape_links(self, rate: str) -> None:
        """Lets all links carry this rate from now on."""
        if rate == self._rate:
            return
        for host in self._hosts:
            host.shape(network.link_rate(rate))
        self._rate = rate

    def job(self, shape: Shape) -> Job:
        """The job of this shape; started when it is asked for first."""
        if shape not in self._jobs:
            name = f"{shape.hosts}x{shape.slots}"
            self._jobs[shape] = self._stack.enter_context(self.own_job(shape, self._folder / name))
        return self._jobs[shape]

    @contextmanager
    def own_job(self, shape: Shape, run: Path) -> Iterator[Job]:
        """A job that records into a run folder of its own; it ends with the context."""
        job = Job(shape, self._hosts, self._driver, next(self._ports), run)
        try:
            yield job
        finally:
            job.close()


def _plan(shape: Shape, hosts: Sequence[Host], driver: str, store_port: int, run: Path) -> JobPlan:
    def command(join: str, rank: int) -> list[str]:
        host = hosts[rank // shape.slots]
        variables = {
            "RINGTUNE_RANK": str(rank),
            "RINGTUNE_SIZE": str(shape.ranks),
            "RINGTUNE_STORE": f"{hosts[0].address}:{store_port}",
            "RINGTUNE_HOSTNAME": host.namespace,
            "RINGTUNE_INTERFACE_ADDRESS": host.address,
            "RINGTUNE_RUN_DIR": str(run),
        }
        settings = [f"{name}={value}" for name, value in variables.items()]
        return host.command(["env", *settings, sys.executable, "-m", _WORKER, join])

    name = f"{shape.hosts}x{shape.slots}"
    return JobPlan(
        name,
        {name: name},
        shape.ranks,
        lambda join: [command(join, rank) for rank in range(shape.ranks)],
        {**os.environ, **thread_variables(1)},
        driver,
    )


def share_of_bytes(rate: str) -> float:
    """Of a profile's bytes, those that are played at a rate: all at 10 Gbit/s, as much less as links are slower."""
    return min(1.0, network.rate_number(rate) / _FULL_RATE)


def lighter(work: Workload, share: float) -> Workload:
    """The step with a share of its bytes, in whole float32 elements."""
    gradients = tuple(replace(one, bytes=max(4, round(one.bytes * share) // 4 * 4)) for one in work.gradients)
    return replace(work, gradients=gradients)


def document(work: Workload) -> dict[str, Any]:
    """A step as the workers read it."""
    return {
        "name": work.name,
        "ready_ns": [gradient.ready_ns for gradient in work.gradients],
        "bytes": [gradient.bytes for gradient in work.gradients],
        "backward_end_ns": work.backward_end_ns,
        "after_ns": work.after_ns,
    }
