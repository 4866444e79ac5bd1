"""From a trace to the terms of the model: a workload, the link, and their uncertainty."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
from scipy import optimize

from ringtune.knobs import Knobs
from ringtune.timeline.spans import Ints, Trace
from ringtune.tuner.model.cluster import MEMORY, Cluster, Link
from ringtune.tuner.model.collectives import serial_ns
from ringtune.tuner.model.measured import Floats, Measured, Moved, measure
from ringtune.tuner.model.replay import play, under_knobs
from ringtune.tuner.model.spread import expected_maximum
from ringtune.tuner.model.workload import Gradient, Workload

DRAWS = 40
"""Resamples of a trace's steps: their predictions' quantiles are the interval."""

FOLDS = 4
"""Stretches of steps that are left out of the fit in turn, to measure the model's error on them."""

USUAL_ERROR = 0.05
"""Relative; collectives further off than this count less and less."""

FASTEST = 1e12
"""Bytes/s; the largest bandwidth that is looked for."""

NEAR = 0.99
"""A fit from this share of `FASTEST` on has found no limit: large batches took no longer than small ones."""

WAKE_NS = 25e3
"""Ns until a rank that sleeps on its sockets reads a message, beyond the fastest ping; half to twice it is usual."""

HOLD = 0.02
"""A latency off by a factor of two is as bad as all batches off by so much."""

SHORTEST_BURST, LONGEST_BURST = 5e4, 1e7
"""ns; the buckets of links that are looked for."""

DOUBT = 20.0
"""How much more than chance a bucket must raise twice the logarithm of the likelihood."""


@dataclass(frozen=True)
class Model:
    """A calibrated job.

    Attributes:
        work: A rank's step.
        cluster: What it ran on.
        knobs: It ran with.
        draws: The same from resampled steps.
        measured_ns: Median length of its steps; None when the source has none.
        error: Of the model itself, relative: how far it was off steps that were left out of its fit.
        unsteady: How far the stretches of the measured steps differ from all of them, relative.
    """

    work: Workload
    cluster: Cluster
    knobs: Knobs
    draws: tuple[tuple[Workload, Cluster], ...] = ()
    measured_ns: float | None = None
    error: float = 0.0
    unsteady: float = 0.0


def calibrate(trace: Trace, name: str, seed: int = 0) -> Model:
    """Fit the model to a trace.

    Raises:
        RingtuneError: It has no steps to learn from.
    """
    return calibrate_to(measure(trace), name, seed)


def calibrate_to(found: Measured, name: str, seed: int = 0) -> Model:
    """Fit the model to the steps of a trace.

    Steps are resampled with all of their batches: what disturbs one batch of a step often disturbs the others.
    """
    random = np.random.default_rng(seed)
    count = len(found.length)
    work, cluster, moved = _fit(found, name)
    found = replace(found, moved=moved)
    draws = [_some(found, cluster, random.integers(count, size=count), name) for _ in range(DRAWS)]
    error = _left_out_error(found, cluster, name)
    measured_ns = float(np.median(found.length))
    return Model(work, cluster, found.knobs, tuple(draws), measured_ns, error, _unsteady(found.length))


def _left_out_error(found: Measured, cluster: Cluster, name: str) -> float:
    """Root mean square of the logarithms of predicted over measured length of steps left out of the fit.

    Each of `FOLDS` stretches of steps is left out once (cross-validation: M. Stone, 1974). Stretches, because
    neighbours resemble each other. Their noise is in the error too, which makes it rather too large.
    """
    steps = np.arange(len(found.length))
    errors = []
    for left_out in _stretches(len(steps)):
        work, again = _some(found, cluster, np.setdiff1d(steps, left_out), name)
        measured = float(np.median(found.length[left_out]))
        errors.append(math.log(play(work, again, found.knobs).length_ns / measured))
    return _root_mean_square(errors)


def _unsteady(lengths: Floats) -> float:
    """Root mean square of the logarithms of stretches' median length over that of all steps."""
    whole = float(np.median(lengths))
    return _root_mean_square([math.log(np.median(lengths[some]) / whole) for some in _stretches(len(lengths))])


def _stretches(steps: int) -> list[Ints]:
    return np.array_split(np.arange(steps), FOLDS) if steps >= FOLDS else []


def _root_mean_square(errors: list[float]) -> float:
    return math.sqrt(sum(error**2 for error in errors) / max(len(errors), 1))


def _some(found: Measured, cluster: Cluster, steps: Ints, name: str) -> tuple[Workload, Cluster]:
    """Workload and cluster from these steps alone."""
    order = np.argsort(found.moved_in, kind="stable")
    ends = np.searchsorted(found.moved_in[order], np.arange(len(found.length) + 1))
    batches = np.concatenate([order[ends[step] : ends[step + 1]] for step in steps.tolist()])
    again = refit(cluster, found.moved.take(batches), found.ping_ns)
    return _workload(_resampled(found, steps), name), again


def _resampled(found: Measured, steps: Ints) -> Measured:
    return replace(
        found,
        ready=found.ready[steps],
        compute=found.compute[steps],
        after=found.after[steps],
        length=found.length[steps],
    )


def fit(found: Measured, name: str) -> tuple[Workload, Cluster]:
    """Return the workload and the cluster that fit what a trace says, without resampling it."""
    return _fit(found, name)[:2]


def _fit(found: Measured, name: str) -> tuple[Workload, Cluster, Moved]:
    slots = max(Counter(found.hosts).values())
    blank = Cluster(ranks=len(found.hosts), slots=slots, copy_ns=found.copy_ns, staged=found.staged)
    cluster = under_knobs(blank, found.knobs)
    return _workload(found, name), *fit_link(cluster, found.moved, found.ping_ns)


def _workload(found: Measured, name: str) -> Workload:
    """Means over the usual steps: they add up to a step, unlike the medians of parts that take turns to be long."""
    usual = _resampled(found, _usual(found.length))
    compute = float(usual.compute.mean())
    after = min(float(usual.after.mean()), compute)
    backward_end = compute - after
    ready = np.minimum(np.maximum.accumulate(usual.ready.mean(axis=0)), backward_end)
    gradients = tuple(
        Gradient(size, at) for size, at in zip(found.sizes.tolist(), np.maximum(ready, 0.0).tolist(), strict=True)
    )
    return Workload(name, gradients, backward_end, after, *_lateness(usual.compute))


def _usual(lengths: Floats) -> Ints:
    """The steps of middle length: half of them."""
    low, high = np.quantile(lengths, (0.25, 0.75))
    return np.flatnonzero((lengths >= low) & (lengths <= high))


def _lateness(compute: Floats) -> tuple[float, float]:
    """Jitter and skew of a rank's computing, which give the lateness that was measured.

    The last of n ranks is late by the expected maximum of n normal variables times the jitter, or because it always is.
    """
    mean, ranks = float(compute.mean()), compute.shape[1]
    if ranks < 2 or mean <= 0.0:
        return 0.0, 0.0
    skew = float(compute.mean(axis=0).max()) / mean - 1.0
    late = float(compute.max(axis=1).mean()) / mean - 1.0
    return math.sqrt(max(late**2 - skew**2, 0.0)) / expected_maximum(ranks), skew


def fit_link(cluster: Cluster, moved: Moved, ping_ns: float | None = None) -> tuple[Cluster, Moved]:
    """Return the cluster with the terms of its widest links fitted to batches, and these with what links saved up.

    A batch's time is linear in latency and in 1/bandwidth, less what the links had saved up before it, so this is a
    robust fit of relative errors (soft L1), of which long batches weigh more: they make the steps. Such batches leave
    the latency open, which a bucket can hide as well: it is held near what a ping and a wake-up take. A bucket is
    believed in only where it explains the batches clearly better.

    Args:
        cluster: With the ranks that ran them.
        moved: The batches, in order.
        ping_ns: Latency of the fastest message, which found its reader awake, if it was measured.
    """
    if cluster.ranks < 2 or not len(moved):
        return cluster, moved
    fit = _Fit(cluster, moved, ping_ns)
    plain, cost = fit.solve(cluster.widest)
    if cluster.hosts == 1:
        return cluster.joined_by(plain), moved

    def with_bucket(burst_ns: float) -> tuple[Link, float]:
        found = plain
        for _ in range(3):  # the savings depend on the bandwidth, a little
            fit.bank(replace(found, burst_ns=burst_ns))
            found, cost = fit.solve(found)
        return replace(found, burst_ns=burst_ns), cost

    # The best of some buckets, then the best around it: costs have several valleys.
    bursts = np.geomspace(SHORTEST_BURST, LONGEST_BURST, 9)
    valley = float(min(bursts, key=lambda burst: with_bucket(float(burst))[1]))
    step = float(bursts[1] / bursts[0])
    best = optimize.minimize_scalar(
        lambda burst: with_bucket(burst)[1], bounds=(valley / step, valley * step), method="bounded"
    )
    found, bucket_cost = with_bucket(float(best.x))
    # Schwarz's criterion weighs one more term so, and more: a bucket must stand out from the noise.
    count, exact = len(moved), 1e-6 * len(moved)
    if count * np.log((cost + exact) / (bucket_cost + exact)) < np.log(count) + DOUBT:
        return cluster.joined_by(plain), moved
    return cluster.joined_by(found), fit.moved


def refit(cluster: Cluster, moved: Moved, ping_ns: float | None = None) -> Cluster:
    """Fit latency and bandwidth once more, to some of the batches that `fit_link` returned."""
    if cluster.ranks < 2 or not len(moved):
        return cluster
    link = cluster.widest
    found, _ = _Fit(cluster, moved, ping_ns).solve(link)
    return cluster.joined_by(replace(found, burst_ns=link.burst_ns))


class _Fit:
    """Batches, and what each needs beside its links, for 1 ns of latency, and for 1 ns a byte."""

    def __init__(self, cluster: Cluster, moved: Moved, ping_ns: float | None) -> None:
        self.moved = moved
        # A ping is measured between hosts only.
        pinged = ping_ns is not None and cluster.hosts > 1
        self.usual_ns = (ping_ns or 0.0) + WAKE_NS if pinged else cluster.widest.latency_ns
        kinds, kind = np.unique(np.stack((moved.bytes, moved.alone, moved.scheduled)), axis=1, return_inverse=True)

        def times(unit: Link) -> Floats:
            on = cluster.joined_by(unit)
            by_kind = [serial_ns(size, bool(alone), bool(scheduled), on) for size, alone, scheduled in kinds.T]
            return np.array(by_kind)[kind.reshape(-1)]

        # By what batches of a kind usually take: by its own time one that a busy core held up would weigh the most.
        usual = np.array([np.median(moved.ns[kind.reshape(-1) == at]) for at in range(kinds.shape[1])])
        lengths = usual[kind.reshape(-1)]
        self.weights = np.sqrt(lengths / max(float(np.mean(lengths)), 1.0))
        self.inside = cluster.hosts == 1
        self.still = times(Link(0.0, np.inf))
        self.by_latency = times(Link(1.0, np.inf)) - self.still
        self.by_inverse = times(Link(0.0, 1e9)) - self.still

    def solve(self, start: Link) -> tuple[Link, float]:
        """The link that explains the batches best, and the cost that it leaves."""
        begin = [1e9 / start.bytes_per_s, max(self.usual_ns, 1.0)]
        link, cost = self._best(begin, [1e9 / FASTEST, 1.0], [np.inf, np.inf])
        if self.inside and link.bytes_per_s >= NEAR * FASTEST:
            # What the batches took was no transfer. Within a host the bandwidth is about known: they give the latency.
            inverse = self._shortest_inverse()
            link, cost = self._best([inverse, begin[1]], [inverse * NEAR, 1.0], [inverse / NEAR, np.inf])
            link = replace(link, untold=True)
        return link, cost

    def _best(self, begin: list[float], low: list[float], high: list[float]) -> tuple[Link, float]:
        done = optimize.least_squares(
            self._errors, begin, bounds=(low, high), loss="soft_l1", f_scale=USUAL_ERROR, x_scale=begin
        )
        return Link(float(done.x[1]), 1e9 / float(done.x[0])), float(done.cost)

    def _shortest_inverse(self) -> float:
        """That of a host's memory, or of faster links where batches took less than twice what memory allows."""
        moving = self.by_inverse > 0
        shortest = float(np.min(self.moved.ns[moving] / self.by_inverse[moving])) / 2 if moving.any() else np.inf
        return min(1e9 / MEMORY.bytes_per_s, max(shortest, 1e9 / FASTEST / NEAR))

    def _errors(self, terms: Floats) -> Floats:
        inverse, latency = terms
        wire = self.by_inverse * inverse
        predicted = self.still + self.by_latency * latency + wire - np.minimum(self.moved.saved, wire)
        errors = self.weights * np.log(np.maximum(predicted, 1.0) / np.maximum(self.moved.ns, 1.0))
        held = np.sqrt(len(errors)) * HOLD * np.log2(latency / max(self.usual_ns, 1.0))
        return np.append(errors, held)

    def bank(self, link: Link) -> None:
        """Work out what the buckets of such links had saved up before each batch."""
        wire = (self.by_inverse * 1e9 / link.bytes_per_s).tolist()
        others = (self.still + self.by_latency * link.latency_ns).tolist()
        saved, level = [], link.burst_ns
        for needed, other, idle in zip(wire, others, self.moved.idle.tolist(), strict=True):
            saved.append(min(level + idle, link.burst_ns))
            level = min(saved[-1] - min(saved[-1], needed) + other, link.burst_ns)
        self.moved = replace(self.moved, saved=np.array(saved))


def check(model: Model) -> float | None:
    """Predicted over measured length of the steps that the model was fitted to, less 1; None without measured steps."""
    if model.measured_ns is None:
        return None
    return play(model.work, model.cluster, model.knobs).length_ns / model.measured_ns - 1.0
