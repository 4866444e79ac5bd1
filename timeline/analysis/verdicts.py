"""What lateness cost a job: which rank, when, by which cause, how much; and the sentences that say so.

A `Verdict` accuses a rank: its lateness follows a pattern (`ringtune.timeline.analysis.patterns`) and costs a percent
of the job or more. `Turns` accuses nobody: a rank's lateness is that much, but the ranks are late by turns.

Time is counted once, so all shares together are at most the whole job. What one rank alone delays (the last minus the
last but one) is that rank's, by computing before negotiation before network; a group that is late has what is beyond
that of its ranks that are accused themselves; then come turns, and pauses of all last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ringtune.timeline.analysis.batches import rank_steps
from ringtune.timeline.analysis.intervals import difference, length, length_before, union
from ringtune.timeline.analysis.lateness import Late
from ringtune.timeline.analysis.patterns import ALWAYS, MATERIAL, PAUSES, STALLS, Job, Pattern, patterns
from ringtune.timeline.analysis.pauses import Pauses, pauses
from ringtune.timeline.analysis.significance import binomial_tail
from ringtune.timeline.analysis.steps import step_lengths
from ringtune.timeline.analysis.together import Group
from ringtune.timeline.distinct import distinct_numbers
from ringtune.timeline.spans import Ints, Trace
from ringtune.timeline.units import ranks_text, share_text, time_text
from ringtune.timeline.vocabulary import Stage

DATA_LOADING = ("data loading", "enumerate(DataLoader)")
"""Names of ranges, or how they begin, that the recorder and PyTorch give to loading a batch."""
_LISTED = 4


@dataclass(frozen=True)
class Verdict:
    """A rank that made the others wait, or several together, or a pause of all.

    Attributes:
        rank: The rank; of several the one that was late most.
        cause: ``compute``, ``negotiation`` or ``network``.
        where: The range in which this rank took longer than the others, by most of the cost; "" where none is known.
        pattern: ``always``, ``often``, ``steps`` (stretches of steps), ``stalls``, or ``pauses`` of all ranks.
        stretches: First and last step of each stretch or stall; empty for the first two, and where steps are unknown.
        late_steps: In how many steps the rank was late.
        steps: Of how many.
        cost_ns: What the job would have gained had the rank been on time, without what another verdict counts.
        share: The same as a share of the job.
        worst_step: The step with the largest lateness; -1 where it is not known.
        p_value: How likely one of equal ranks is last as often in all steps; evidence beside the verdict.
        ranks: Those that were late together; empty for one alone and for a pause of all.
        host: Theirs, where they are all of its ranks.
        one_host: Whether all ranks of the job are known to run on one host, so that no link is between them.
    """

    rank: int
    cause: str
    where: str
    pattern: str
    stretches: tuple[tuple[int, int], ...]
    late_steps: int
    steps: int
    cost_ns: int
    share: float
    worst_step: int
    p_value: float
    ranks: tuple[int, ...] = ()
    host: str = ""
    one_host: bool = False


@dataclass(frozen=True)
class Turns:
    """Lateness of a cause that costs a percent of the job or more on a rank, without a pattern that is no noise."""

    cause: str
    total_ns: int
    share: float


def find_verdicts(
    trace: Trace,
    late: Mapping[str, Late],
    tests: Mapping[str, Sequence[float]],
    ranks: Sequence[int],
    job: Job,
    groups: Sequence[Group] = (),
) -> tuple[tuple[Verdict, ...], tuple[Turns, ...]]:
    """Return who is to blame and what was lost by turns, both by cost.

    Args:
        trace: Of all ranks.
        late: The last rank of every step, by cause.
        tests: By cause and column, the p-value of how often a rank was last.
        ranks: The rank of each column.
        job: What lateness is weighed against.
        groups: Ranks that may be late together.
    """
    together, explained = _of_groups(trace, groups, late, ranks, job)
    alone: list[tuple[Verdict, Ints]] = []
    others: list[tuple[str, Ints]] = []
    for cause, rows in late.items():
        blamed = np.isin(rows.steps, explained.get(cause, []))
        for column, rank in enumerate(ranks):
            p_value = tests[cause][column]
            for pattern in patterns(rows, column, p_value, job):
                blamed[pattern.rows] = True
                alone.append((_verdict(trace, rows, (rank, cause, p_value), pattern, job), rows.time(pattern.rows)))
        rest = ~blamed & (rows.column >= 0)
        sums = np.bincount(rows.column[rest], weights=rows.lateness[rest])
        if sums.max(initial=0) >= MATERIAL * job.length_ns:
            others.append((cause, rows.time(rest)))
    claims = [time for _, time in (*alone, *together, *others)]
    costs, counted = _once(claims)
    shares = [(cost, cost / job.length_ns) for cost in costs]
    blamed_ones = [one for one, _ in (*alone, *together)]
    verdicts = [replace(one, cost_ns=c, share=s) for one, (c, s) in zip(blamed_ones, shares, strict=False)]
    turns = [Turns(cause, c, s) for (cause, _), (c, s) in zip(others, shares[len(verdicts) :], strict=True)]
    if (paused := pause_verdict(trace, _beside(trace, pauses(trace), counted), job)) is not None:
        verdicts.append(paused)
    verdicts.sort(key=lambda one: (-one.cost_ns, one.rank, one.cause))
    turns.sort(key=lambda one: -one.total_ns)
    return tuple(v for v in verdicts if v.share >= MATERIAL), tuple(t for t in turns if t.share >= MATERIAL)


def _once(claims: Sequence[Ints]) -> tuple[list[int], Ints]:
    """Return how much of each set of time none before it holds, and the union of all."""
    taken, found = np.empty((0, 2), dtype=np.int64), []
    for time in claims:
        found.append(length(difference(time, taken)))
        taken = union(*np.concatenate((taken, time)).T)
    return found, taken


def _beside(trace: Trace, found: Pauses, counted: Ints) -> Pauses:
    """Return pauses without the time of their steps that is counted for late ranks; any of their ranks tells it."""
    about = rank_steps(trace, found.ranks[0]) if len(found.steps) else None
    if about is None:
        return found
    rows = np.searchsorted(about.number, found.steps)
    begin, end = about.begin[rows], about.end[rows]
    free = end - begin - (length_before(counted, end) - length_before(counted, begin))
    return replace(found, extra_ns=np.minimum(found.extra_ns, free))


def _of_groups(
    trace: Trace, groups: Sequence[Group], alone: Mapping[str, Late], ranks: Sequence[int], job: Job
) -> tuple[list[tuple[Verdict, Ints]], dict[str, list[int]]]:
    """Verdicts of ranks that are late together with the time that each is about, and by cause the steps explained."""
    found: list[tuple[Verdict, Ints]] = []
    explained: dict[str, list[int]] = {}
    pair = Job(job.length_ns, job.step_ns, 2)
    for group in groups:
        members = tuple(rank for rank, inside in zip(ranks, group.inside.tolist(), strict=True) if inside)
        for cause, rows in group.late.items():
            decided, hits = int((rows.column >= 0).sum()), int((rows.column == 0).sum())
            p_value = binomial_tail(hits, decided, len(members) / len(ranks)) if hits else 1.0
            for pattern in patterns(rows, 0, p_value, pair):
                steps = rows.steps[pattern.rows]
                last = alone[cause].column[np.isin(alone[cause].steps, steps)]
                last = last[np.isin(last, np.flatnonzero(group.inside))]
                worst = ranks[int(np.bincount(last).argmax())] if len(last) else members[0]
                one = _verdict(trace, rows, (worst, cause, p_value), pattern, job, members)
                found.append((replace(one, ranks=members, host=group.host), rows.time(pattern.rows)))
                explained.setdefault(cause, []).extend(steps.tolist())
    return found, explained


def pause_verdict(trace: Trace, found: Pauses, job: Job) -> Verdict | None:
    """Return the verdict of pauses of all ranks at once; None where they cost less than a percent of the job."""
    cost = int(found.extra_ns.sum())
    if cost < MATERIAL * job.length_ns or not len(found.steps):
        return None
    steps = found.steps.tolist()
    return Verdict(
        rank=-1 if len(found.ranks) > 1 else found.ranks[0],
        cause="compute",
        where="",
        pattern=PAUSES,
        stretches=tuple((step, step) for step in steps),
        late_steps=len(steps),
        steps=len(step_lengths(trace.spans)[0]),
        cost_ns=cost,
        share=cost / job.length_ns,
        worst_step=steps[int(found.extra_ns.argmax())],
        p_value=0.0,
    )


def _verdict(
    trace: Trace,
    late: Late,
    who: tuple[int, str, float],
    pattern: Pattern,
    job: Job,
    together: Sequence[int] = (),
) -> Verdict:
    rank, cause, p_value = who
    steps, lateness = late.steps[pattern.rows], late.lateness[pattern.rows]
    cost = int(lateness.sum())
    ends = [(int(late.steps[first]), int(late.steps[last])) for first, last in pattern.stretches]
    return Verdict(
        rank=rank,
        cause=cause,
        where=_where(trace, rank, steps, cost, together) if cause == "compute" else "",
        pattern=pattern.kind,
        stretches=tuple(ends) if all(first >= 0 for first, _ in ends) else (),
        late_steps=len(steps),
        steps=len(late.steps),
        cost_ns=cost,
        share=cost / job.length_ns,
        worst_step=max(-1, int(steps[lateness.argmax()])),
        p_value=p_value,
        one_host=len({part.host for part in trace.parts}) == 1 and trace.parts[0].host != "",
    )


def _where(trace: Trace, rank: int, steps: Ints, cost_ns: int, together: Sequence[int] = ()) -> str:
    """The range that took a rank longer than ranks not late with it in these steps, by at least half of the cost."""
    spans = trace.spans
    ranges = spans.in_stage(Stage.RANGE) if spans.in_stage(Stage.RANGE).any() else spans.in_stage(Stage.OTHER)
    rows = np.flatnonzero(ranges)
    chosen = spans.take(rows[np.isin(spans.step[rows], steps)])
    names, place = distinct_numbers(chosen.name)
    ranks = np.array(trace.ranks)
    cell = place * len(ranks) + np.searchsorted(ranks, chosen.rank)
    total = np.bincount(cell, weights=chosen.duration_ns, minlength=len(names) * len(ranks))
    total = total.reshape(len(names), len(ranks))
    mine = total[:, ranks == rank][:, 0]
    longer = mine - np.median(total[:, ~np.isin(ranks, [rank, *together])], axis=1)
    if not len(names) or longer.max() < cost_ns / 2:
        return ""
    # Of ranges within one another the inner one says more.
    near = np.flatnonzero(longer >= 0.9 * longer.max())
    return chosen.names[int(names[near[mine[near].argmin()]])]


def sentence(verdict: Verdict) -> str:
    """Return a verdict and what to do as one sentence.

    For example: ``37.0 % of the job (2.00 s) was lost to rank 0 in 2 stalls (steps 61, 121), by compute: look at rank 0
    in step 61``.
    """
    lost = f"{share_text(verdict.share, 1)} of the job ({time_text(verdict.cost_ns)})"
    place = f" in step {verdict.worst_step}" if verdict.worst_step >= 0 else ""
    if verdict.pattern == PAUSES:
        doing = "they do" if verdict.rank < 0 else "it does"
        what = f"look at what {doing}{place}, a checkpoint, an evaluation, or other programs on the cores"
        return f"{lost} went {when(verdict)}: {what}"
    who = who_text(verdict)
    links = "their links" if verdict.ranks else f"{who}'s link"
    cores = f"look whether the cores of rank {verdict.rank}'s host are all busy{place}"
    action = {
        "compute": f"look at {who}{place}",
        "negotiation": cores,
        "network": cores if verdict.one_host else f"look at {links}: ringtune check --network",
    }[verdict.cause]
    return f"{lost} was lost to {who} {when(verdict)}, by {cause_text(verdict)}: {action}"


def who_text(verdict: Verdict) -> str:
    """Return who was late, for example ``rank 1``, ``ranks 2, 3 together`` or ``host b (ranks 2-3)``."""
    if not verdict.ranks:
        return f"rank {verdict.rank}" if verdict.rank >= 0 else "all ranks"
    listed = f"ranks {ranks_text(verdict.ranks)}"
    return f"host {verdict.host} ({listed})" if verdict.host else f"{listed} together"


def when(verdict: Verdict) -> str:
    """Return when the rank was late, for example ``in steps 60-119``."""
    if not verdict.stretches:
        number = f"in {verdict.late_steps} of {verdict.steps} steps"
        return f"always ({number})" if verdict.pattern == ALWAYS else number
    texts = [f"{first}" if first == last else f"{first}-{last}" for first, last in verdict.stretches]
    more = f" and {len(texts) - _LISTED} more" if len(texts) > _LISTED else ""
    listed = ", ".join(texts[:_LISTED]) + more
    if verdict.pattern == PAUSES:
        number = "1 pause" if len(texts) == 1 else f"{len(texts)} pauses"
        who = "all ranks at once" if verdict.rank < 0 else who_text(verdict)
        return f"by {number} of {who} (step{'s' if len(texts) > 1 else ''} {listed})"
    if verdict.pattern == STALLS:
        return f"in 1 stall (step {listed})" if len(texts) == 1 else f"in {len(texts)} stalls (steps {listed})"
    return f"in steps {listed}"


def cause_text(verdict: Verdict) -> str:
    """Return the cause, with the range or phase that it was in where that is known."""
    if verdict.where.startswith(DATA_LOADING):
        return "data loading"
    return f"{verdict.cause} in `{verdict.where}`" if verdict.where else verdict.cause


def turns_sentence(turns: Sequence[Turns]) -> str:
    """Return what was lost without a rank to blame, by the worst cause, and what to do."""
    worst, *rest = turns
    also = ", ".join(f"{share_text(one.share, 1)} by {one.cause}" for one in rest)
    more = f" (also {also})" if also else ""
    lost = f"{share_text(worst.share, 1)} of the job ({time_text(worst.total_ns)}) was lost by turns"
    return f"{lost}, by {worst.cause}{more}: no rank and no step stands out; look for uneven batches and busy cores"
