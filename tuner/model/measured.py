"""The steps of a trace: when gradients were ready, how long ranks computed, how long batches travelled."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ringtune.errors import RingtuneError
from ringtune.knobs import DEFAULTS, Knobs
from ringtune.timeline.analysis.batches import BatchTable, RankSteps, batch_table, rank_steps
from ringtune.timeline.analysis.intervals import intersection, length
from ringtune.timeline.spans import Ints, Mask, SpanTable, Trace
from ringtune.timeline.vocabulary import CLOCK, Stage
from ringtune.tuner.model.collectives import STAGED_BYTES

Floats = NDArray[np.float64]

_COUNTED = re.compile(r"\bnoname\.\d+")

MOST_STEPS = 400
"""How many of the last steps count: enough for medians, and quick to resample."""

SKIPPED = 0.2
"""Share of the steps left out at the begin, where the runtime still learns the step schedule and caches are cold."""


@dataclass(frozen=True)
class Moved:
    """Batches and what they took, a row each.

    Attributes:
        bytes: Of its tensors.
        ns: For how long it kept the ranks from the next one: from when the last rank could begin until the last one
            was done, copies included.
        alone: It was one tensor.
        scheduled: It was one of a step schedule.
        idle: For how long nothing had moved before it, in ns.
        saved: Of that, time that the links could save up, in ns; computed by `calibrate`.
    """

    bytes: Floats
    ns: Floats
    alone: Mask
    scheduled: Mask
    idle: Floats
    saved: Floats

    @staticmethod
    def collectives(sizes: Floats, times_ns: Floats) -> Moved:
        """Collectives of one tensor each, one right after the other."""
        shape = np.shape(sizes)
        none = np.zeros(shape)
        return Moved(sizes, times_ns, np.ones(shape, np.bool_), np.zeros(shape, np.bool_), none, none)

    def __len__(self) -> int:
        return len(self.bytes)

    def take(self, chosen: Mask | Ints) -> Moved:
        """Return some of the rows."""
        return Moved(*(getattr(self, column.name)[chosen] for column in fields(self)))


@dataclass(frozen=True)
class Measured:
    """Notation: S steps, R ranks, G gradients; times in ns from the begin of the rank's own step.

    Attributes:
        sizes: Bytes of each gradient, (G,).
        ready: When each gradient was submitted, less what its rank had waited in this step, (S, G); mean over ranks.
        compute: Length of each rank's step less its waits, (S, R).
        after: From the end of the last wait to the end of the step, (S,); mean over ranks.
        length: Of the steps, (S,); mean over ranks.
        moved: The batches of these steps.
        moved_in: The step of each batch, as a row of the above.
        copy_ns: Of a byte into the fusion buffer and out again; None where nothing was copied.
        staged: No large batch was copied before its exchange.
        ping_ns: Half of the shortest round trip of a message between hosts; None where none was measured.
        hosts: Host of each rank.
        knobs: In force in these steps.
    """

    sizes: NDArray[np.int64]
    ready: Floats
    compute: Floats
    after: Floats
    length: Floats
    moved: Moved
    moved_in: Ints
    copy_ns: float | None
    staged: bool
    ping_ns: float | None
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
    moved, moved_in = _moved(batches, trace, common)
    return Measured(
        sizes=views[0].sizes,
        ready=np.mean([[row[0] for row in of_rank] for of_rank in rows], axis=0),
        compute=np.array([[row[1] for row in of_rank] for of_rank in rows]).T,
        after=np.mean([[row[2] for row in of_rank] for of_rank in rows], axis=0),
        length=np.mean([[row[3] for row in of_rank] for of_rank in rows], axis=0),
        moved=moved,
        moved_in=moved_in,
        copy_ns=_copy_ns(trace, common),
        staged=not _copied_first(trace, batches),
        ping_ns=_ping_ns(trace),
        hosts=_hosts(trace, batches.ranks),
        knobs=_knobs(trace),
    )


def _moved(batches: BatchTable, trace: Trace, steps: list[int]) -> tuple[Moved, Ints]:
    """Return what the batches of these steps took, in order, and the place of each one's step among these.

    A batch of a step schedule begins where the last rank has all its tensors, another one where it is agreed; both not
    before the rank is done with the batch before. (When ranks agree by a schedule over links, the bytes have moved.)
    """
    scheduled = np.isin(batches.ids, trace.spans.batch[trace.spans.fact("step_schedule", 0) == 1])
    can = np.where(scheduled[:, None], batches.submit, batches.agreed).max(axis=1, initial=0)
    done = batches.done.max(axis=1, initial=0)
    order = np.argsort(batches.begin.max(axis=1, initial=0), kind="stable")
    before = np.empty_like(done)
    before[order] = np.concatenate((can[order[:1]], done[order[:-1]]))
    sizes = batches.bytes.astype(np.float64)
    occupied = (done - np.maximum(can, before)).astype(np.float64)
    idle = np.maximum(can - before, 0).astype(np.float64)
    # Other tools run several collectives at once: one that ended before its predecessor does not show the links.
    chosen = order[np.isin(batches.step[order], steps) & (occupied[order] > 0)]
    moved = Moved(sizes, occupied, _alone(batches, trace), scheduled, idle, np.zeros_like(idle))
    return moved.take(chosen), np.searchsorted(steps, batches.step[chosen])


def _alone(batches: BatchTable, trace: Trace) -> Mask:
    """Which batches are one tensor; where a trace does not name tensors, all are."""
    tensors = trace.spans.of_stage(Stage.NEGOTIATE)
    ids = np.sort(tensors.take(np.isin(tensors.rank, batches.ranks[:1])).batch)
    number = np.searchsorted(ids, batches.ids, side="right") - np.searchsorted(ids, batches.ids, side="left")
    return np.asarray(number <= 1)


def _copy_ns(trace: Trace, steps: list[int]) -> float | None:
    copies = _by_host(trace.spans.take(np.isin(trace.spans.step, steps)))
    ways = [copies.of_stage(stage) for stage in (Stage.COPY_IN, Stage.COPY_OUT)]
    if any(way.bytes.sum() == 0 for way in ways):
        return None
    return sum(float(way.duration_ns.sum() / way.bytes.sum()) for way in ways)


def _copied_first(trace: Trace, batches: BatchTable) -> bool:
    """Whether large batches were copied as a whole, which has spans of its own."""
    large = batches.ids[batches.bytes >= STAGED_BYTES]
    return bool(np.isin(_by_host(trace.spans.of_stage(Stage.COPY_IN)).batch, large).any())


def _by_host(spans: SpanTable) -> SpanTable:
    """Return the spans that no GPU ran: packing and unpacking there cost the host nothing."""
    return spans.take(spans.fact("device") < 0)


def _ping_ns(trace: Trace) -> float | None:
    """The clocks' messages: the error of a sample is half of its round trip."""
    errors = [mark.args.get("error_ns") for mark in trace.instants_named(CLOCK)]
    return min((float(error) for error in errors if isinstance(error, int) and error > 0), default=None)


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
        if _names(inside) != usual:
            continue
        found[number] = _row(steps, index, inside.begin_ns)
        sizes = inside.bytes
    return _RankView(found, sizes) if found else None


def _row(steps: RankSteps, index: int, submits: NDArray[np.int64]) -> tuple[Floats, float, float, float]:
    begin, end = int(steps.begin[index]), int(steps.end[index])
    within = intersection(steps.waits, np.array([[begin, end]], dtype=np.int64))
    waited = length(within)
    # A wait before a submission only delayed it.
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
    sets = Counter(_names(tensors.take(tensors.step == step)) for step in np.unique(tensors.step).tolist())
    return sets.most_common(1)[0][0]


def _names(tensors: SpanTable) -> tuple[str, ...]:
    """Names in order, without the numbers of unnamed tensors, which count on from step to step."""
    return tuple(sorted(_COUNTED.sub("noname", text) for text in tensors.tensor_texts()))


def _hosts(trace: Trace, ranks: tuple[int, ...]) -> tuple[str, ...]:
    by_rank = {part.rank: part.host for part in trace.parts}
    if len(by_rank) == trace.size:  # also of ranks that recorded nothing themselves
        ranks = tuple(sorted(by_rank))
    return tuple(by_rank.get(rank, "") for rank in ranks)


def _knobs(trace: Trace) -> Knobs:
    changes = trace.instants_named("KNOBS")
    return Knobs.from_dict(changes[-1].args) if changes else DEFAULTS
