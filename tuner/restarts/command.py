"""What `ringtune tune --restarts` does around a session: the place, the journal, progress, the end."""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from ringtune import layout, native, runfolder
from ringtune.config import Config
from ringtune.errors import RingtuneError, UsageError
from ringtune.launch import LaunchOptions
from ringtune.launch.hosts import is_local
from ringtune.launch.launcher import plan, record_of
from ringtune.meters.gpus import Gpus
from ringtune.timeline.units import several
from ringtune.tuner.applying import apply, print_document
from ringtune.tuner.fingerprint import JobDescription, cpu_model
from ringtune.tuner.journal import Journal
from ringtune.tuner.messages import sentence
from ringtune.tuner.progress import LiveView, PlainView, View
from ringtune.tuner.records import NoteRecord, Record, ResultRecord
from ringtune.tuner.restarts.choices import Choice, Place, choices_for, may_carry, parse_choice
from ringtune.tuner.restarts.memory import StudyMemory
from ringtune.tuner.restarts.runner import JobRunner, RunnerOptions
from ringtune.tuner.restarts.session import RestartOptions, RestartSession, Run, Runner
from ringtune.tuner.study import default_storage

_INTERRUPTED = 130
_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Wishes:
    """What the command line asked for.

    Attributes:
        session: Budget of the session.
        runs: How long a run is.
        place: Where the job runs, and what is allowed.
        given: Variables that the user has set: they are left alone.
        own: What the user wants tried.
        storage: Optuna storage of the user's choice; empty = his memory of all jobs, with a copy in the run folder.
        apply: ``print``, or the file that receives the environment of the result.
        as_json: Print one JSON document at the end, and all else on standard error.
        seed: Of the sampler, which chooses where there is much to choose from; None = different every time.
    """

    session: RestartOptions
    runs: RunnerOptions
    place: Place
    given: frozenset[str]
    own: list[Choice]
    storage: str = ""
    apply: str = "print"
    seed: int | None = None
    as_json: bool = False

    def choices(self, first: Run) -> tuple[list[Choice], tuple[str, ...]]:
        """Return what is tried of a command by its first run, and in words what is not since the user has set it.

        Raises:
            UsageError: Nothing is left to try.
        """
        place = replace(self.place, backend=first.backend, made=first.made)
        choices = choices_for(place, self.given, self.own)
        if not choices:
            raise UsageError("--restarts: no setting of a restart has an effect here; name variables with --try")
        tried = {choice.variable for choice in choices}
        return choices, tuple(f"{one.variable} (set)" for one in choices_for(place, ()) if one.variable not in tried)


def tune_by_restarts(job: LaunchOptions, values: Mapping[str, Any]) -> int:
    """Run a session; returns 0, or 130 after Ctrl-C.

    Raises:
        UsageError: The options cannot work.
        RingtuneError: The command fails as it is, or something cannot be written.
    """
    wishes = wishes_of(job, values)
    return run_session(job, wishes, JobRunner(job, wishes.runs))


def wishes_of(job: LaunchOptions, values: Mapping[str, Any]) -> Wishes:
    """Return what the options ask for.

    Raises:
        UsageError: They make no sense.
    """
    if values["horizon"] is not None:
        raise UsageError("--horizon is for tuning within one training, not for --restarts")
    slots = plan(job)
    config = Config.from_environ({**job.environ, **job.settings})
    counts = Counter(slot.host for slot in slots)
    hosts, local = (len(slots), 1) if config.transport in ("tcp", "mpi") else (len(counts), max(counts.values()))
    nccl = may_carry(native.load().build_info(), gpus=Gpus.find() is not None)
    threads = int(job.environ.get("OMP_NUM_THREADS") or (os.cpu_count() or 1) // max(counts.values()))
    place = Place(hosts, local, nccl, bool(values["allow_compression"]), threads=threads)
    given = frozenset({f"RINGTUNE_{name}" for name in config.given} | set(job.environ))
    here = tuple(slot.rank for slot in slots if is_local(slot.host)) or (0,)
    runs = RunnerOptions(here, **{field: values[name] for name, field in _RUN.items() if values[name] is not None})
    own = [parse_choice(text) for text in values["own"]]
    session = RestartOptions(
        max_trials=values["max_trials"] or RestartOptions.max_trials,
        steps=runs.steps,
        budget_s=_seconds(values["budget"]) if values["budget"] is not None else None,
        world=len(slots),
    )
    storage = values["study"] or config.autotune_study or ""
    return Wishes(session, runs, place, given, own, storage, str(values["apply"]), values["seed"], values["as_json"])


_RUN = {"warmup_steps": "warmup_steps", "steps_per_trial": "steps", "run_limit": "limit_s"}


def _seconds(text: str) -> float:
    """Return the time in ``90s``, ``10min``, ``1.5h``.

    Raises:
        UsageError: It is none.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|min|h)\s*", text)
    if match is None:
        raise UsageError(f"--budget {text}: with --restarts it is the time of all runs, for example 90s, 10min or 1h")
    return float(match[1]) * _UNITS[match[2]]


def run_session(job: LaunchOptions, wishes: Wishes, runner: Runner) -> int:
    """Run a session with a runner, show it and say how it ended; returns 0, or 130 after Ctrl-C."""
    assert job.run_dir is not None
    console = Console()
    with contextlib.ExitStack() as stack:
        ended = stack.enter_context(_recorded(job, job.run_dir))
        journal = stack.enter_context(Journal(layout.tuning_journal(job.run_dir)))
        view: View = PlainView(err=wishes.as_json)
        records: list[Record] = []
        if not wishes.as_json and console.is_terminal and not console.is_dumb_terminal:
            view = stack.enter_context(LiveView(console))

        def put(record: Record) -> None:
            journal.write([record])
            records.append(record)
            view.show(record)

        def say(why: str) -> None:
            put(NoteRecord(why))

        places = _storages(wishes, job.run_dir)

        def begin(first: Run) -> tuple[list[Choice], StudyMemory, tuple[str, ...]]:
            choices, pinned = wishes.choices(first)
            memory = StudyMemory(describe(job, wishes, choices), choices, places, say, wishes.seed)
            return choices, memory, pinned

        session = RestartSession(runner, begin, wishes.session, put)
        result = session.run()
        ended(_exit_code(result))
    click.echo(f"ringtune tune: {sentence(result)}", err=wishes.as_json)
    made = f"{several(result.trials, 'trial')}, {several(session.runs, 'run')}"
    click.echo(f"ringtune tune: {made}, {session.spent_s:.1f} s; run: {job.run_dir}", err=wishes.as_json)
    apply(result, wishes.apply, quiet=wishes.as_json)
    if wishes.as_json:
        print_document(records, result, job.run_dir, _exit_code(result))
    return _exit_code(result)


@contextlib.contextmanager
def _recorded(job: LaunchOptions, run: Path) -> Iterator[Callable[[int], None]]:
    """Describe the session in its run folder as a job is; lends what takes note of its exit code, 1 after an error."""
    record = record_of(job, plan(job), Config.from_environ({**job.environ, **job.settings}))
    runfolder.create(run, replace(record, labels={**record.labels, "tuning": "restarts"}))
    codes: list[int] = []
    try:
        yield codes.append
    finally:
        try:
            runfolder.finish(run, codes[0] if codes else 1)
        except RingtuneError as error:  # the session is over, and a full disk is no reason to lose its result
            click.echo(f"ringtune tune: warning: how the session ended is not noted: {error}", err=True)


def _exit_code(result: ResultRecord) -> int:
    return _INTERRUPTED if result.decision == "interrupted" else 0


def _storages(wishes: Wishes, run: Path) -> list[str]:
    return [wishes.storage] if wishes.storage else [default_storage(), str(layout.tuning_study(run))]


def describe(job: LaunchOptions, wishes: Wishes, choices: Sequence[Choice]) -> JobDescription:
    """Return what is known about the job but for what a step sends."""
    place = wishes.place
    config = Config.from_environ({**job.environ, **job.settings})
    return JobDescription(
        world=wishes.session.world,
        hosts=place.hosts,
        cpu=cpu_model(),
        cores=os.cpu_count() or 0,
        transport=config.transport,
        versions=tuple(sorted(runfolder.versions().items())),
        searched=tuple(choice.variable for choice in choices),
    )
