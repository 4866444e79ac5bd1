"""A check of a job's links: their rates, the efficiency to expect, and warnings. Pure.

`preflight_worker` measures on the ranks; this module makes a model of the cluster, efficiencies and warnings of it.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ringtune.knobs import DEFAULTS
from ringtune.timeline.units import time_text
from ringtune.tuner.model.calibrate import Model, fit_link, refit
from ringtune.tuner.model.cluster import Cluster
from ringtune.tuner.model.measured import Moved
from ringtune.tuner.model.questions import Answer, Change, ask
from ringtune.tuner.model.workload import Workload
from ringtune.tuner.scoring import Interval, median_interval

SLOW_BYTES_PER_S = 0.3e9
"""A network below this (2.4 Gbit/s) is 1 GbE or the like, too slow for data-parallel training."""

SLOWER = 0.7
"""A link with less than this share of the median rate is named."""

LATER = 3.0
LATE_NS = 200e3
"""A link is named whose latency is this many times the median, and at least this long."""

POOR = 0.7
"""An efficiency below this gives a warning."""

_DRAWS = 20
_OF_A_SIZE = 12


@dataclass(frozen=True)
class HostLink:
    """The way from a host to the next one: what its first ranks measured, one stream in each direction at once.

    Attributes:
        source: Host.
        target: Host.
        latency_ns: Half of a round trip; median with its 95 % interval.
        bytes_per_s: What arrived, the same of slices of the time.
    """

    source: str
    target: str
    latency_ns: Interval
    bytes_per_s: Interval


@dataclass(frozen=True)
class Findings:
    """What was measured.

    Attributes:
        hosts: Of each rank.
        transports: `transports[a][b]` is how rank a reaches rank b: ``self``, ``shm`` or ``tcp``.
        links: Between hosts.
        times_ns: Of allreduces over all ranks, by bytes.
        copy_ns: Of a byte into a buffer and out again; median over all ranks with its 95 % interval.
    """

    hosts: tuple[str, ...]
    transports: tuple[tuple[str, ...], ...]
    links: tuple[HostLink, ...]
    times_ns: Mapping[int, tuple[float, ...]]
    copy_ns: Interval


def findings(ranks: Sequence[Mapping[str, Any]]) -> Findings:
    """Combine the ranks' measurements: an allreduce takes as long as on its slowest rank."""
    hosts = tuple(str(rank["host"]) for rank in ranks)
    links = []
    for rank in ranks:
        if (link := rank.get("link")) is not None:
            # Received bytes count, since sent ones may still lie in a buffer.
            rates = [max(rate, 1.0) for rate in ranks[link["to"]]["link"]["received_bytes_per_s"]] or [1.0]
            latency = median_interval([trip / 2 for trip in link["round_trips_ns"]])
            links.append(HostLink(str(rank["host"]), hosts[link["to"]], latency, median_interval(rates)))
    times: dict[int, tuple[float, ...]] = {}
    for of_size in zip(*(rank["collectives"] for rank in ranks), strict=True):
        slowest = np.max([one["times_ns"] for one in of_size], axis=0)
        times[int(of_size[0]["bytes"])] = tuple(float(time) for time in slowest)
    copy_ns = median_interval([copy for rank in ranks for copy in rank["copies_ns"]])
    return Findings(hosts, tuple(tuple(rank["transports"]) for rank in ranks), tuple(links), times, copy_ns)


def clusters(found: Findings, seed: int = 0) -> list[Cluster]:
    """The job's ranks and links in the model's terms, and the same from resampled collectives."""
    blank = Cluster(len(found.hosts), max(Counter(found.hosts).values()), copy_ns=found.copy_ns.median)
    # As many of each size: the small ones, which are many, would make outliers of the large ones.
    some = {size: times[:: max(len(times) // _OF_A_SIZE, 1)][:_OF_A_SIZE] for size, times in found.times_ns.items()}
    moved = Moved.collectives(
        np.array([float(size) for size, times in some.items() for _ in times]),
        np.array([time for times in some.values() for time in times]),
    )
    ping = min((link.latency_ns.median for link in found.links), default=None)
    first, moved = fit_link(blank, moved, ping)
    random = np.random.default_rng(seed)
    rows = len(moved)
    return [
        first,
        *(refit(first, moved.take(random.integers(rows, size=rows)), ping) for _ in range(_DRAWS * (rows > 0))),
    ]


def expected(some: Sequence[Cluster], work: Workload) -> Answer:
    """A step of `work` on the measured cluster."""
    model = Model(work, some[0], DEFAULTS, tuple((work, cluster) for cluster in some[1:]))
    return ask(model, Change(work.name))


def on(some: Sequence[Cluster], model: Model) -> Answer:
    """A step of a calibrated job on the measured cluster."""
    draws = tuple((work, cluster) for (work, _), cluster in zip(model.draws, some[1:], strict=False))
    return ask(replace(model, cluster=some[0], draws=draws), Change(model.work.name))


def fitted(some: Sequence[Cluster]) -> dict[str, Interval]:
    """The widest links' terms that predictions rest on, with what resampling makes of them (95 %)."""
    links = [cluster.widest for cluster in some]
    terms = {"latency_ns": [one.latency_ns for one in links], "bytes_per_s": [one.bytes_per_s for one in links]}
    return {name: Interval(values[0], *np.quantile(values, (0.025, 0.975)).tolist()) for name, values in terms.items()}


def warnings(found: Findings, answers: Sequence[Answer]) -> list[str]:
    """A sentence for every expectation that will not be met."""
    return [*_slow_links(found.links), *_late_links(found.links), *_unshared(found), *_poor(answers)]


def _slow_links(links: Sequence[HostLink]) -> list[str]:
    said = []
    rates = [link.bytes_per_s.median for link in links]
    slow = [rate < SLOW_BYTES_PER_S for rate in rates]
    if links and all(slow):
        fastest = max(rates)
        said.append(
            f"the network between hosts carries {bits_text(fastest)}: at most 1 GbE or the like, on which gradients of "
            f"100 MB need {time_text(1e17 / fastest)} or more a step; name the fast interface (RINGTUNE_INTERFACE) if "
            "there is one"
        )
        slow = [False] * len(links)
    for place, (link, rate) in enumerate(zip(links, rates, strict=True)):
        others = [*rates[:place], *rates[place + 1 :]]
        usual = statistics.median(others) if others else rate
        if slow[place] or rate < SLOWER * usual:
            said.append(
                f"{link.source} -> {link.target} carries {bits_text(rate)}, the others {bits_text(usual)}: "
                "every allreduce waits for it"
            )
    return said


def _late_links(links: Sequence[HostLink]) -> list[str]:
    usual = statistics.median(link.latency_ns.median for link in links) if links else 0.0
    return [
        f"{link.source} -> {link.target} answers after {time_text(link.latency_ns.median)}, "
        f"the others after {time_text(usual)}"
        for link in links
        if link.latency_ns.median > max(LATER * usual, LATE_NS)
    ]


def _unshared(found: Findings) -> list[str]:
    pairs = [
        (first, second)
        for first in range(len(found.hosts))
        for second in range(first + 1, len(found.hosts))
        if found.hosts[first] == found.hosts[second] and found.transports[first][second] == "tcp"
    ]
    if not pairs:
        return []
    first, second = pairs[0]
    return [
        f"ranks {first} and {second} on {found.hosts[first]} talk over TCP, where shared memory was expected "
        f"({len(pairs)} such pair{'s' if len(pairs) > 1 else ''}): are they in different containers, or is "
        "RINGTUNE_TRANSPORT=tcp set?"
    ]


def _poor(answers: Sequence[Answer]) -> list[str]:
    return [
        f"{answer.change.label} would train at {100 * answer.efficiency.value:.0f} % efficiency: "
        f"{time_text(answer.step.waiting_ns)} of every step of {time_text(answer.step_ns.value)} wait for the network"
        for answer in answers
        if answer.efficiency.value < POOR
    ]


def bits_text(bytes_per_s: float) -> str:
    """A rate as networks are named: ``9.41 Gbit/s``."""
    bits = 8 * bytes_per_s
    return f"{bits / 1e9:.3g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.3g} Mbit/s"


def document(found: Findings, some: Sequence[Cluster], answers: Sequence[Answer]) -> dict[str, Any]:
    """Everything for JSON; measured figures as medians with their 95 % intervals."""
    return {
        "format": 1,
        "ranks": len(found.hosts),
        "hosts": len(set(found.hosts)),
        "links": [
            {
                "from": one.source,
                "to": one.target,
                "latency_ns": one.latency_ns.as_dict(),
                "bytes_per_s": one.bytes_per_s.as_dict(),
            }
            for one in found.links
        ],
        "allreduce": [
            {"bytes": size, "time_ns": median_interval(times).as_dict()} for size, times in found.times_ns.items()
        ],
        "copy_ns": found.copy_ns.as_dict(),
        "model": {name: term.as_dict() for name, term in fitted(some).items()},
        "expected": [answer.as_dict() for answer in answers],
        "warnings": warnings(found, answers),
    }
