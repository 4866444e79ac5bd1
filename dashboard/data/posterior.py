"""What the trials of a tuning session predict for untried settings: a surface over both knobs, and their importance.

Notation: a trial is a point (log fusion, log cycle), each scaled to 0..1 over what was tried, with y = log of its step
time against the default's (`against_default`; at most `WORST` of it counts: one disastrous setting must not flatten the
surface where it matters). The surface is the posterior of a Gaussian process with a Matern-5/2 kernel, one length scale
a knob; each point's noise is that of its interval, and one noise common to all is learned.

Source: scikit-learn, `GaussianProcessRegressor`; Hutter, Hoos, Leyton-Brown 2014 (functional ANOVA), by Optuna.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringtune.dashboard.data.tuning import KNOBS, TuningHistory, against_default, default_step_ns, placed
from ringtune.timeline.runs.records import Trial

WORST = 2.0
CELLS = 36
"""Points of the surface along each knob."""
FEWEST = 5
"""Fewer settings make no surface."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Surface:
    """Step time over both knobs, as a share of the default's, and its standard deviation.

    ``share[c, f]`` and ``deviation[c, f]`` are at ``cycle_ns[c]`` and ``fusion_bytes[f]``.
    """

    fusion_bytes: Floats
    cycle_ns: Floats
    share: Floats
    deviation: Floats


@dataclass(frozen=True)
class Learned:
    """Surface (None: too few settings) and each knob's share of what settings change in step time (empty: unknown).

    ``trials``: of how many this was learned.
    """

    surface: Surface | None = None
    importance: Mapping[str, float] | None = None
    trials: int = field(default=0, compare=False)


@dataclass(frozen=True)
class _Points:
    knobs: Floats
    y: Floats
    noise: Floats


def learned(past: TuningHistory) -> Learned:
    """Return the prediction from the trials; nothing while there are too few."""
    if past.with_restarts:
        return Learned(importance=_importance_of_variables(past), trials=len(past.trials))
    points = _points(past)
    if points is None:
        return Learned(trials=len(past.trials))
    return Learned(_surface(points), _importance(points), len(past.trials))


def _points(past: TuningHistory) -> _Points | None:
    base = default_step_ns(past)
    usable = [trial for trial, _ in placed(past)]
    settings = {tuple(trial.knobs[name] for name in KNOBS) for trial in usable}
    if base is None or not 0 < base.median < 1e18 or len(settings) < FEWEST:
        return None
    rows = [(against_default(past, trial) or 1.0, _spread(trial)) for trial in usable]
    knobs = np.log(np.array([[trial.knobs[name] for name in KNOBS] for trial in usable], dtype=np.float64))
    ratio, spread = np.array(rows).T
    return _Points(knobs, np.log(np.clip(ratio, 1 / WORST, WORST)), np.maximum(spread, 1e-4) ** 2)


def _spread(trial: Trial) -> float:
    """Standard deviation of the log step time, from the 95 % interval."""
    step = trial.step_ns
    if step is None or not (0 < step.low <= step.high and math.isfinite(step.high)):
        return 0.05
    return math.log(step.high / step.low) / (2 * 1.96)


def _surface(points: _Points) -> Surface:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    low, high = points.knobs.min(axis=0), points.knobs.max(axis=0)
    margin = np.maximum(0.06 * (high - low), math.log(1.5))
    low, high = low - margin, high + margin
    kernel = ConstantKernel(1.0, (0.05, 20)) * Matern((0.4, 0.4), (0.08, 5), nu=2.5) + WhiteKernel(0.01, (1e-4, 1))
    scale = float(np.std(points.y)) or 1.0
    process = GaussianProcessRegressor(kernel, alpha=points.noise / scale**2, normalize_y=True, random_state=0)
    fusion, cycle = (np.linspace(low[at], high[at], CELLS) for at in range(2))
    grid = np.stack(np.meshgrid(fusion, cycle), axis=-1).reshape(-1, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a length scale at its bound is no warning, since a knob may not matter at all
        process.fit((points.knobs - low) / (high - low), points.y)
        mean, deviation = process.predict((grid - low) / (high - low), return_std=True)
    share = np.exp(mean).reshape(CELLS, CELLS)
    return Surface(np.exp(fusion), np.exp(cycle), share, deviation.reshape(CELLS, CELLS) * share)


def _importance_of_variables(past: TuningHistory) -> dict[str, float]:
    """Return each variable's share; one that a trial leaves as it is has a value of its own there."""
    from optuna.distributions import CategoricalDistribution

    trials = [trial for trial in past.trials if against_default(past, trial) and trial.trial in past.settings]
    rows = [{name: past.settings[trial.trial].get(name, "") for name in past.variables} for trial in trials]
    values = {name: sorted({row[name] for row in rows}) for name in past.variables}
    if len({tuple(row.values()) for row in rows}) < FEWEST or sum(len(known) > 1 for known in values.values()) < 2:
        return {}
    known: dict[str, Any] = {name: CategoricalDistribution(found) for name, found in values.items()}
    y = np.log(np.clip([against_default(past, trial) or 1.0 for trial in trials], 1 / WORST, WORST))
    return _shares(rows, known, y) if np.ptp(y) > 0 else {}


def _importance(points: _Points) -> dict[str, float]:
    import optuna

    varied = [at for at in range(len(KNOBS)) if np.ptp(points.knobs[:, at]) > 0]
    if len(varied) < 2 or np.ptp(points.y) == 0:
        return {}
    ends = {KNOBS[at]: (points.knobs[:, at].min(), points.knobs[:, at].max()) for at in varied}
    known: dict[str, Any] = {
        name: optuna.distributions.FloatDistribution(float(low), float(high)) for name, (low, high) in ends.items()
    }
    return _shares([{KNOBS[at]: float(row[at]) for at in varied} for row in points.knobs], known, points.y)


def _shares(settings: Sequence[Mapping[str, Any]], known: Mapping[str, Any], y: Floats) -> dict[str, float]:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study()
    for params, value in zip(settings, y, strict=True):
        trial = optuna.trial.create_trial(params=dict(params), distributions=dict(known), value=float(value))
        study.add_trial(trial)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        judge = optuna.importance.FanovaImportanceEvaluator(seed=0)
        found = optuna.importance.get_param_importances(study, evaluator=judge)
    return {name: float(share) for name, share in found.items()}
