"""What the scaling page shows, put together: records, groups of runs, predictions and factors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ringtune.dashboard.context import Context
from ringtune.dashboard.data import scaling_runs
from ringtune.dashboard.data.files import Unreadable
from ringtune.dashboard.data.runs import RunInfo
from ringtune.dashboard.data.scaling import ScalingSeries, ScalingTable
from ringtune.dashboard.data.scaling_runs import Factors
from ringtune.dashboard.routes import Route
from ringtune.tuner.model.calibrate import Model

Groups = dict[str, dict[int, RunInfo]]
"""By id of the series: runs by number of ranks."""


@dataclass(frozen=True)
class Wish:
    """How the page is to show things: the job keeps its work (not each rank), and the model speaks."""

    strong: bool = False
    predict: bool = True


def groups(context: Context, route: Route) -> Groups:
    """Return the groups of runs that the page knows: of a run its own, else all with several numbers of ranks."""
    rows = context.folder.rows()
    run = context.run(route) if route.run else None
    found = {}
    for name, members in scaling_runs.groups(rows).items():
        usable = {n: one for n, one in members.items() if len(context.walls(one)) > 1}
        if run is not None and name == run.name and run.ranks in usable:
            usable[run.ranks] = run if len(context.walls(run)) > 1 else usable[run.ranks]
        wanted = name == run.name if run is not None else len(usable) > 1
        if wanted and usable:
            found[scaling_runs.PREFIX + name] = usable
    return found


def records(context: Context, route: Route) -> ScalingTable:
    """Return the scaling records of the route's run, or of all runs."""
    if not route.run:
        return context.scaling([row.info for row in context.folder.rows()])
    run = context.run(route)
    return context.scaling([run]) if run else ScalingTable(())


def measured(context: Context, route: Route, *, strong: bool = False) -> ScalingTable:
    """Return records and groups of runs as series, without predictions."""
    found = records(context, route)
    own = [_group(context, name, members, strong=strong) for name, members in groups(context, route).items()]
    return replace(found, series=(*found.series, *own))


def _group(context: Context, name: str, members: dict[int, RunInfo], *, strong: bool) -> ScalingSeries:
    model = None if min(members) == 1 else _model_of(context, members)
    walls = {n: context.walls(run) for n, run in members.items()}
    return scaling_runs.series(name.removeprefix(scaling_runs.PREFIX), members, walls, model, strong=strong)


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
            found.append(scaling_runs.predicted(one, model, strong=wish.strong) if model else one)
        else:
            run = context.run(Route("scaling", one.run))
            model = _model(context, run) if run else None
            found.append(scaling_runs.predicted_record(one, model) if model and "@" not in one.id else one)
    return tuple(found)


def factors(
    context: Context, series: Sequence[ScalingSeries], known: Groups, wish: Wish
) -> tuple[list[Factors], list[str]]:
    """Return the factors of all runs of groups that have a timeline, and why some have none."""
    found, said = [], []
    for one in series:
        members = known.get(one.id, {})
        for n in sorted(members):
            try:
                parts = context.factors(members[n], members.get(1), strong=wish.strong)
            except Unreadable as error:
                said.append(str(error))
                continue
            if parts is not None:
                found.append(parts)
    return found, said


def _model_of(context: Context, members: dict[int, RunInfo]) -> Model | None:
    """Return the model of the largest run that has a timeline."""
    models = (_model(context, members[n]) for n in sorted(members, reverse=True))
    return next((model for model in models if model is not None), None)


def _model(context: Context, run: RunInfo) -> Model | None:
    try:
        found = context.model(run)
    except Unreadable:
        return None
    return found if isinstance(found, Model) else None
