"""The sentence that an analysis opens with: what cost the job most, and what to do about it."""

from __future__ import annotations

from ringtune.errors import RingtuneError
from ringtune.timeline.analysis.batches import rank_steps
from ringtune.timeline.analysis.comparison import Comparison
from ringtune.timeline.analysis.patterns import MATERIAL
from ringtune.timeline.analysis.stragglers import Stragglers, paused, stragglers
from ringtune.timeline.analysis.summary import Summary, exposures_of
from ringtune.timeline.analysis.verdicts import sentence
from ringtune.timeline.spans import Trace
from ringtune.timeline.units import ranks_text, several, share_text, time_text
from ringtune.timeline.vocabulary import Stage

_LISTED = 4
"""Steps that are listed by their numbers."""
_AS_LONG = 0.05
"""Median steps that differ by more of themselves are not said to be as long."""
_MUCH_LESS = 0.5
"""A rank that waits less than this part of what every other one does has the others wait for it."""


def headline(trace: Trace, found: Stragglers | None = None, summary: Summary | None = None) -> str:
    """Return what cost the job most and one action; "" where the trace says neither who was late nor who waited.

    Args:
        trace: Of all ranks, its start-up left out.
        found: Its stragglers, where they are known.
        summary: The trace's, where it is known.
    """
    if found is None:
        try:
            found = stragglers(trace, largest=0, permuted=False)
        except RingtuneError:  # one rank alone, or a trace without batches
            found = None
    if found is not None and (found.verdicts or found.turns):
        return found.sentences()[0]
    if found is None and (pause := paused(trace)) is not None:
        return sentence(pause)
    waited = exposed = awaited = total = 0
    shares: dict[int, float] = {}
    exposures = exposures_of(trace) if summary is None else {one.rank: one.exposure for one in summary.ranks}
    for about in filter(None, (rank_steps(trace, rank) for rank in trace.ranks)):
        split = exposures.get(about.rank)
        if split is not None:
            length = int((about.end - about.begin).sum())
            waited, exposed, awaited = waited + split.wait_ns, exposed + split.exposed_ns, awaited + split.late_ns
            total += length
            shares[about.rank] = split.wait_ns / max(1, length)
    if not total:
        return ""
    if waited < MATERIAL * total:
        return "ranks computed all of the time: no setting of ringtune makes this job faster; profile the computing"
    torn = {part.rank for part in trace.parts if part.truncated} | set(range(trace.size)) - set(trace.ranks)
    if torn and trace.source in ("part", "merged"):
        lacks = f"for whom cannot be told without the whole part of rank {ranks_text(torn)}"
        return f"ranks waited {share_text(waited, total)} of the time, {lacks}: merge or copy all parts"
    if found is None and len(shares) > 1:
        first, second, *_ = sorted(shares, key=lambda rank: shares[rank])
        if shares[first] < _MUCH_LESS * shares[second]:
            others = f"the others {100 * shares[second]:.0f} % and more"
            pace = f"rank {first} sets the pace: it waited {100 * shares[first]:.0f} % of the time, {others}"
            return f"{pace}: look at what rank {first} computes"
    parts = f"{share_text(exposed, total)} exposed communication, {share_text(awaited, total)} for late ranks"
    batches = trace.spans.of_stage(Stage.COMMUNICATE)
    how = (
        "ringtune tune --restarts" if batches.foreign().all() else "ringtune tune"
    )  # nothing of another runtime's turns
    return f"ranks waited {share_text(waited, total)} of the time ({parts}): search better settings with {how}"


def comparison_headline(found: Comparison) -> str:
    """Return how the step changed from A to B, and what changed most with it."""
    step = next(change for change in found.changes if change.kind == "step")
    if step.verdict not in ("slower", "faster") or step.ratio is None:
        return _same_but(found)
    more = [one for one in found.changes if one.kind in ("compute", "range") and one.verdict == step.verdict]
    most = max(more, key=lambda one: abs(one.difference_ns), default=None)
    change = f"{100 * abs(step.ratio - 1):.1f} % ({time_text(abs(step.difference_ns))})"
    cause = f", {most.kind} {most.what} by {time_text(abs(most.difference_ns))}" if most else ""
    action = ": ringtune timeline stragglers B" if step.verdict == "slower" else ""
    return f"a step of B is {step.verdict} by {change}{cause}{action}"


def _same_but(found: Comparison) -> str:
    """Return that steps are as long, and which few are not: no test of single steps tells that they are no chance."""
    runs = {"A": (found.first_long, found.first_steps), "B": (found.second_long, found.second_steps)}
    more = found.second_long.share - found.first_long.share
    if abs(more) < MATERIAL:
        return "a step of B takes as long as one of A, as far as these steps tell"
    which = "B" if more > 0 else "A"
    long, count = runs[which]
    listed = ", ".join(map(str, long.steps[:_LISTED])) + (", ..." if len(long.steps) > _LISTED else "")
    few = f"{len(long.steps)} of {several(count, 'step')} of {which} ({listed})"
    cost = f"{time_text(long.extra_ns)} longer, {share_text(long.share, 1)} of its time"
    first_ns, second_ns = found.first_long.usual_ns, found.second_long.usual_ns
    usual = "the usual step of B takes as long as one of A"
    if abs(second_ns - first_ns) > _AS_LONG * first_ns:
        usual = f"the usual step takes {time_text(first_ns)} in A and {time_text(second_ns)} in B"
    return f"{usual}, but {few} took {cost}: ringtune timeline stragglers {which}"


def surely_slower(found: Comparison, percent: float) -> tuple[bool, str]:
    """Return whether a step of B is slower than one of A by more, by its whole interval, and a sentence about it."""
    step = next(change for change in found.changes if change.kind == "step")
    low, middle, high = (100 * ns / step.first_ns for ns in (step.low_ns, step.difference_ns, step.high_ns))
    measured = f"a step of B takes {middle:+.1f} % [{low:+.1f}, {high:+.1f}] of one of A"
    if step.verdict == "slower" and low > percent:
        return True, f"{measured}: more than {percent:g} % slower"
    if high <= percent:
        return False, f"{measured}: not {percent:g} % slower"
    return False, f"{measured}: not surely {percent:g} % slower; more steps tell"
