"""Other ways to search the same space: random, Sobol, plain TPE, plain Gaussian process, Horovod's procedure.

All of them keep their luckiest sample; none goes back to the default, stops early or confirms.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from scipy.stats import norm

from ringtune.knobs import Knobs
from ringtune.tuner.space import Space

_HOROVODS_POINTS = ((4.0, 5.0), (32.0, 50.0), (16.0, 25.0), (8.0, 10.0))
_HOROVODS_LOW, _HOROVODS_HIGH = np.array([0.0, 1.0]), np.array([64.0, 100.0])
_HOROVODS_NOISE, _HOROVODS_XI = 0.8, 0.01
_GUESSES = 1000


def _sampled(make: Callable[[int], optuna.samplers.BaseSampler]) -> Callable[[Space, int], Any]:
    """Return the procedure of one of Optuna's samplers, its defaults unchanged, the default setting first."""

    def search(space: Space, seed: int) -> Any:
        optuna.logging.set_verbosity(logging.ERROR)
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study = optuna.create_study(sampler=make(seed))
        study.enqueue_trial({name: float(value) for name, value in space.params(space.default).items()})
        while True:
            trial = study.ask(
                {d.name: optuna.distributions.FloatDistribution(d.low, d.high, log=True) for d in space.dimensions}
            )
            score = yield space.knobs(trial.params)
            study.tell(trial, math.log(score))

    return search


def horovods(space: Space, seed: int) -> Any:
    """Horovod's: four fixed points, then expected improvement on raw megabytes and milliseconds with fixed noise.

    Source: `parameter_manager.cc`, `optim/bayesian_optimization.cc`, `optim/gaussian_process.cc` of Horovod 0.28.
    """
    random = np.random.default_rng(seed)
    points: list[NDArray[np.float64]] = []
    scores: list[float] = []
    while True:
        if len(points) < len(_HOROVODS_POINTS):
            point = np.array(_HOROVODS_POINTS[len(points)])
        else:
            point = _most_expected(np.array(points), np.array(scores), random)
        knobs = Knobs.from_dict(
            {"fusion_bytes": int(point[0] * 2**20), "cycle_time_ns": int(point[1] * 1e6)}, base=space.default
        )
        step_ns = yield knobs
        points.append(point)
        scores.append(1e6 / step_ns)


def _most_expected(
    points: NDArray[np.float64], scores: NDArray[np.float64], random: np.random.Generator
) -> NDArray[np.float64]:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    values = (scores - scores.mean()) / (scores.std() or 1.0)
    process = GaussianProcessRegressor(ConstantKernel() * RBF(), alpha=_HOROVODS_NOISE**2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        process.fit(points, values)
        guesses = random.uniform(_HOROVODS_LOW, _HOROVODS_HIGH, (_GUESSES, 2))
        mean, spread = process.predict(guesses, return_std=True)
    above = mean - process.predict(points).max() - _HOROVODS_XI
    z = above / np.maximum(spread, 1e-12)
    expected = above * norm.cdf(z) + spread * norm.pdf(z)
    best: NDArray[np.float64] = guesses[int(np.argmax(expected))]
    return best


PROCEDURES: dict[str, Callable[[Space, int], Any]] = {
    "random": _sampled(lambda seed: optuna.samplers.RandomSampler(seed)),
    "Sobol": _sampled(lambda seed: optuna.samplers.QMCSampler(seed=seed, scramble=True)),
    "TPE": _sampled(lambda seed: optuna.samplers.TPESampler(seed=seed)),
    "GP": _sampled(lambda seed: optuna.samplers.GPSampler(seed=seed)),
    "Horovod's": horovods,
}
