"""From a trace to the terms of the model: a workload, the link, and how sure they are."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
from scipy import optimize

from ringtune.knobs import Knobs
from ringtune.timeline.spans import Ints, Trace
from ringtune.tuner.model.cluster import Cluster, Link
from ringtune.tuner.model.collectives import allreduce_ns
from ringtune.tuner.model.measured import Floats, Measured, measure
from ringtune.tuner.model.replay import play, under_knobs
from ringtune.tuner.model.workload import Gradient, Workload

DRAWS = 40
"""Resamples of a trace's steps: their predictions' quantiles are the interval."""

USUAL_ERROR = 0.05
"""Relative; collectives further off than this count less and less."""

FASTEST = 1e12
"""Bytes/s; what a link is at most taken for."""


@dataclass(frozen=True)
class Model:
    """A calibrated job.

    Attributes:
        work: A rank's step.
        cluster: What it ran on.
        knobs: It ran with.
        draws: The same from resampled steps.
        measured_ns: Median length of its steps; None when the source has none.
    """

    work: Workload
    cluster: Cluster
    knobs: Knobs
    draws: tuple[tuple[Workload, Cluster], ...] = ()
    measured_ns: float | None = None


def calibrate(trace: Trace, name: str, seed: int = 0) -> Model:
    """Fit the model to a trace.

    Raises:
        RingtuneError: It has no steps to learn from.
    """
    found = measure(trace)
    random = np.random.default_rng(seed)
    steps, batches = len(found.length), len(found.moved)
    work, cluster = fit(found, name)
    draws = tuple(
        fit(_resampled(found, random.integers(steps, size=steps), random.integers(batches, size=batches)), name)
        for _ in range(DRAWS)
    )
    return Model(work, cluster, found.knobs, draws, float(np.median(found.length)))


def _resampled(found: Measured, steps: Ints, batches: Ints) -> Measured:
    return replace(
        found,
        ready=found.ready[steps],
        compute=found.compute[steps],
        after=found.after[steps],
        length=found.length[steps],
        moved=found.moved[batches],
        travel=found.travel[batches],
    )


def fit(found: Measured, name: str) -> tuple[Workload, Cluster]:
    """Return the workload and the cluster that fit what a trace says, without resampling it."""
    slots = max(Counter(found.hosts).values())
    cluster = under_knobs(Cluster(ranks=len(found.hosts), slots=slots), found.knobs)
    cluster = fit_link(cluster, found.moved, found.travel)
    return _workload(found, name, cluster), cluster


def _workload(found: Measured, name: str, cluster: Cluster) -> Workload:
    compute = float(np.median(found.compute.mean(axis=1)))
    after = min(float(np.median(found.after)), compute)
    backward_end = compute - after
    ready = np.minimum(np.maximum.accumulate(np.median(found.ready, axis=0)), backward_end)
    gradients = tuple(
        Gradient(size, at) for size, at in zip(found.sizes.tolist(), np.maximum(ready, 0.0).tolist(), strict=True)
    )
    return Workload(name, gradients, backward_end, after, jitter=_jitter(found.compute))


def _jitter(compute: Floats) -> float:
    """Spread of a rank's computing from step to step, as a share: 1.4826 x median absolute deviation."""
    typical = np.median(compute, axis=0)
    return float(np.median(1.4826 * np.median(np.abs(compute / typical - 1.0), axis=0)))


def fit_link(cluster: Cluster, sizes: Floats, times_ns: Floats) -> Cluster:
    """Return the cluster with the latency and bandwidth of its widest links fitted to collectives.

    Every algorithm's time is linear in latency and in 1/bandwidth, so this is a robust non-negative fit of relative
    errors (soft L1) with two terms. Collectives of one size leave the latency open: it stays as it is.

    Args:
        cluster: With the ranks that ran them.
        sizes: Bytes of each collective.
        times_ns: How long it took.
    """
    if cluster.ranks < 2 or not len(sizes):
        return cluster
    link = cluster.widest
    kinds, kind = np.unique(sizes, return_inverse=True)

    def times(unit: Link) -> Floats:
        return np.array([allreduce_ns(float(size), _with_link(cluster, unit)) for size in kinds])

    still = times(Link(0.0, np.inf))
    by_latency, by_inverse = times(Link(1.0, np.inf)) - still, times(Link(0.0, 1e9)) - still

    def errors(terms: Floats) -> Floats:
        latency, inverse = terms if len(terms) == 2 else (link.latency_ns, terms[0])
        predicted = still + by_latency * latency + by_inverse * inverse
        return np.asarray(np.log(predicted[kind] / np.maximum(times_ns, 1.0)), dtype=np.float64)

    start = [link.latency_ns, 1e9 / link.bytes_per_s] if len(kinds) > 1 else [1e9 / link.bytes_per_s]
    low = [1.0, 1e9 / FASTEST][-len(start) :]
    best = optimize.least_squares(
        errors, np.maximum(start, low), bounds=(low, np.inf), loss="soft_l1", f_scale=USUAL_ERROR, x_scale=start
    )
    latency, inverse = best.x if len(best.x) == 2 else (link.latency_ns, best.x[0])
    return _with_link(cluster, Link(float(latency), 1e9 / float(inverse)))


def _with_link(cluster: Cluster, link: Link) -> Cluster:
    return replace(cluster, network=link) if cluster.hosts > 1 else replace(cluster, memory=link)


def check(model: Model) -> float | None:
    """Predicted over measured length of the steps that the model was fitted to, less 1; None without measured steps."""
    if model.measured_ns is None:
        return None
    return play(model.work, model.cluster, model.knobs).length_ns / model.measured_ns - 1.0
