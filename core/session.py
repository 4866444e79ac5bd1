"""The session: one job's life in this process, from ``init()`` to ``shutdown()``.

A `Session` owns the native runtime, writes the run folder and drives the extensions. There is one current session
per process; the framework front ends (`ringtune.torch`) work through it. Not thread-safe: open, close and step on
the thread that trains; submitting and waiting may happen on any thread.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringtune import extensions, native, runfolder
from ringtune.bootstrap import stack_source
from ringtune.bootstrap.departure import departure, exit_code, tell_of_loss
from ringtune.bootstrap.placement import Placement
from ringtune.config import Config, not_yet_warned
from ringtune.elastic import membership
from ringtune.elastic.tracks import Tracks
from ringtune.errors import InvalidArgument, NotInitialized, RingtuneError
from ringtune.foreign import ForeignRecorder
from ringtune.knobs import Knobs
from ringtune.meters.meters import Meters
from ringtune.operations import Range
from ringtune.recording import Recording
from ringtune.runtime import Runtime
from ringtune.stats import StepStats
from ringtune.step_marks import StepMarks
from ringtune.tickets import Tickets, translated

_LEAVE_TIMEOUT_NS = 10_000_000_000
"""How long rank 0, whose negotiator the others need, waits for them to leave before it goes."""

NOT_INITIALIZED = "Horovod has not been initialized; use hvd.init()."
"""Horovod's words, which scripts compare."""


class Session(Tickets):
    """One job's life in this process. Made by `Session.open`; operations go through `Tickets.submit`.

    Args:
        config: Settings of this process.
        placement: Its rank, host and launcher.
        runtime: The native runtime (or what behaves like it); owned.
        context: How this job meets and where it writes.

    Attributes:
        run_folder: Folder the job writes into, None when it writes nothing.
        planned_folder: Where it is, or will be when something is written.
        store: Client of the rendezvous store, None for a job of one.
        job: Key of this session in the store, the same on all ranks.
        tracks: Who stands under which number in timeline and run folder.
    """

    def __init__(self, config: Config, placement: Placement, runtime: Runtime, context: JobContext) -> None:
        super().__init__(runtime)
        self.config = config
        self.placement = placement
        self.job = context.job
        self.store = context.store
        self.run_folder: Path | None = None
        self.rank: int = placement.rank
        self.size: int = placement.size
        self.local_rank: int = runtime.local_rank
        self.local_size: int = runtime.local_size
        self.cross_rank: int = runtime.cross_rank
        self.cross_size: int = runtime.cross_size
        self.homogeneous: bool = runtime.homogeneous
        self.hosts: list[str] = list(runtime.hosts)
        self.tracks = Tracks(placement, self.hosts)
        self.closed = False
        self.planned_folder = context.run_folder
        self._end_links = context.end_links
        self._pid = os.getpid()
        self._extensions = extensions.ExtensionSet(placement.rank)
        self._meters, self._recording = Meters(self), Recording(self)
        self._steps = StepMarks(runtime, self._step_ended)
        self.foreign = ForeignRecorder(runtime)

    @staticmethod
    def open(config: Config | None = None) -> Session:
        """Find this process's rank, meet the other ranks and make the session current.

        Args:
            config: Settings; default: those of the environment.

        Raises:
            ConfigError: A variable of the environment is invalid; the message names it.
            Timeout: Not all ranks came; the message names the missing ones.
        """
        from ringtune.bootstrap.opening import open_session

        return open_session(config)

    @staticmethod
    def current() -> Session | None:
        """Return the open session of this process, if there is one."""
        return state.current

    @property
    def knobs(self) -> Knobs:
        """The runtime's present setting."""
        return Knobs.from_dict(self.knob_values())

    @property
    def knobs_version(self) -> int:
        """Version of the present setting."""
        return self.knob_values()["knobs_version"]

    def knob_values(self) -> dict[str, int]:
        """Return the present setting and its version by name."""
        return self._runtime.knobs()

    @property
    def timeline_file(self) -> Path | None:
        """Where rank 0 merges the parts when the session closes; None when nothing was recorded."""
        return self._recording.file

    # -- steps and knobs ---------------------------------------------------------------------------------------------

    def end_step(self) -> StepStats:
        """Close the present step: count it, log it and tell the extensions. None is detected from then on."""
        return self._steps.end()

    def follow_programs(self) -> None:
        """Count also the steps that end in a framework's compiled programs; a thread of their own reports them."""
        self._steps.follow_programs()

    def _step_ended(self, stats: StepStats) -> None:
        self._meters.step_ended(stats)
        self._recording.step_ended(stats.step)
        self._extensions.on_step(stats)

    @translated
    def propose_knobs(self, knobs: Knobs) -> int:
        """Propose another setting; all ranks apply it at the same cycle with nothing in flight.

        Returns:
            The version that the knobs will have.

        Raises:
            InvalidArgument: This is not rank 0.
        """
        return self._runtime.propose_knobs(knobs.as_dict())

    # -- timeline ----------------------------------------------------------------------------------------------------

    @property
    def recording(self) -> bool:
        """Whether a timeline is being recorded."""
        return self._runtime.recording

    def range(self, name: str) -> Range:
        """Return a context manager that records its body under a name in the timeline."""
        return Range(self._runtime, name)

    def start_timeline(self, path: str | Path | None = None, *, mark_cycles: bool = False) -> None:
        """Record this rank's part of the timeline.

        Args:
            path: Where rank 0 shall merge all parts when the session closes; default: in the run folder.
            mark_cycles: Also mark the runtime's cycles.

        Raises:
            TraceIoError: The part cannot be written.
        """
        self._recording.start(path, mark_cycles=mark_cycles)

    def stop_timeline(self) -> None:
        """Stop recording; the part is complete when this returns."""
        self._recording.stop()

    def start_part(self, path: str, **how: Any) -> None:
        """Record this rank's part into a file that nobody merges.

        Args:
            path: The file.
            **how: As of `ringtune.runtime.Runtime.start_timeline`.

        Raises:
            TraceIoError: It cannot be written.
        """
        with native.translated():
            self._runtime.start_timeline(path, **how)

    @translated
    def stop_part(self) -> None:
        """End it.

        Raises:
            TraceIoError: Spans were lost to a full disk.
        """
        self._runtime.stop_timeline()

    def record_range(self, name: str, begin_ns: int, end_ns: int) -> None:
        """Record a range of this thread."""
        self._runtime.record_range(name, begin_ns, end_ns)

    # -- life --------------------------------------------------------------------------------------------------------

    def ensure_run_folder(self) -> Path:
        """Return the run folder, making it when it is needed for the first time.

        Raises:
            RingtuneError: It cannot be written.
        """
        if self.run_folder is None:
            run = self.planned_folder
            if self.rank == 0:
                runfolder.describe(
                    run,
                    size=self.size,
                    **self.tracks.described(run),
                    config=self.config.as_dict(),
                    knobs=self.knobs.as_dict(),
                    versions=runfolder.versions(),
                )
            runfolder.write_machine(run, self.tracks.own, self.placement.host)
            self._meters.write_into(run)
            self.run_folder = run
            self._steps.watch()
        return self.run_folder

    def group_runtime(self, options: Any, number: int, label: str, members: Sequence[int]) -> Runtime:
        """Return the runtime of some of the ranks, which records in this session's timeline.

        Args:
            options: The native ``RuntimeOptions`` of the group.
            number: Of the group, the same on all its ranks.
            label: Before the names of its collectives.
            members: Ranks in this session of the group's ranks.
        """
        runtime: Runtime = native.load().Runtime(options, self._runtime, number, label, list(members))
        return runtime

    def lend_runtime(self) -> Runtime:
        """Return the runtime for compiled code that starts persistent collectives (`ringtune.torch.persistent`)."""
        return self._runtime

    def require_home(self) -> None:
        """Check that this is the process that opened the session.

        Raises:
            InvalidArgument: It is a child that was forked from it.
        """
        if os.getpid() != self._pid:
            raise InvalidArgument(
                f"init(): this process was forked from rank {self.rank}, which is in a job already; start processes "
                "that call init() themselves with 'spawn'"
            )

    def close(self, *, at_exit: bool = False) -> None:
        """Leave the job: extensions, timeline, runtime, run folder, in this order. Idempotent.

        Args:
            at_exit: The process ends, with its session open: the other ranks get that as the reason, with the error.
        """
        if self.closed or os.getpid() != self._pid:  # a forked child holds only a copy
            return
        self.closed = True
        how, failed = departure(at_exit=at_exit)
        if at_exit:
            tell_of_loss(self.placement, self.store)
        state.current = None if state.current is self else state.current
        self._steps.close()
        self._extensions.on_close()
        self._meters.close()
        for leave in (self._recording.close, lambda: self._runtime.shutdown(_LEAVE_TIMEOUT_NS, how, failed)):
            try:
                leave()
            except (RingtuneError, self._error) as error:  # the session is closing, so a warning is all that is left
                warn(f"[rank {self.rank}] while leaving the job: {error}")
        self._end_links()
        membership.note_progress(self._runtime.progress)
        self._runtime.close_to_frameworks()
        self._extensions.after_close()
        if self.run_folder is not None and self.rank == 0 and not self.config.launcher:
            try:
                runfolder.finish(self.run_folder, exit_code())
            except RingtuneError as error:  # a full disk is no reason to fail a job that has trained
                warn(f"[rank 0] how the job ended is not noted: {error}")

    def begin(self) -> None:
        """Start what the settings ask for: run folder, timeline, extensions. Compiled code reaches the runtime then."""
        self._runtime.open_to_frameworks()
        config = self.config
        if self.size > 1:
            stack_source.offer()
        if self.rank == 0:
            for sentence in not_yet_warned(config.warnings):
                warn(sentence)
        if config.run_dir is not None or config.autotune:
            try:
                self.ensure_run_folder()
            except RingtuneError as error:
                if config.run_dir is not None and not config.launcher:
                    raise
                # The user asked for no folder, or the launcher could write there: training goes on without it.
                warn(f"[rank {self.rank}] the job goes on without a run folder: {error}")
        self._meters.begin()
        self._recording.begin()
        self._extensions.open(self, extensions.registered())


@dataclass(frozen=True)
class JobContext:
    """How a session meets its job and where it would write.

    Attributes:
        job: Key of the session in the store.
        store: Client of the store, None for a job of one.
        run_folder: Absolute path of the run folder, the same on all ranks; made when first needed.
        end_links: Ends what carries the links' bytes in place of the runtime.
    """

    job: str
    store: Any
    run_folder: Path
    end_links: Callable[[], None] = lambda: None


@dataclass
class State:
    """What a process holds: at most one open session.

    Attributes:
        current: The open session.
    """

    current: Session | None = None


state = State()


def init(config: Config | None = None) -> Session:
    """Open the session of this process, or return the one that is open.

    Raises:
        ConfigError: A variable of the environment is invalid.
        Timeout: Not all ranks came.
        InvalidArgument: This process was forked from one that is in a job.
    """
    if state.current is None:
        return Session.open(config)
    state.current.require_home()
    return state.current


def shutdown() -> None:
    """Close the session of this process; idempotent."""
    if state.current is not None:
        state.current.close()


def end_of_process() -> None:
    """Close the session that the script has left open."""
    if state.current is not None:
        state.current.close(at_exit=True)


def is_initialized() -> bool:
    """Return whether a session is open."""
    return state.current is not None


def range(name: str) -> Range:
    """Record the body of a ``with`` statement in the timeline of the current session, if there is one."""
    return Range(state.current._runtime if state.current is not None else None, name)


def require() -> Session:
    """Return the current session.

    Raises:
        NotInitialized: There is none.
    """
    if state.current is None:
        raise NotInitialized(NOT_INITIALIZED)
    return state.current


def warn(sentence: str) -> None:
    """Print a warning."""
    print(f"ringtune warning: {sentence}", file=sys.stderr, flush=True)
