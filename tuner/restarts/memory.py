"""Results of sessions of restarts, in an Optuna study for each kind of job; Optuna Dashboard opens it.

The study is named ``ringtune-restarts-<fingerprint>``. A trial's parameters are the variables with their values as
categories (``default``: the variable was not set), its value the step time relative to the command as it is; a trial
whose run failed is one that was pruned. The attribute ``ringtune:confirmed`` is what the next session checks first.

Of a large space the next setting is chosen by Optuna's TPE over all variables together (Bergstra et al. 2011; jointly:
Falkner et al. 2018, BOHB).
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ringtune.tuner.advice import Workload
from ringtune.tuner.fingerprint import JobDescription
from ringtune.tuner.restarts.choices import AS_IT_IS, Choice, Setting
from ringtune.tuner.restarts.session import Known
from ringtune.tuner.study import explain, open_storage

if TYPE_CHECKING:
    import optuna

_CONFIRMED = "ringtune:confirmed"
_UNSET = "default"
_STARTUP_TRIALS = 4
_DRAWS = 50
"""Draws for one setting that fits: the sampler does not know which settings were tried or have failed."""


class StudyMemory:
    """A `Memory` in Optuna storages. What cannot be stored is lost and said once; the session goes on.

    Args:
        job: What is known about the job before its first run.
        choices: What is tried.
        places: Storages, see `StudyOptions.storage`: the first one is also read, the others receive copies.
        say: Receives a sentence when nothing is stored.
        seed: Of the sampler; None = different every time.
    """

    def __init__(
        self,
        job: JobDescription,
        choices: Sequence[Choice],
        places: Sequence[str],
        say: Callable[[str], None],
        seed: int | None = None,
    ) -> None:
        self._job, self._choices, self._places, self._say, self._seed = job, choices, places, say, seed
        self._studies: list[optuna.Study] = []

    def open(self, workload: Workload) -> Known:
        """Open the studies of this job."""
        fingerprint = self._job.fingerprint(workload)
        for place in dict.fromkeys(self._places):
            self._guard(lambda place=place: self._open(place, fingerprint, workload))  # type: ignore[misc]
        if not self._studies:
            return Known(fingerprint)
        study = self._studies[0]
        confirmed = study.user_attrs.get(_CONFIRMED)
        setting = tuple(sorted(confirmed.items())) if confirmed else None
        fits = setting is not None and all(name in self._distributions() for name, _ in setting)
        return Known(fingerprint, setting if fits else None, len(study.get_trials(deepcopy=False)))

    def tell(self, setting: Setting, ratio: float | None) -> None:
        """Remember a trial; without a ratio one that failed."""
        from optuna.trial import TrialState, create_trial

        distributions = self._distributions()
        params = {name: dict(setting).get(name, _UNSET) for name in distributions}
        if all(params[name] in distribution.choices for name, distribution in distributions.items()):
            state = TrialState.PRUNED if ratio is None else TrialState.COMPLETE
            trial = create_trial(params=params, distributions=distributions, value=ratio, state=state)
            self._each(lambda study: study.add_trial(trial))

    def suggest(self, fits: Callable[[Setting], bool]) -> Setting | None:
        """Ask TPE, which sees all trials of this job with the same values to choose from."""
        import optuna

        if not self._studies:
            return None
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # Optuna's word for `multivariate`
        sampler = optuna.samplers.TPESampler(multivariate=True, n_startup_trials=_STARTUP_TRIALS, seed=self._seed)
        # A study of its own, since settings that are drawn and not run must not stand in the job's.
        study, wanted = optuna.create_study(sampler=sampler), self._distributions()
        known = self._studies[0].get_trials(deepcopy=False)
        study.add_trials([trial for trial in known if trial.distributions == wanted])
        for _ in range(_DRAWS):
            drawn = study.ask(wanted)
            study.tell(drawn, state=optuna.trial.TrialState.FAIL)
            setting = tuple(sorted((name, value) for name, value in drawn.params.items() if value != _UNSET))
            if fits(setting):
                return setting
        return None

    def conclude(self, setting: Setting) -> None:
        """Remember the result of a session."""
        self._each(lambda study: study.set_user_attr(_CONFIRMED, dict(setting) if setting != AS_IT_IS else {}))

    def _open(self, place: str, fingerprint: str, workload: Workload) -> None:
        import optuna

        optuna.logging.set_verbosity(logging.ERROR)
        name = f"ringtune-restarts-{fingerprint}"
        study = optuna.create_study(storage=open_storage(place), study_name=name, load_if_exists=True)
        study.set_user_attr("ringtune:job", self._job.as_dict(workload))
        self._studies.append(study)

    def _distributions(self) -> dict[str, Any]:
        import optuna

        return {
            choice.variable: optuna.distributions.CategoricalDistribution((_UNSET, *choice.values))
            for choice in self._choices
        }

    def _each(self, action: Callable[[Any], None]) -> None:
        for study in list(self._studies):
            if not self._guard(lambda study=study: action(study)):  # type: ignore[misc]
                self._studies.remove(study)

    def _guard(self, action: Callable[[], None]) -> bool:
        try:
            action()
        except Exception as error:  # Optuna and SQLAlchemy raise many kinds
            self._say(f"the memory cannot be used, results may not be kept: {explain(error)}")
            return False
        return True
