"""What sessions of restarts have found, in an Optuna study for each kind of job; Optuna Dashboard opens it.

The study is named ``ringtune-restarts-<fingerprint>``. A trial's parameters are the variables with their values as
categories (``default``: the variable was not set), its value the step time relative to the command as it is. The
attribute ``ringtune:confirmed`` is what the next session checks first.
"""

from __future__ import annotations

import logging
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


class StudyMemory:
    """A `Memory` in Optuna storages. What cannot be stored is lost and said once; the session goes on.

    Args:
        job: What is known about the job before its first run.
        choices: What is tried.
        places: Storages, see `StudyOptions.storage`: the first one is also read, the others receive copies.
        say: Hears why nothing is stored.
    """

    def __init__(
        self, job: JobDescription, choices: Sequence[Choice], places: Sequence[str], say: Callable[[str], None]
    ) -> None:
        self._job, self._choices, self._places, self._say = job, choices, places, say
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

    def tell(self, setting: Setting, ratio: float) -> None:
        """Remember a trial."""
        import optuna

        distributions = self._distributions()
        params = {name: dict(setting).get(name, _UNSET) for name in distributions}
        if all(params[name] in distribution.choices for name, distribution in distributions.items()):
            trial = optuna.trial.create_trial(params=params, distributions=distributions, value=ratio)
            self._each(lambda study: study.add_trial(trial))

    def conclude(self, setting: Setting) -> None:
        """Remember what a session has come to."""
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
