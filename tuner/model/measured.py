"""What a trace says about steps: when gradients were ready, how long ranks computed, how long batches travelled."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ringtune.errors import RingtuneError
from ringtune.knobs import DEFAULTS, Knobs
from ringtune.timeline.batches import BatchTable, RankSteps, batch_table, rank_steps
from ringtune.timeline.intervals import intersection, length
from ringtune.timeline.spans import SpanTable, Trace
from ringtune.timeline.vocabulary import Stage

Floats = NDArray[np.float64]

MOST_STEPS = 400
"""The last so many steps count: enough for medians, and quick to resample."""

SKIPPED = 0.2
"""Share of the steps left out at the begin, where the runtime still learns the plan and caches are cold."""


@dataclass(frozen=True)
class Measured:
    """Notation: S steps, R ranks, G gradients; times in ns from the begin of the rank's own step.

    Attributes:
        sizes: Bytes of each gradient, (G,).
        ready: When each gradient was submitted, less what its rank had waited in this step, (S, G); mean over ranks.
        compute: Length of each rank's step less its waits, (S, R).
        after: From the end of the last wait to the end of the step, (S,); mean over ranks.
        length: Of the steps, (S,); mean over ranks.
        moved: Bytes of every batch in these steps, (B,).
        travel: From the last rank's begin of a batch until its last end, (B,).
        hosts: Host of each rank.
        knobs: In force in these steps.
    """

    sizes: NDArray[np.int64]
    ready: Floats
    compute: Floats
    after: Floats
    length: Floats
    moved: Floats
    travel: Floats
    hosts: tuple[str, ...]
    knobs: Knobs


@dataclass(frozen=True)
class _RankView:
    """One rank's steps by number: when gradients were ready, computing, tail and length; the gradients' sizes."""

    rows: dict[int, tuple[Floats, float, float, float]]
    sizes: NDArray[np.int64]


def measure(trace: Trace) -> Measured:
    """Read steps off a trace.

    Raises:
        RingtuneError: It has no steps with collectives that all ranks recorded.
    """
    batches = batch_table(trace)
    batches = batches.take(batches.complete)
    views = [view for rank in batches.ranks if (view := _view(trace, batches, rank)) is not None]
    common = sorted(set.intersection(*(set(view.rows) for view in views))) if views else []
    common = common[int(len(common) * SKIPPED) :][-MOST_STEPS:]
    if not common:
        raise RingtuneError(
            "the trace has no steps with the same gradients on all ranks; record one with `ringtune run --timeline` "
            "of a script that uses DistributedOptimizer or marks its steps"
        )
    rows = [[view.rows[step] for step in common] for view in views]
    inside = np.isin(batches.step, common)
    return Measured(
        sizes=views[0].sizes,
        ready=np.mean([[row[0] for row in of_rank] for of_rank in rows], axis=0),
        compute=np.array([[row[1] for row in of_rank] for of_rank in rows]).T,
        after=np.mean([[row[2] for row in of_rank] for of_rank in rows], axis=0),
        length=np.mean([[row[3] for row in of_rank] for of_rank in rows], axis=0),
        moved=batches.bytes[inside].astype(np.float64),
        travel=(batches.end[inside].max(axis=1) - batches.begin[inside].max(axis=1)).astype(np.float64),
        hosts=_hosts(trace, batches.ranks),
        knobs=_knobs(trace),
    )


def _view(trace: Trace, batches: BatchTable, rank: int) -> _RankView | None:
    steps = rank_steps(trace, rank)
    tensors = _submits(trace, batches, rank)
    if steps is None or not len(tensors):
        return None
    usual = _usual_names(tensors)
    found: dict[int, tuple[Floats, float, float, float]] = {}
    sizes = np.zeros(0, dtype=np.int64)
    for index, number in enumerate(steps.number.tolist()):
        inside = tensors.take((tensors.step == number) & (tensors.begin_ns >= steps.begin[index]))
        inside = inside.take(np.argsort(inside.begin_ns, kind="stable"))
        if tuple(sorted(inside.tensor_texts())) != usual:
            continue
        found[number] = _row(steps, index, inside.begin_ns)
        sizes = inside.bytes
    return _RankView(found, sizes) if found else None


def _row(steps: RankSteps, index: int, submits: NDArray[np.int64]) -> tuple[Floats, float, float, float]:
    begin, end = int(steps.begin[index]), int(steps.end[index])
    within = intersection(steps.waits, np.array([[begin, end]], dtype=np.int64))
    waited = length(within)
    # Waiting that lies before a submission only moved it.
    spans = (np.array([[begin, max(at, begin + 1)]]) for at in submits.tolist())
    before = np.array([length(intersection(within, span)) for span in spans])
    after = end - int(within[-1, 1]) if len(within) else 0
    return (submits - begin - before).astype(np.float64), float(end - begin - waited), float(after), float(end - begin)


def _submits(trace: Trace, batches: BatchTable, rank: int) -> SpanTable:
    """Gradients as the rank submitted them; collectives themselves where a trace knows no more."""
    spans = trace.spans.of_rank(rank)
    tensors = spans.of_stage(Stage.NEGOTIATE)
    tensors = tensors.take(tensors.bytes > 0)
    return tensors if len(tensors) else spans.take((spans.stage == Stage.COMMUNICATE) & (spans.bytes > 0))


def _usual_names(tensors: SpanTable) -> tuple[str, ...]:
    """The names that most steps have."""
    texts = np.array(tensors.tensor_texts())
    sets = Counter(tuple(sorted(texts[tensors.step == step].tolist())) for step in np.unique(tensors.step).tolist())
    return sets.most_common(1)[0][0]


def _hosts(trace: Trace, ranks: tuple[int, ...]) -> tuple[str, ...]:
    by_rank = {part.rank: part.host for part in trace.parts}
    return tuple(by_rank.get(rank, "") for rank in ranks)


def _knobs(trace: Trace) -> Knobs:
    changes = trace.instants_named("KNOBS")
    return Knobs.from_dict(changes[-1].args) if changes else DEFAULTS
