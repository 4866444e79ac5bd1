"""What an allreduce costs: the runtime's algorithms in terms of latency and bandwidth.

The formulas are those of Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in
MPICH" (2005), without the cost of adding, which the calibrated bandwidth holds. The algorithms are those of
native/collective/algorithm.h.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ringtune.algorithms import Rule
from ringtune.tuner.model.cluster import AUTO, Cluster, Link

RING, HIERARCHICAL = "ring", "hierarchical"

_KIB = 1 << 10

LEADER_BYTES = 32 * _KIB
"""By levels: up to so many bytes one rank of a host sends between hosts, beyond it each sends a slice."""

VOTES_FIRST_BYTES = 1 << 20
"""A tensor that is alone in its batch of a step schedule is reduced in place from this size on, after a round of votes
(native/runtime/link_round.cc)."""

STAGED_BYTES = 512 * _KIB
"""From this size on copies go on beside a ring's exchange (native/runtime/batch_copies.h)."""

BUILT_IN: tuple[Rule, ...] = (
    Rule("network", 4, 64 * _KIB, "recursive-doubling"),
    Rule("network", 4, 0, "ring"),
    Rule("network", 0, 32 * _KIB, "recursive-doubling"),
    Rule("network", 0, 512 * _KIB, "halving-doubling"),
)
"""The rows of native/collective/algorithm.cc for ranks that share no memory."""


def ring_ns(size: float, ranks: int, link: Link) -> float:
    """2 (n - 1) steps of 1/n of the bytes."""
    return 0.0 if ranks < 2 else 2 * (ranks - 1) * link.send_ns(size / ranks)


def flat_ns(size: float, ranks: int, link: Link) -> float:
    """One step in which each sends everything to all others, one after the other over its own link."""
    return 0.0 if ranks < 2 else link.latency_ns + (ranks - 1) * size / link.bytes_per_s * 1e9


def recursive_doubling_ns(size: float, ranks: int, link: Link) -> float:
    """Exchanges of everything with partners at doubling distances; two more steps for ranks beyond a power of two."""
    if ranks < 2:
        return 0.0
    power = int(math.log2(ranks))
    steps = power + 2 if 1 << power < ranks else power
    return steps * link.send_ns(size)


def halving_doubling_ns(size: float, ranks: int, link: Link) -> float:
    """Exchanges that halve, then exchanges that double: 2 log2 n steps, the ring's bytes."""
    if ranks < 2:
        return 0.0
    power = int(math.log2(ranks))
    among = 1 << power
    extra = 2 * link.send_ns(size) if among < ranks else 0.0
    return 2 * power * link.latency_ns + 2 * size * (among - 1) / among / link.bytes_per_s * 1e9 + extra


def tree_ns(size: float, ranks: int, link: Link) -> float:
    """Up a binomial tree and down again."""
    return 0.0 if ranks < 2 else 2 * math.ceil(math.log2(ranks)) * link.send_ns(size)


def shared_ns(size: float, ranks: int, link: Link) -> float:
    """All ranks of a host through shared memory: each packs, reduces its part and copies back, at the ring's bytes.

    `bytes_per_s` is that of the tensor over two ranks (factor 1), as `ringtune bench allreduce -np 2` shows it.
    """
    if ranks < 2:
        return 0.0
    moved = 2 * (ranks - 1) / ranks * size
    return link.latency_ns * math.ceil(math.log2(ranks)) + moved / link.bytes_per_s * 1e9


_BY_NAME = {
    "flat": flat_ns,
    "recursive-doubling": recursive_doubling_ns,
    "halving-doubling": halving_doubling_ns,
    "tree": tree_ns,
}


def choose(size: float, cluster: Cluster) -> str:
    """Return the algorithm the runtime takes between hosts: by levels where hosts have several ranks, else by table."""
    if cluster.algorithm != AUTO:
        return cluster.algorithm
    return HIERARCHICAL if cluster.local > 1 else by_table(size, cluster.ranks, cluster)


def by_table(size: float, ranks: int, cluster: Cluster) -> str:
    """Return the algorithm of the first rule that fits so many bytes and ranks on hosts of their own."""
    for rule in cluster.rules or BUILT_IN:
        fits = rule.max_ranks == 0 or ranks <= rule.max_ranks
        if rule.links == "network" and fits and size <= (rule.max_bytes or math.inf):
            return rule.algorithm
    return RING


def allreduce_ns(size: float, cluster: Cluster) -> float:
    """Time of one allreduce of `size` bytes over all ranks, from the moment when the last one has begun.

    The ranks of a host share its link: a ring passes it once, the others send as many copies as there are ranks.
    """
    if cluster.ranks < 2 or size <= 0:
        return 0.0
    if cluster.hosts == 1:
        return shared_ns(size, cluster.ranks, cluster.memory)
    name = choose(size, cluster)
    if name == HIERARCHICAL:
        return _levels_ns(size, cluster)
    if name == RING:
        return ring_ns(size, cluster.ranks, replace(cluster.network, latency_ns=_hop_ns(cluster)))
    way_out = Link(cluster.network.latency_ns, cluster.network.bytes_per_s / cluster.local)
    return _BY_NAME[name](size, cluster.ranks, way_out)


def _hop_ns(cluster: Cluster) -> float:
    """Latency of a step of the ring: of all hops one a host goes over the network, the others stay within."""
    inside = cluster.ranks - cluster.hosts
    return (cluster.hosts * cluster.network.latency_ns + inside * cluster.memory.latency_ns) / cluster.ranks


def _levels_ns(size: float, cluster: Cluster) -> float:
    """Within hosts, then across, then within: slices of all ranks side by side, or one rank of each host alone."""
    sliced = size > LEADER_BYTES and cluster.ranks % cluster.local == 0
    inside = shared_ns if sliced else tree_ns
    name = by_table(size / cluster.local if sliced else size, cluster.hosts, cluster)
    across = ring_ns if name == RING else _BY_NAME[name]
    return inside(size, cluster.local, cluster.memory) + across(size, cluster.hosts, cluster.network)


def copies_beside(size: float, cluster: Cluster) -> bool:
    """Whether the copies of a batch of so many bytes go on beside its exchange."""
    if not cluster.staged or size < STAGED_BYTES:
        return False
    return choose(size, cluster) == RING


def batch_ns(size: float, alone: bool, scheduled: bool, cluster: Cluster) -> float:
    """Time for which a batch keeps the ranks from the next one: copies, votes and the collective.

    Args:
        size: Bytes of its tensors.
        alone: They are one tensor.
        scheduled: It is a batch of a step schedule, so that the ranks vote on it.
        cluster: Whose ranks.
    """
    if cluster.hosts == 1:
        return serial_ns(size, alone, scheduled, cluster)
    in_place = _in_place(size, alone, scheduled)
    beside = 0.0 if in_place or not copies_beside(size, cluster) else size * cluster.copies_ns
    return serial_ns(size, alone, scheduled, cluster) + crowded_ns(size, cluster, beside)


def _in_place(size: float, alone: bool, scheduled: bool) -> bool:
    return alone and (not scheduled or size >= VOTES_FIRST_BYTES)


def serial_ns(size: float, alone: bool, scheduled: bool, cluster: Cluster) -> float:
    """The same where cores keep up with the links: linear in their latency and in the inverse of their bandwidth.

    Args:
        size: Bytes of its tensors.
        alone: They are one tensor.
        scheduled: It is a batch of a step schedule, so that the ranks vote on it.
        cluster: Whose ranks.
    """
    if cluster.hosts == 1:
        return cluster.batch_ns + allreduce_ns(size, cluster)
    in_place = _in_place(size, alone, scheduled)
    before = 0.0 if in_place or copies_beside(size, cluster) else size * cluster.copies_ns
    if in_place and scheduled:
        before = math.ceil(math.log2(cluster.ranks)) * cluster.network.latency_ns
    return cluster.batch_ns + before + allreduce_ns(size, cluster)


def crowded_ns(size: float, cluster: Cluster, beside: float = 0.0) -> float:
    """By how much an allreduce takes longer where cores cannot feed the links: shared ones, or busy with copies.

    Links and cores both bound the rate of bytes. A core that several hosts share has work while one of them waits for
    its link, so the two go on side by side, and the longer one counts.
    """
    work = beside
    if (effort := cluster.effort_ns(size)) <= 0.0 and not work:
        return 0.0
    wire = wire_ns(size, cluster)
    return max(work + wire * cluster.network.bytes_per_s / 1e9 * effort - wire, 0.0)


def wire_ns(size: float, cluster: Cluster) -> float:
    """Of an allreduce, the time that its bytes take on the widest links."""
    endless = cluster.joined_by(Link(cluster.widest.latency_ns, math.inf))
    return allreduce_ns(size, cluster) - allreduce_ns(size, endless)
