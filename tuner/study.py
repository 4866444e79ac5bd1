"""StudyAdvisor: Optuna's Gaussian-process sampler over a stored study, one study per kind of job.

The study's value is the step time relative to the default measured around the same time (1 = as fast as the
default, smaller is better), so results of different sessions and days compare. Values above
`WORST` are stored as `WORST` with the true figure in the attribute ``ratio``: one disastrous setting must not flatten
the model where it matters.

How much there is left to find is bounded by `optuna.terminator.RegretBoundEvaluator`: the best lower confidence bound
of the process against the best upper one of what was tried (Makarova et al. 2022, Automatic Termination for
Hyperparameter Optimization).

Source: `optuna.samplers.GPSampler`: Gaussian process with a Matern-5/2 kernel and one length scale a dimension,
noise learned, log expected improvement (Ament et al. 2023).
"""

from __future__ import annotations

import logging
import math
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringtune.errors import RingtuneError
from ringtune.knobs import Knobs
from ringtune.tuner.advice import AdvisorState, Near, Outcome, Stored, Suggestion, Workload
from ringtune.tuner.fingerprint import JobDescription, current, distance
from ringtune.tuner.prior import Prior, first_points, learned
from ringtune.tuner.records import ResultRecord, knobs_fields
from ringtune.tuner.space import Space
from ringtune.variable import without_password

if TYPE_CHECKING:
    import optuna

WORST = 2.0
_STARTUP_TRIALS = 3
_FROM_MODEL = 3
_BOUNDED_FROM = 6
"""Trials from which the bound means something."""
_TABLES_ATTEMPTS = 20
"""As many jobs may begin at once on a database without tables: each round one of them is done."""

_CONFIRMED = "ringtune:confirmed"
_JOB = "ringtune:job"


@dataclass(frozen=True)
class StudyOptions:
    """Where results are kept and how suggestions are drawn.

    Attributes:
        storage: Optuna storage: a URL (``sqlite:///...``, ``postgresql://...``), a path of a SQLite file, or a path
            ending in ``.log`` for Optuna's journal file; empty = memory only.
        copy: A second storage that receives this session's trials (the run folder's ``study.db``); empty = none.
        storage_optional: Whether the session may do with `copy`, or with memory, when `storage` cannot be opened.
        seed: Seed of the sampler; None = different every time.
    """

    storage: str = ""
    copy: str = ""
    storage_optional: bool = False
    seed: int | None = None


class StudyAdvisor:
    """An `Advisor` in this process; its calls block for as long as Optuna computes.

    Args:
        space: What is searched.
        job: What is known about the job before its first step.
        options: Storage and seed.
        prior: A model of the job; default: what can be learned from `Workload.trace`.
    """

    def __init__(
        self, space: Space, job: JobDescription, options: StudyOptions | None = None, prior: Prior | None = None
    ) -> None:
        self._space, self._job, self._options = space, job, options or StudyOptions()
        self._studies: list[optuna.Study] = []
        self._asked: dict[int, optuna.trial.Trial] = {}
        self._failure = self._place = ""
        self._notes: list[str] = []
        self._prior = prior

    @property
    def state(self) -> AdvisorState:
        return "failed" if self._failure else "ready"

    @property
    def failure(self) -> str:
        return self._failure

    def warm(self) -> None:
        """Import and run everything once, so that the first suggestion does not disturb a measurement for seconds."""
        self._guard(self._warm)

    def open(self, workload: Workload) -> str:
        fingerprint = self._job.fingerprint(workload)
        self._guard(lambda: self._open(fingerprint, workload))
        if self._prior is None and workload.trace:
            try:
                self._prior = learned(Path(workload.trace), self._job.places)
            except RingtuneError as error:  # not worth failing for
                self._notes.append(f"no cost model of this job, the search begins at fixed points: {error}")
        return fingerprint

    def stored(self) -> Stored | None:
        stored: Stored = self._guard(self._stored) or Stored(None, 0)
        first = tuple(first_points(self._space, self._prior, _FROM_MODEL)) if self._prior is not None else ()
        return replace(stored, first=first, notes=tuple(self._notes))

    def ask(self) -> Suggestion | None:
        suggestion: Suggestion | None = self._guard(self._ask)
        return suggestion

    def tell(self, outcome: Outcome) -> None:
        self._guard(lambda: self._tell(outcome))

    def conclude(self, result: ResultRecord) -> None:
        self._guard(lambda: self._conclude(result))

    def finish(self) -> None:
        """Nothing is under way between calls."""

    def close(self) -> None:
        self._guard(self._forget)
        self._studies.clear()

    def _guard(self, action: Callable[[], Any]) -> Any:
        """Run an action; its failure becomes the advisor's, which training survives."""
        if self._failure:
            return None
        try:
            return action()
        except Exception as error:  # Optuna, SQLAlchemy and torch raise many kinds
            self._failure = explain(error)
            return None

    def _open(self, fingerprint: str, workload: Workload) -> None:
        import optuna

        optuna.logging.set_verbosity(logging.ERROR)
        description = self._job.as_dict(workload)
        for place in dict.fromkeys((self._options.storage, self._options.copy)):
            if not place and self._studies:
                continue
            try:
                study = optuna.create_study(
                    storage=open_storage(place),
                    study_name=f"ringtune-{fingerprint}",
                    sampler=self._sampler(),
                    load_if_exists=True,
                )
            except Exception as error:  # as _guard
                if not self._options.storage_optional:
                    raise
                self._notes.append(f"results are not kept in {place}: {explain(error)}")
                continue
            study.set_user_attr(_JOB, description)
            self._place = self._place if self._studies else place
            self._studies.append(study)
        if not self._studies:
            self._studies.append(optuna.create_study(sampler=self._sampler()))

    def _warm(self) -> None:
        import optuna

        optuna.logging.set_verbosity(logging.ERROR)
        study = optuna.create_study(sampler=self._sampler())
        for value in (*range(_STARTUP_TRIALS), 0):
            study.tell(study.ask(self._distributions()), 1.0 + 0.1 * value)
        if self._options.storage or self._options.copy:
            optuna.storages.RDBStorage("sqlite:///:memory:")

    def _sampler(self) -> optuna.samplers.BaseSampler:
        import optuna

        # Experimental is Optuna's word for the sampler's options; only the interface of all samplers is used here.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.GPSampler(seed=self._options.seed, n_startup_trials=_STARTUP_TRIALS)

    def _distributions(self) -> dict[str, optuna.distributions.BaseDistribution]:
        import optuna

        # Floats, rounded by the space: over a grid of whole numbers the sampler searches 50 times as long.
        return {d.name: optuna.distributions.FloatDistribution(d.low, d.high, log=True) for d in self._space.dimensions}

    def _stored(self) -> Stored:
        """The setting confirmed last; else the best measured one, if it beat the default; else a near job's."""
        import optuna

        study = self._studies[0]
        trials = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
        confirmed = study.user_attrs.get(_CONFIRMED)
        if confirmed is not None:
            best = Knobs.from_dict(confirmed, base=self._space.default)
            if best == self._space.default:
                return Stored(None, len(trials))
            return Stored(best, len(trials), confirmed=True)
        fitting = [t for t in trials if t.values and self._fits(t.params) and t.values[0] < 1.0]
        if not fitting:
            return Stored(None, len(trials), near=self._near())
        return Stored(self._space.knobs(min(fitting, key=lambda trial: trial.values[0]).params), len(trials))

    def _near(self) -> Near | None:
        """The confirmed setting of the nearest job in the storage with the same gradients, as far as it fits here."""
        import optuna

        if not self._place:
            return None
        job = self._studies[0].user_attrs[_JOB]
        found: list[tuple[float, Near]] = []
        for other in optuna.get_all_study_summaries(open_storage(self._place), include_best_trial=False):
            confirmed, theirs = other.user_attrs.get(_CONFIRMED), other.user_attrs.get(_JOB, {})
            if confirmed is None or not job.keys() <= theirs.keys():
                continue
            theirs = current(theirs)
            away = distance(job, theirs)
            known = Knobs.from_dict(confirmed, base=self._space.default)
            both = [name for name in self._job.searched if name in theirs["searched"]]
            knobs = replace(self._space.default, **{name: getattr(known, name) for name in both})
            if math.isfinite(away) and knobs != self._space.default:
                found.append((away, Near(knobs, theirs["world"], theirs["hosts"])))
        return min(found, key=lambda pair: pair[0], default=(0.0, None))[1]

    def _fits(self, params: dict[str, Any]) -> bool:
        return {d.name for d in self._space.dimensions} <= params.keys()

    def _ask(self) -> Suggestion:
        study = self._studies[0]
        left = self._left(study)
        trial = study.ask(self._distributions())
        self._asked[trial.number] = trial
        return Suggestion(self._space.knobs(trial.params), trial.number, left)

    def _left(self, study: optuna.Study) -> float:
        """Upper bound of what is left to find, by the process's confidence bounds; infinite with too few trials."""
        import optuna
        from optuna.terminator import RegretBoundEvaluator

        known = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
        if len(known) < _BOUNDED_FROM:
            return math.inf
        return float(RegretBoundEvaluator(seed=self._options.seed).evaluate(list(known), study.direction))

    def _tell(self, outcome: Outcome) -> None:
        attributes = _attributes(outcome)
        value = min(outcome.ratio, WORST)
        asked = self._asked.pop(outcome.token, None) if outcome.token is not None else None
        if not self._space.same_switches(outcome.trial.knobs, self._space.default):
            return  # the sampler's model is of the scales; the journal holds these
        for study in self._studies:
            if asked is not None and study is self._studies[0]:
                for name, attribute in attributes.items():
                    asked.set_user_attr(name, attribute)
                study.tell(asked, value)
            else:
                self._add(study, outcome.trial.knobs, value, attributes)

    def _add(self, study: optuna.Study, knobs: Knobs, value: float, attributes: dict[str, Any]) -> None:
        import optuna

        study.add_trial(
            optuna.trial.create_trial(
                params={name: float(value) for name, value in self._space.params(knobs).items()},
                distributions=self._distributions(),
                value=value,
                user_attrs=attributes,
            )
        )

    def _conclude(self, result: ResultRecord) -> None:
        self._forget()
        if result.decision != "interrupted":
            for study in self._studies:
                study.set_user_attr(_CONFIRMED, knobs_fields(result.knobs))
                study.set_user_attr("ringtune:gain", result.gain.as_dict())

    def _forget(self) -> None:
        """Close the trials that were asked for and not made before training ended."""
        import optuna

        for trial in self._asked.values():
            self._studies[0].tell(trial, state=optuna.trial.TrialState.FAIL)
        self._asked.clear()


def _attributes(outcome: Outcome) -> dict[str, Any]:
    """What a stored trial carries beside its value; units as in the journal."""
    trial = outcome.trial
    return {
        "trial": trial.trial,
        "source": trial.source,
        "state": trial.state,
        "knobs_version": trial.knobs_version,
        "steps": trial.steps,
        "step_ns": trial.step_ns.as_dict(),
        "ratio": outcome.ratio,
    }


def explain(error: Exception) -> str:
    """Return one line that describes the failure, without the password of a storage's URL."""
    if isinstance(error, ModuleNotFoundError):
        return f"{error.name} is not installed; pip install 'ringtune[tuner]' brings it"
    if isinstance(error, ImportError) and "DB access module" in str(error):
        return "the Python driver of that database is not installed; for PostgreSQL: pip install 'psycopg[binary]'"
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {without_password(lines[0])}" if lines else type(error).__name__


def open_storage(place: str) -> Any:
    """Return what Optuna takes as storage.

    Args:
        place: See `StudyOptions.storage`. Folders of files are made.
    """
    import optuna

    if not place:
        return None
    if "://" in place:
        if place.startswith("sqlite:///"):
            Path(place.removeprefix("sqlite:///").partition("?")[0]).parent.mkdir(parents=True, exist_ok=True)
        return _database(place)
    path = Path(place).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".log":
        from optuna.storages.journal import JournalFileBackend

        return optuna.storages.JournalStorage(JournalFileBackend(str(path)))
    return _database(f"sqlite:///{path}")


def _database(url: str) -> Any:
    """Return Optuna's storage in a database, whose tables may be made by several jobs at the same moment.

    Optuna looks whether they are there and then makes them; who comes second in between gets the database's error.
    """
    import optuna
    from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

    for _ in range(_TABLES_ATTEMPTS - 1):
        try:
            return optuna.storages.RDBStorage(url)
        except (IntegrityError, OperationalError, ProgrammingError) as error:
            if not isinstance(error, IntegrityError) and "already exists" not in str(error):
                raise
    return optuna.storages.RDBStorage(url)


def default_storage() -> str:
    """Return the user's storage of all jobs: ``$XDG_CACHE_HOME/ringtune/studies.db`` (``~/.cache`` when unset)."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "ringtune", "studies.db")
