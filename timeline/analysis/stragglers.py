"""Stragglers: who made the others wait, when, by which cause, and what it cost the job.

Lateness and its causes are those of `ringtune.timeline.analysis.lateness`, the verdicts those of
`ringtune.timeline.analysis.verdicts`. Batches of a step are not independent: a rank late in one is late in the next. So
a step counts once, with the latest of its batches, of all ranks or of a group. Evidence beside the verdicts are tests
that draw steps: per rank a one-sided binomial test against 1/R, R the ranks of those batches (Holm's correction); over
all ranks a permutation test of the lateness in batches of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ringtune.timeline.analysis.arrivals import (
    LastOnes,
    clock_errors,
)
from ringtune.timeline.analysis.batches import batch_table
from ringtune.timeline.analysis.buckets import bucket_names
from ringtune.timeline.analysis.lateness import Evidence, Late, lateness_by_cause, of_batches, of_ticks
from ringtune.timeline.analysis.patterns import Job
from ringtune.timeline.analysis.pauses import pauses
from ringtune.timeline.analysis.significance import binomial_tail, holm, permutation_test
from ringtune.timeline.analysis.steps import step_lengths
from ringtune.timeline.analysis.together import groups
from ringtune.timeline.analysis.verdicts import Turns, Verdict, find_verdicts, pause_verdict, sentence, turns_sentence
from ringtune.timeline.spans import Ints, Trace
from ringtune.timeline.units import tensor_text
from ringtune.timeline.vocabulary import Stage

CAUSES = ("compute", "negotiation", "network")


@dataclass(frozen=True)
class CauseLateness:
    """One cause on one rank. Steps in which it was last; lateness summed over those steps, and its largest."""

    steps_last: int
    total_ns: int
    largest_ns: int
    p_value: float


@dataclass(frozen=True)
class RankLateness:
    """One rank. ``carried_ns``: lateness of its submits inherited from being released late; ``verdict``: causes of the
    verdicts about it, by cost.
    """

    rank: int
    host: str
    causes: dict[str, CauseLateness]
    carried_ns: int
    verdict: tuple[str, ...]


@dataclass(frozen=True)
class HostLateness:
    """All ranks of a host together: steps in which one of them was last, by cause."""

    host: str
    ranks: int
    steps_last: dict[str, int]
    total_ns: dict[str, int]


@dataclass(frozen=True)
class TensorLateness:
    """A tensor: how often it was waited for, the rank that was last most often, and the lateness summed."""

    tensor: str
    times: int
    undecided: int
    rank: int
    rank_times: int
    total_ns: int


@dataclass(frozen=True)
class StepLateness:
    """A step in which a rank was late: the cause with the largest lateness."""

    step: int
    cause: str
    rank: int
    lateness_ns: int


@dataclass(frozen=True)
class Stragglers:
    """Everything, by cost. ``significance``: p-value of the permutation test over all ranks, by cause (1: nothing to
    test). ``job_ns``: what the verdicts' costs are shares of.
    """

    verdicts: tuple[Verdict, ...]
    turns: tuple[Turns, ...]
    job_ns: int
    steps: int
    batches: int
    incomplete: int
    ranks: tuple[RankLateness, ...]
    hosts: tuple[HostLateness, ...]
    tensors: tuple[TensorLateness, ...]
    worst_steps: tuple[StepLateness, ...]
    significance: dict[str, float]

    def sentences(self) -> list[str]:
        """Return what the job lost and to whom, worst first; never empty."""
        found = [sentence(one) for one in self.verdicts] + ([turns_sentence(self.turns)] if self.turns else [])
        return found or ["no straggler: no rank's lateness costs a percent of the job"]

    def to_json(self) -> dict[str, Any]:
        """Return plain data, sentences included."""
        return {"sentences": self.sentences(), **asdict(self)}


def stragglers(trace: Trace, largest: int = 20, *, permuted: bool = True) -> Stragglers:
    """Find who made the others wait; at most ``largest`` tensors and steps are listed.

    Args:
        trace: Of all ranks.
        largest: How many tensors and steps are listed; nobody looks for any where it is 0.
        permuted: Compute ``significance`` too, which takes most of the time; otherwise it is empty.

    Raises:
        RingtuneError: Neither did two ranks run a batch together, nor are there ticks of Horovod's coordinator.
    """
    everything = batch_table(trace).with_data()
    table = everything.take(everything.whole)
    by_batches = len(table.ranks) > 1 and len(table.ids) > 0
    if by_batches:
        evidence = of_batches(trace, table, len(everything.ids) - len(table.ids), tensors=largest > 0)
    else:
        evidence = of_ticks(trace)
    tests = {cause: _tests(late, len(evidence.ranks)) for cause, late in evidence.late.items()}
    hosts = {part.rank: part.host for part in trace.parts}
    ranks = [
        _rank((column, rank, hosts.get(rank, "")), evidence.late, tests, evidence.carried)
        for column, rank in enumerate(evidence.ranks)
    ]
    job = _job(trace, evidence)
    together = groups(trace, table, clock_errors(trace), evidence.late, job) if by_batches else ()
    verdicts, turns = find_verdicts(trace, evidence.late, tests, evidence.ranks, job, together)
    ranks = [replace(rank, verdict=_causes_of(rank.rank, verdicts)) for rank in ranks]
    return Stragglers(
        verdicts=verdicts,
        turns=turns,
        job_ns=job.length_ns,
        steps=evidence.steps,
        batches=evidence.batches,
        incomplete=evidence.incomplete,
        ranks=tuple(ranks),
        hosts=tuple(_hosts(ranks)),
        tensors=tuple(_tensors(evidence.tensors, evidence.names, bucket_names(trace))[:largest]),
        worst_steps=tuple(_worst(_steps(evidence.ranks, evidence.late))[:largest]) if largest else (),
        significance={
            cause: _permutation_p(late, len(evidence.ranks)) for cause, late in evidence.late.items() if permuted
        },
    )


def paused(trace: Trace) -> Verdict | None:
    """Return the pauses of all ranks at once; None where they cost less than a percent of the job."""
    steps = trace.spans.of_stage(Stage.STEP)
    lengths = step_lengths(trace.spans)[1]
    if not len(lengths):
        return None
    length = int(steps.end_ns.max() - steps.begin_ns.min())
    return pause_verdict(trace, pauses(trace), Job(max(1, length), float(np.median(lengths)), len(trace.ranks)))


def late_in_steps(trace: Trace) -> list[StepLateness]:
    """Return who was last in which step and by which cause, and nothing else: what `stragglers` has of each step.

    For a few steps of a job that goes on. Empty where no two ranks ran a batch together.
    """
    table = batch_table(trace).with_data()
    table = table.take(table.whole)
    if len(table.ranks) < 2 or not len(table.ids):
        return []
    late, _ = lateness_by_cause(trace, table, clock_errors(trace))
    return list(_steps(table.ranks, late))


def _tests(late: Late, ranks: int) -> list[float]:
    decided = int((late.column >= 0).sum())
    hits = [int((late.column == column).sum()) for column in range(ranks)]
    probability = float(late.probability[late.column >= 0].mean()) if decided else 1.0
    return holm([binomial_tail(count, decided, probability) if count else 1.0 for count in hits])


def _permutation_p(late: Late, ranks: int) -> float:
    decided = (late.column >= 0) & np.isclose(late.probability * ranks, 1)  # in a group not all ranks are exchangeable
    if not decided.any():
        return 1.0
    return permutation_test(late.column[decided], late.lateness[decided].astype(np.float64), ranks)


def _rank(
    who: tuple[int, int, str], found: dict[str, Late], tests: dict[str, list[float]], carried: Ints
) -> RankLateness:
    column, rank, host = who
    causes = {}
    for cause, late in found.items():
        mine = late.lateness[late.column == column]
        largest = int(mine.max()) if len(mine) else 0
        causes[cause] = CauseLateness(len(mine), int(mine.sum()), largest, tests[cause][column])
    return RankLateness(rank, host, causes, int(carried[column]), ())


def _causes_of(rank: int, verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.cause for one in verdicts if rank in (one.rank, *one.ranks)))


def _job(trace: Trace, evidence: Evidence) -> Job:
    """From the first step's begin to the last one's end; without steps as long as the batches took."""
    steps = trace.spans.of_stage(Stage.STEP)
    length = int(steps.end_ns.max() - steps.begin_ns.min()) if len(steps) else evidence.length_ns
    lengths = step_lengths(trace.spans)[1]
    step = float(np.median(lengths)) if len(lengths) else length / max(1, evidence.steps)
    return Job(max(1, length), step, len(evidence.ranks))


def _hosts(ranks: Sequence[RankLateness]) -> Iterator[HostLateness]:
    for host in sorted({rank.host for rank in ranks}):
        members = [rank for rank in ranks if rank.host == host]
        yield HostLateness(
            host,
            len(members),
            {cause: sum(member.causes[cause].steps_last for member in members) for cause in CAUSES},
            {cause: sum(member.causes[cause].total_ns for member in members) for cause in CAUSES},
        )


def _tensors(last: LastOnes, names: tuple[str, ...], buckets: Mapping[int, str]) -> list[TensorLateness]:
    """Tensors by the lateness of their submits, longest first."""
    found = []
    by_text: dict[str, list[int]] = {}  # unnamed tensors of one size take turns with a few names
    for code in np.unique(last.tensor).tolist():
        by_text.setdefault(tensor_text(names[code], buckets), []).append(code)
    for text, codes in by_text.items():
        mine = last.tensor == codes[0] if len(codes) == 1 else np.isin(last.tensor, codes)
        ranks, lateness = last.rank[mine], last.lateness_ns[mine]
        decided = ranks >= 0
        who, times = np.unique(ranks[decided], return_counts=True)
        rank, most = (int(who[times.argmax()]), int(times.max())) if len(who) else (-1, 0)
        total = int(lateness[decided].sum())
        found.append(TensorLateness(text, len(ranks), int((~decided).sum()), rank, most, total))
    return sorted(found, key=lambda tensor: (-tensor.total_ns, tensor.tensor))


def _steps(ranks: Sequence[int], found: dict[str, Late]) -> Iterator[StepLateness]:
    for cause, late in found.items():
        rows = zip(late.steps.tolist(), late.column.tolist(), late.lateness.tolist(), strict=True)
        for step, column, lateness in rows:
            if column >= 0 and lateness > 0:
                yield StepLateness(step, cause, ranks[column], lateness)


def _worst(steps: Iterable[StepLateness]) -> list[StepLateness]:
    return sorted(steps, key=lambda step: (-step.lateness_ns, step.step, step.cause))
