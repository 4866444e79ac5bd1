"""The series of the scaling page: records, groups of runs, predictions and factors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ringtune.dashboard.context import Context
from ringtune.dashboard.data import scaling_runs
from ringtune.dashboard.data.files import Unreadable
from ringtune.dashboard.data.runs import RunInfo
from ringtune.dashboard.data.scaling import ScalingSeries, ScalingTable
from ringtune.dashboard.data.scaling_runs import Factors, Family
from ringtune.dashboard.routes import Route
from ringtune.tuner.model.calibrate import Model

Groups = dict[str, Family]
"""By id of the series."""


@dataclass(frozen=True)
class Wish:
    """The user's choices: whether runs that do not say are strong scaling, and whether predictions are shown."""

    strong: bool = False
    predict: bool = True


def groups(context: Context, route: Route) -> Groups:
    """Return the families of runs that the page knows: of a run its own, else all with several numbers of ranks."""
    run = context.run(route) if route.run else None
    # The page's own run stands for its number of ranks, the newest one does elsewhere.
    rows = sorted(context.folder.rows(), key=lambda row: run is None or row.info.id != run.id)
    steady = [family.only(lambda one: len(context.runs.walls(one)) > 1) for family in scaling_runs.families(rows)]
    wanted = (one for one in steady if (one.name == run.name if run is not None else len(one.members) > 1))
    return {one.id: one for one in wanted if one.members}


def records(context: Context, route: Route) -> ScalingTable:
    """Return the scaling records of the route's run, or of all runs."""
    if not route.run:
        return context.runs.scaling([row.info for row in context.folder.rows()])
    run = context.run(route)
    return context.runs.scaling([run]) if run else ScalingTable(())


def measured(context: Context, route: Route, *, strong: bool = False) -> ScalingTable:
    """Return records and groups of runs as series, without predictions."""
    found = records(context, route)
    own = [_group(context, family, strong=strong) for family in groups(context, route).values()]
    return replace(found, series=(*found.series, *own))


def _group(context: Context, family: Family, *, strong: bool) -> ScalingSeries:
    model = None if min(family.members) == 1 else _model_of(context, family)
    walls = {n: context.runs.walls(run) for n, run in family.members.items()}
    return scaling_runs.series(family, walls, model, strong=strong)


def with_predictions(
    context: Context, series: Sequence[ScalingSeries], known: Groups, wish: Wish
) -> tuple[ScalingSeries, ...]:
    """Return the series with what the model says of each that has one."""
    if not wish.predict:
        return tuple(series)
    found = []
    for one in series:
        if one.id in known:
            model = _model_of(context, known[one.id])
            found.append(scaling_runs.predicted(one, model) if model else one)
        else:
            run = context.run(Route("scaling", one.run))
            model = _model(context, run) if run else None
            found.append(scaling_runs.predicted_record(one, model) if model and "@" not in one.id else one)
    return tuple(found)


def factors(context: Context, series: Sequence[ScalingSeries], known: Groups) -> tuple[list[Factors], list[str]]:
    """Return the factors of all runs of groups that have a timeline, and why some have none."""
    found, said = [], []
    for one in series:
        family = known.get(one.id)
        members = family.members if family is not None else {}
        for n in sorted(members):
            try:
                parts = context.timelines.factors(members[n], members.get(1), strong=one.strong)
            except Unreadable as error:
                said.append(str(error))
                continue
            if parts is not None:
                found.append(parts)
    return found, said


def _model_of(context: Context, family: Family) -> Model | None:
    """Return the model of the largest run that has a timeline."""
    models = (_model(context, family.members[n]) for n in sorted(family.members, reverse=True))
    return next((model for model in models if model is not None), None)


def _model(context: Context, run: RunInfo) -> Model | None:
    try:
        found = context.timelines.model(run)
    except Unreadable:
        return None
    return found if isinstance(found, Model) else None
