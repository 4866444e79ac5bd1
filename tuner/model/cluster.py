"""The links between a job's ranks: latency, bandwidth, and the computing time that communication takes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ringtune.algorithms import ALGORITHMS, Rule
from ringtune.errors import UsageError


@dataclass(frozen=True)
class Link:
    """A link between two ranks.

    Attributes:
        latency_ns: From the begin of a send to the receipt of an empty message.
        bytes_per_s: Of a long message.
        burst_ns: Time that it can catch up after a rest as long: the bucket of a shaped link.
        untold: Batches did not show its bandwidth, so a usual one is assumed.
    """

    latency_ns: float
    bytes_per_s: float
    burst_ns: float = 0.0
    untold: bool = False

    def __post_init__(self) -> None:
        """Check the terms.

        Raises:
            UsageError: A negative latency or no bandwidth.
        """
        if self.latency_ns < 0 or self.burst_ns < 0 or not self.bytes_per_s > 0:
            raise UsageError(f"a link of {self.latency_ns} ns and {self.bytes_per_s} bytes/s: expected >= 0 and > 0")

    def send_ns(self, size: float) -> float:
        """Time until a message of so many bytes has arrived."""
        return self.latency_ns + size / self.bytes_per_s * 1e9

    def faster(self, factor: float) -> Link:
        """The same link with `factor` times the bandwidth."""
        return replace(self, bytes_per_s=self.bytes_per_s * factor)


Effort = tuple[tuple[float, float], ...]
"""By bytes of a batch, in rising order: ns of a core for a byte that a rank sends and receives."""

AUTO = "auto"

MEMORY = Link(700.0, 12e9)
"""Between ranks of one host, before a trace says better: measured with `ringtune bench allreduce`."""

NETWORK = Link(30e3, 1.15e9)
"""Between hosts: 10 Gbit/s Ethernet with TCP."""


@dataclass(frozen=True)
class Cluster:
    """So many ranks on hosts of so many slots.

    Attributes:
        ranks: Of the job.
        slots: Ranks of a host; those of the last host may be fewer.
        memory: Between ranks of one host.
        network: Between hosts; the ranks of a host share its bandwidth.
        contention: Share of the time of communication by which it makes computing longer that goes on meanwhile.
        batch_ns: Cost of a batch beside its collective and copies.
        copy_ns: Of a byte into the fusion buffer and out again; None: two passes over the memory of a host.
        staged: Copies of large batches between hosts go on beside the exchange; in traces of other tools they do not.
        control_ns: From the last rank's ready request to the decision, for each level of the tree of ranks.
        control_fan: Children of a rank in that tree.
        algorithm: Of allreduces between hosts; `AUTO` as the runtime chooses.
        cores: That all ranks share, where their hosts are containers or namespaces of one machine: copies, which all
            ranks make at the same time, then take turns. None: each rank has one for itself.
        effort: What bytes between hosts cost the cores, where these are shared; nothing: not known, and not counted.
        rules: What it chooses by size, ranks and links, as in `ringtune.algorithms`; none: the built-in table.
    """

    ranks: int
    slots: int = 1
    memory: Link = MEMORY
    network: Link = NETWORK
    contention: float = 0.0
    batch_ns: float = 0.0
    copy_ns: float | None = None
    staged: bool = True
    control_ns: float = 50e3
    control_fan: int = 8
    algorithm: str = AUTO
    rules: tuple[Rule, ...] = ()
    cores: int | None = None
    effort: Effort = ()

    def __post_init__(self) -> None:
        """Check the shape and the words.

        Raises:
            UsageError: No ranks, no slots or no cores, or no such algorithm.
        """
        if self.ranks < 1 or self.slots < 1:
            raise UsageError(f"{self.ranks} ranks on hosts of {self.slots} slots: expected at least one of each")
        if self.cores is not None and self.cores < 1:
            raise UsageError(f"{self.cores} cores: expected at least one")
        known = (AUTO, *ALGORITHMS[1:])
        if self.algorithm not in known:
            raise UsageError(f"no algorithm {self.algorithm!r}: expected one of {', '.join(known)}")

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return math.ceil(self.ranks / self.slots)

    @property
    def local(self) -> int:
        """Ranks of a full host."""
        return min(self.ranks, self.slots)

    @property
    def widest(self) -> Link:
        """The links that bound a collective: between hosts if there are several, else within the host."""
        return self.network if self.hosts > 1 else self.memory

    def joined_by(self, link: Link) -> Cluster:
        """The same ranks with other widest links."""
        return replace(self, network=link) if self.hosts > 1 else replace(self, memory=link)

    @property
    def copies_ns(self) -> float:
        """Of a byte into the fusion buffer and out again, on every rank."""
        alone = 2e9 / self.memory.bytes_per_s if self.copy_ns is None else self.copy_ns
        return alone if self.cores is None else alone * max(1.0, self.ranks / self.cores)

    def effort_ns(self, size: float) -> float:
        """Of a byte that a host sends and receives in a batch of such size, all hosts at once on the shared cores."""
        if self.cores is None or self.hosts <= self.cores or not self.effort or size <= 0:
            return 0.0
        sizes, costs = zip(*self.effort, strict=True)
        return float(np.interp(math.log(size), np.log(sizes), costs)) * self.hosts / self.cores

    @property
    def decision_ns(self) -> float:
        """From the last ready request to the decision on every rank: up and down the tree."""
        return self.control_ns * max(1, math.ceil(math.log(max(self.ranks, 2), self.control_fan)))
