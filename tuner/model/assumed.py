"""What the model assumes of terms that were not measured, how far it then errs, and when a model is not to be believed.

Horovod's published results (Sergeev and Del Balso 2018; `ringtune.benchmarks.predict.published`) give the terms: three
are fitted to three networks on 16 GPUs, and the error to the same networks on 128 and 512, which the fit has not seen.
Of the networks only the sizes are taken, ready at even distances; recorded backward passes give nearly the same (0.94,
0.20, 0.022). `tests/benchmarks/test_published.py` fits them anew.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ringtune.errors import RingtuneError
from ringtune.knobs import DEFAULTS
from ringtune.timeline.units import rate_text, time_text
from ringtune.tuner.model.calibrate import FASTEST, NEAR, Model, check
from ringtune.tuner.model.cluster import NETWORK, Cluster
from ringtune.tuner.model.spread import NORMAL_95
from ringtune.tuner.model.workload import Workload

LINE_SHARE = 0.90
"""Of a line's bandwidth, what its ring of links carries."""
CONTENTION = 0.18
"""Share of the time of communication by which it makes the computing beside it longer."""
JITTER = 0.023
"""Spread of a rank's computing from step to step, as a share."""
ERROR = 0.085
"""Relative error of a step, as a standard deviation: 95 % intervals of it hold nine of ten results that were not fitted
(all six: the farthest, VGG-16 on 512 GPUs, takes 16 % longer than predicted)."""

MOST_OFF = 0.25
"""A model that misses its own job's step by a larger share is not to be believed, unless the job itself changed so."""


def of_profile(work: Workload) -> Model:
    """Return the model of a job of which only one rank's step is known."""
    return Model(replace(work, jitter=JITTER), Cluster(ranks=1, contention=CONTENTION), DEFAULTS)


def unmeasured(model: Model, cluster: Cluster) -> bool:
    """Whether a cluster has links of a kind that the model's job did not use, or whose batches did not show them."""
    if cluster.ranks == 1:
        return False
    if model.cluster.ranks > 1 and model.cluster.widest.untold:
        return True
    return model.cluster.hosts == 1 if cluster.hosts > 1 else model.cluster.ranks == 1


def assumptions(
    model: Model,
    *,
    across: bool = True,
    bandwidth: bool = False,
    latency: bool = False,
    named: tuple[str, str] = ("--bandwidth", "--latency"),
) -> str:
    """Return in sentences what stands in for measured terms; "" if nothing.

    Args:
        model: Of the job.
        across: It is asked for on several hosts.
        bandwidth: The user gave that of a host's network.
        latency: The user gave that between hosts.
        named: What the user gives them by.
    """
    link = model.cluster.widest
    inside = (
        "Large batches took no longer than small ones (ranks were late, or waited for a core), so links within a host "
        f"are taken to carry {rate_text(link.bytes_per_s)}."
        if model.cluster.ranks > 1 and link.untold
        else ""
    )
    if model.cluster.hosts > 1 or not across:
        return inside
    links = [] if bandwidth else [f"{rate_text(NETWORK.bytes_per_s)} ({named[0]})"]
    links += [] if latency else [f"{time_text(NETWORK.latency_ns)} ({named[1]})"]
    terms = [f"links of {' and '.join(links)}"] if links else []
    fitted = [f"links carry {100 * LINE_SHARE:.0f} % of the bandwidth given"] if bandwidth else []
    if model.cluster.ranks == 1:
        fitted.append(f"computing spreads by {100 * JITTER:.1f} % from step to step")
        fitted.append(f"and takes longer by {100 * CONTENTION:.0f} % of the communication beside it")
    if fitted:
        terms.append(f"as fitted to Horovod's published results on 16 GPUs, {', '.join(fitted)}")
    what = f" Assumed: {'; '.join(terms)}." if terms else ""
    held = "Intervals hold Horovod's published results on 128 and 512 GPUs, which were not fitted."
    between = f"The network between hosts was not measured.{what} {held}"
    return f"{inside} {between}".strip()


def believed(model: Model) -> Model:
    """Return a model that gives back its own job.

    Raises:
        RingtuneError: It does not; the message says by how much, or which term no job has.
    """
    off = check(model)
    advice = "record more steps, of a job without late ranks (ringtune timeline doctor)"
    most = math.hypot(MOST_OFF, NORMAL_95 * model.unsteady)
    if off is not None and model.measured_ns is not None and abs(off) > most:
        raise RingtuneError(
            f"{model.work.name}: the model gives {100 * (1 + off):.0f} % of the job's own step of "
            f"{time_text(model.measured_ns)}, so it cannot be asked about others: {advice}"
        )
    link = model.cluster.widest
    if NORMAL_95 * model.error >= 1:
        raise RingtuneError(
            f"{model.work.name}: the model errs by {100 * model.error:.0f} % on steps that were left out of its fit, "
            f"so a prediction could be anything from nothing to more than its double: {advice}"
        )
    if model.cluster.ranks > 1 and link.bytes_per_s >= NEAR * FASTEST:
        raise RingtuneError(
            f"{model.work.name}: large batches took no longer than small ones, as if links carried "
            f"{rate_text(link.bytes_per_s)} after {time_text(link.latency_ns)}, so what another network or size would "
            f"take cannot be told: {advice}"
        )
    return model
