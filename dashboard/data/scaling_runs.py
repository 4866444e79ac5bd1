"""Scaling of plain runs: jobs of one name on several numbers of ranks, the model beyond them, and what efficiency lost.

Notation: n ranks, T(n) the time of a step. *Weak*: every rank keeps its work, so the job does n / T(n) batches a
second. *Strong*: the job keeps its work, so it does 1 / T(n) steps a second, and a rank computes 1/n of it. Where runs
say how many samples a step has, it is known which of them it is, and rates are samples a second. The ideal
is n times the rate of a rank alone: the run of one rank where there is one, else what a rank computes in the timeline,
without all waiting, else the smallest run's share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ringtune.dashboard.data import job
from ringtune.dashboard.data.files import Unreadable
from ringtune.dashboard.data.runs import RunInfo, RunRow
from ringtune.dashboard.data.scaling import ScalingSeries
from ringtune.dashboard.units import plain
from ringtune.errors import RingtuneError
from ringtune.timeline.analysis.efficiency import Efficiency, efficiency
from ringtune.timeline.runs.records import Estimate, ScalingPoint
from ringtune.timeline.spans import Trace
from ringtune.tuner.model.calibrate import Model
from ringtune.tuner.model.questions import MOST_RANKS, Answer, Change, ask
from ringtune.tuner.scoring import median_interval

PREFIX = "runs:"
"""Of the ids of series that are made of runs."""

FEWEST_STEPS = 5
NEWEST_STEPS = 1000
"""Of a timeline, whose factors are shown."""
DOUBLINGS = 6
"""So many times the largest number of ranks is doubled for the prediction."""

ALIKE = 0.25
"""A timeline belongs to a record when its rate is the record's but for this share."""


@dataclass(frozen=True)
class Family:
    """Runs of one name on different numbers of ranks.

    Attributes:
        name: Of the runs.
        members: By number of ranks.
        kind: ``weak``, ``strong``, or empty where the runs do not say (`RunInfo.step_samples`).
        samples: Of a rank in a step (weak) or of the job (strong); 0 where the runs do not say.
    """

    name: str
    members: Mapping[int, RunInfo]
    kind: str = ""
    samples: float = 0

    @property
    def id(self) -> str:
        """Names its series in addresses."""
        return f"{PREFIX}{self.name}" + (f":{self.kind}-{self.samples:g}" if self.kind else "")

    def strong(self, wished: bool) -> bool:
        """Whether the job keeps its work: as the runs say, else as it is wished."""
        return self.kind == "strong" if self.kind else wished

    def only(self, usable: Callable[[RunInfo], bool]) -> Family:
        """Return it with some of its runs."""
        return replace(self, members={n: run for n, run in self.members.items() if usable(run)})


def families(rows: Sequence[RunRow]) -> list[Family]:
    """Return the runs by name and by what they keep, of each number of ranks the first that has steps.

    Runs that say how many samples a step has belong together where a rank keeps them (weak) and where the job does
    (strong): a run may be in one family of each kind. One that goes with no other is a family by itself.
    """
    found: dict[tuple[str, str, float], dict[int, RunInfo]] = {}
    for row in rows:
        run = row.info
        if row.steps >= FEWEST_STEPS and run.ranks > 0:
            kinds = {"weak": run.step_samples / run.ranks, "strong": float(run.step_samples)}
            for kind, samples in kinds.items() if run.step_samples else [("", 0.0)]:
                found.setdefault((run.name, kind, samples), {}).setdefault(run.ranks, run)
    together = {run.id for (_, kind, _), runs in found.items() if kind and len(runs) > 1 for run in runs.values()}
    return [
        Family(name, runs, kind, samples)
        for (name, kind, samples), runs in found.items()
        if not kind or len(runs) > 1 or (kind == "weak" and not together & {run.id for run in runs.values()})
    ]


def series(
    family: Family, walls: Mapping[int, Sequence[int]], model: Model | None, *, strong: bool = False
) -> ScalingSeries:
    """Return the measured points of a family of runs, at least one.

    Args:
        family: The runs.
        walls: Step times in nanoseconds, above 0, by ranks.
        model: Of the largest run that has a timeline.
        strong: The job keeps its work, not each rank, where the runs do not say.
    """
    strong, work, members = family.strong(strong), family.samples or 1, family.members
    rates = {n: _rate(walls[n], work if strong else work * n) for n in sorted(members)}
    first = min(rates)
    alone = rates[first].median / first if first == 1 or model is None else work * _alone(model, strong=strong)
    newest = max(members.values(), key=lambda run: run.created_unix_ns)
    samples = f", {work:g} samples a step{'' if strong else ' and rank'}" if family.samples else ""
    return ScalingSeries(
        id=family.id,
        run=newest.id,
        label=f"{plain(family.name)} · runs" + (f", {family.kind}" if family.kind else ""),
        model=plain(family.name),
        unit="samples/s" if family.samples else "steps/s" if strong else "batches/s",
        facts=f"{'strong' if strong else 'weak'} scaling{samples}, steps of rank 0",
        created_unix_ns=newest.created_unix_ns,
        points=tuple(_point(n, len(set(members[n].hosts)) or 1, rate, alone) for n, rate in rates.items()),
        alone=alone,
        strong=strong,
        work=work,
    )


def _rate(walls: Sequence[int], work: float) -> Estimate:
    middle = median_interval(walls)
    return Estimate(work * 1e9 / middle.median, work * 1e9 / middle.high, work * 1e9 / middle.low)


def _alone(model: Model, *, strong: bool) -> float:
    """Rate of a rank that never waits."""
    work = model.cluster.ranks if strong else 1
    return 1e9 / (model.work.compute_ns * work)


def _point(ranks: int, hosts: int, rate: Estimate, alone: float) -> ScalingPoint:
    ideal = ranks * alone
    return ScalingPoint(ranks, hosts, rate, Estimate(rate.median / ideal, rate.low / ideal, rate.high / ideal))


def predicted(found: ScalingSeries, model: Model) -> ScalingSeries:
    """Return the series with what the model says, from the job it was fitted to on."""
    own = model.cluster.ranks
    largest = max(own, *(point.ranks for point in found.points))
    ranks = {n for point in found.points if (n := point.ranks) > own} | {largest << n for n in range(DOUBLINGS + 1)}
    ranks.add(own)
    alone = found.alone or found.points[0].rate.median / found.points[0].ranks
    points = []
    for n in sorted(one for one in ranks if one <= MOST_RANKS):
        answer = ask(model, Change("", ranks=n, compute=n / own if found.strong else 1.0))
        rate = _predicted_rate(answer, found.work if found.strong else found.work * n)
        points.append(_point(n, answer.hosts, rate, alone))
    return replace(found, predicted=tuple(points))


def _predicted_rate(answer: Answer, work: float) -> Estimate:
    step = answer.step_ns
    return Estimate(work * 1e9 / step.value, work * 1e9 / step.high, work * 1e9 / step.low)


def predicted_record(found: ScalingSeries, model: Model) -> ScalingSeries:
    """Return a record's series with the prediction of its run's timeline, if that is of the same job.

    It is when the rate at its number of ranks is the record's; then the prediction is scaled by what is left of the
    difference.
    """
    ranks = model.cluster.ranks
    point = next((one for one in found.points if one.ranks == ranks), None)
    if point is None or not found.batch_size or not model.measured_ns:
        return found
    rate = ranks * found.batch_size * 1e9 / model.measured_ns
    if abs(rate / point.rate.median - 1) > ALIKE:
        return found
    per_step = point.rate.median / ranks * ask(model, Change("")).step_ns.value
    answers = predicted(replace(found, alone=1.0), model).predicted
    alone = found.points[0].rate.median / found.points[0].ranks
    scaled = [_point(one.ranks, one.hosts, _times(one.rate, per_step / 1e9), alone) for one in answers]
    return replace(found, predicted=tuple(scaled))


def _times(value: Estimate, factor: float) -> Estimate:
    return Estimate(value.median * factor, value.low * factor, value.high * factor)


@dataclass(frozen=True)
class Factors:
    """What a job's efficiency is the product of; each from 0 to 1 (``computation`` may be more, None: no reference).

    Attributes:
        label: Of the job.
        load_balance, serialisation, transfer, computation: See `ringtune.timeline.analysis.efficiency`.
    """

    label: str
    load_balance: float
    serialisation: float
    transfer: float
    computation: float | None

    @property
    def efficiency(self) -> float:
        """Their product."""
        known = self.computation if self.computation is not None else 1.0
        return self.load_balance * self.serialisation * self.transfer * known


def factors(label: str, trace: Trace, reference: Trace | None = None, *, strong: bool = False) -> Factors:
    """Return the factors of a trace, against a run of one rank if there is one.

    In strong scaling a rank is to compute its share of what that one computes.

    Raises:
        Unreadable: The trace does not say when ranks waited.
    """
    try:
        found: Efficiency = efficiency(*(job.steady(one, NEWEST_STEPS) for one in (trace, reference) if one))
    except RingtuneError as error:
        raise Unreadable(f"{plain(label)}: {plain(error, 300)}") from error
    share = len(found.useful_ns) if strong else 1
    computation = None if found.computation is None else float(found.computation) / share
    parts = (float(found.load_balance), float(found.serialisation), float(found.transfer))
    return Factors(label, *parts, computation)
