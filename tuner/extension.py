"""The tuner inside a training session: feeds `OnlineTuner`, proposes knobs, writes the journal.

Runs on rank 0 with ``RINGTUNE_AUTOTUNE=1``; the other ranks only follow the knobs.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ringtune import layout, runfolder
from ringtune.config import Config
from ringtune.errors import RingtuneError
from ringtune.knobs import TABLE, Knobs, Surroundings
from ringtune.stats import StepStats
from ringtune.tuner.advice import Advisor
from ringtune.tuner.advisor import ProcessAdvisor
from ringtune.tuner.fingerprint import JobDescription, cpu_model
from ringtune.tuner.journal import Journal
from ringtune.tuner.messages import knob_words, sentence
from ringtune.tuner.online import OnlineTuner
from ringtune.tuner.options import OnlineOptions
from ringtune.tuner.records import NoteRecord, Record, ResultRecord
from ringtune.tuner.sessions import Sessions
from ringtune.tuner.space import Space
from ringtune.tuner.study import StudyOptions, default_storage
from ringtune.tuner.warmup import WarmupTrace
from ringtune.tuner.wire import Setup
from ringtune.variable import PREFIX, TWIN_PREFIX

if TYPE_CHECKING:
    from ringtune.session import Session

_KNOB_OF_VARIABLE = {row.variable: row.name for row in TABLE} | {"ALGORITHM_TABLE": "algorithm"}
_TALKATIVE = ("trace", "debug", "info")


Begin = Callable[[ResultRecord | None], tuple[OnlineTuner, Advisor]]
"""Begins a session of the tuner, with an advisor of its own; given the result of the session before."""


class TunerExtension:
    """A `SessionExtension`: everything around the pure tuner.

    Args:
        session: The training session; must be rank 0.
        begin: Begins a session of the tuner; its advisors are owned and closed here.
        journal: Where records go; owned and closed here.
    """

    def __init__(self, session: Session, begin: Begin, journal: Journal) -> None:
        self._session, self._begin, self._journal = session, begin, journal
        self._talkative = session.config.log_level.lower() in _TALKATIVE
        self._closed = self._detected = False
        self._default = session.knobs
        self._advisors: list[Advisor] = []
        self._sessions = Sessions(self._began)

    @property
    def tuner(self) -> OnlineTuner:
        """The session that runs or has ended last."""
        return self._sessions.tuner

    def on_step(self, stats: StepStats) -> None:
        """Let the tuner decide, and apply what it wants.

        Raises:
            RingtuneError: Knobs could not be proposed; the tuner has released everything.
        """
        if self._closed:
            return
        if self._detected and not stats.detected:
            self._begin_anew()
        self._detected = stats.detected
        running = self._sessions.result is None
        try:
            knobs = self._sessions.on_step(stats)
            if knobs is not None:
                self._sessions.proposed(self._session.propose_knobs(knobs))
            self._write(self._sessions.take_records())
        except Exception:
            self._close()
            raise
        if running and self._sessions.result is not None:
            # A training step must not wait until the advisor has stored the result, so it is not closed here.
            self._advisors[-1].finish()

    def on_close(self) -> None:
        """Record an unfinished search with what was learned."""
        if not self._closed:
            on = self._session.tracks.going_on
            self._sessions.interrupt("the job goes on with other ranks" if on else "training ended")
            self._write(self._sessions.take_records())
        self._close()

    def after_close(self) -> None:
        """Nothing is left to do."""

    def _begin_anew(self) -> None:
        """Begin a new session when the script marks its steps after all; the detected steps may have been wrong."""
        self._sessions.interrupt("the script began to mark its steps")
        self._write(self._sessions.take_records())
        self._advisors[-1].finish()
        if self._session.knobs != self._default:
            self._session.propose_knobs(self._default)
        self._sessions = Sessions(self._began)

    def _began(self, before: ResultRecord | None) -> OnlineTuner:
        tuner, advisor = self._begin(before)
        self._advisors.append(advisor)
        return tuner

    def _write(self, records: list[Record]) -> None:
        self._journal.write(records)
        for record in records:
            if self._talkative or isinstance(record, (ResultRecord, NoteRecord)):
                _say(sentence(record))

    def _close(self) -> None:
        self._closed = True
        self._journal.close()
        for advisor in self._advisors:
            advisor.close()


def _say(what: str) -> None:
    print(f"ringtune autotune: {what}", file=sys.stderr, flush=True)


def open_tuner(session: Session) -> TunerExtension | None:
    """Return the tuner of a session; None where nothing is to be tuned.

    Raises:
        RingtuneError: The journal or the log cannot be written.
    """
    config = session.config
    if not config.autotune or session.rank != 0:
        return None
    if session.size == 1:
        _say("a job of one rank sends nothing; nothing to tune")
        return None
    try:
        run = session.ensure_run_folder()
    except RingtuneError as error:  # a failing disk must not end the training
        _say(f"nothing is tuned, since the journal cannot be kept: {error}")
        return None
    space = space_of(config, session.knobs, surroundings(session))
    journal = Journal(layout.tuning_journal(run), config.autotune_log, csv_goes_on=bool(session.tracks.earlier_jobs))
    storage = study_options(config, str(layout.tuning_study(run)))
    setup, options = Setup(space, describe_job(session, space), storage), online_options(config, session.size)

    def begin(before: ResultRecord | None) -> tuple[OnlineTuner, Advisor]:
        trace = WarmupTrace(session, run, _say)
        trace.begin()
        advisor = ProcessAdvisor(setup)
        return OnlineTuner(space, advisor, options, trace.end, before), advisor

    return TunerExtension(session, begin, journal)


def surroundings(session: Session) -> Surroundings:
    """Return where the job runs; ranks of one host with transport TCP count as one host each."""
    if session.config.transport in ("tcp", "mpi"):
        return Surroundings(hosts=session.size, local=1, by_nccl=session.uses_nccl)
    hosts = Counter(session.hosts)
    return Surroundings(hosts=len(hosts), local=max(hosts.values()), by_nccl=session.uses_nccl)


def space_of(config: Config, default: Knobs, place: Surroundings | None = None) -> Space:
    """Return the searched space: without the knobs whose variables the user has set, under either prefix."""
    fixed = {knob: name for name, knob in _KNOB_OF_VARIABLE.items() if name in config.given}
    pinned = []
    for knob, name in fixed.items():
        word, value = knob_words(default, knob)
        pinned.append(f"{word} ({value}, set by {TWIN_PREFIX if name in config.horovods else PREFIX}{name})")
    return replace(Space.around(default, fixed, place), pinned=tuple(pinned))


def online_options(config: Config, world: int) -> OnlineOptions:
    """Return the budget that the variables ask for."""
    asked = {
        "max_trials": config.autotune_max_trials,
        "steps_per_trial": config.autotune_steps_per_trial,
        "warmup_steps": config.autotune_warmup_steps,
        "horizon_steps": config.autotune_horizon,
    }
    options = OnlineOptions(world=world, **{name: value for name, value in asked.items() if value is not None})
    if config.autotune_budget_ppm is None:
        return options
    return replace(options, budget=config.autotune_budget_ppm / 1e6 or None)


def study_options(config: Config, copy: str) -> StudyOptions:
    """Return where results are kept: the user's storage alone, or the storage of all jobs with a copy in the run."""
    if config.autotune_study:
        return StudyOptions(storage=config.autotune_study, seed=config.autotune_seed)
    return StudyOptions(default_storage(), copy, storage_optional=True, seed=config.autotune_seed)


def describe_job(session: Session, space: Space) -> JobDescription:
    """Return what is known about the job before its first step."""
    searched = space.names
    fixed = tuple(item for item in sorted(space.default.as_dict().items()) if item[0] not in searched)
    return JobDescription(
        world=session.size,
        hosts=len(set(session.hosts)),
        cpu=cpu_model(),
        cores=os.cpu_count() or 0,
        transport=session.config.transport,
        versions=tuple(sorted(runfolder.versions().items())),
        searched=searched,
        fixed=fixed,
        places=tuple(session.hosts),
    )
