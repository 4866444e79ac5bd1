"""Why a run failed, as far as its folder holds it: which rank, its last words, and where every rank stood."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ringtune.timeline.runs.run import Run
from ringtune.timeline.spans import SpanTable, Trace
from ringtune.timeline.units import ranks_text
from ringtune.timeline.vocabulary import ERROR, STALL, Stage

LAST_LINES = 8
_INTERRUPTED = frozenset(128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM))
"""Exit codes of a job that somebody ended."""
_TAIL_BYTES = 4096


@dataclass(frozen=True)
class LastCollective:
    """Where a rank stood at the end of its recording.

    Attributes:
        rank: The rank.
        tensor: First tensor of the last collective that it finished; "" where it recorded none.
        step: Of that collective; -1 where it is not known.
        error: What the runtime said of the first operation that failed on it; "" where none did.
    """

    rank: int
    tensor: str
    step: int
    error: str

    def sentence(self) -> str:
        """Return it in words, for example ``rank 0: finished allreduce.bias of step 25; then: ...``."""
        step = f" of step {self.step}" if self.step >= 0 else ""
        done = f"finished {self.tensor}{step}" if self.tensor else "finished no collective"
        return f"rank {self.rank} {done}" + (f"; then: {self.error}" if self.error else "")


@dataclass(frozen=True)
class Failure:
    """How a failed run ended.

    Attributes:
        rank: The rank that failed first; None where nothing says it.
        how: Its host, exit code and moment in words; "" where they are not known.
        last_lines: Of its standard error, else of its log.
        collectives: The last one of every rank that left a recording.
        missing: Ranks for which others waited in vain.
        hang: What dumps of a flight recorder say of it, in sentences.
    """

    rank: int | None
    how: str
    last_lines: tuple[str, ...]
    collectives: tuple[LastCollective, ...]
    missing: tuple[int, ...]
    hang: tuple[str, ...]

    def headline(self) -> str:
        """Return which rank failed, with what, and one action."""
        if self.hang:
            return f"{self.hang[0]}: look at where it stands in Python below"
        cause = f": {self.last_lines[-1].strip()}" if self.last_lines else ""
        if self.rank is not None:
            look = "its last lines below" if self.last_lines else "what it printed (ringtune run --logs keeps it)"
            return f"the run failed: rank {self.rank}{self.how}{cause}. Look at {look}"
        if self.missing:
            who = f"{'rank' if len(self.missing) == 1 else 'ranks'} {ranks_text(self.missing)}"
            return f"the run failed: {who} did not come to a collective of the others. Look at what it printed"
        return f"the run failed{self.how}{cause}. Run it again with ringtune run --logs --timeline to see which rank"


def failure(run: Run, trace: Trace | None) -> Failure | None:
    """Return how a failed run ended; None for a run that did not fail, or that somebody ended.

    Args:
        run: Its folder.
        trace: What its ranks recorded, where that can be read.
    """
    if run.status != "failed":
        return None
    said = run.document.get("failure")
    said = said if isinstance(said, Mapping) else {}
    if not said and run.exit_code in _INTERRUPTED:
        return None
    rank = said.get("rank")
    rank = rank if isinstance(rank, int) and not isinstance(rank, bool) else None
    collectives = tuple(_last_collectives(trace)) if trace is not None else ()
    imported = run.document.get("imported")
    hang = imported.get("hang") if isinstance(imported, Mapping) else None
    return Failure(
        rank=rank,
        how=_how(said, run.exit_code),
        last_lines=_last_lines(run, rank, said),
        collectives=collectives,
        missing=_missing(trace, collectives) if trace is not None else (),
        hang=tuple(map(str, hang)) if isinstance(hang, list) else (),
    )


def _how(said: Mapping[str, Any], code: int | None) -> str:
    host, after_s = said.get("host"), said.get("after_s")
    code = said.get("exit_code", code)
    place = f" on {host}" if isinstance(host, str) and host else ""
    ended = f" ended with code {code}" if isinstance(code, int) else ""
    moment = f" after {after_s:.1f} s" if isinstance(after_s, int | float) else ""
    return place + ended + moment


def _last_lines(run: Run, rank: int | None, said: Mapping[str, Any]) -> tuple[str, ...]:
    """What the launcher kept of the rank's standard error, else the end of its log."""
    lines = said.get("last_lines")
    if isinstance(lines, list) and lines:
        return tuple(map(str, lines))[-LAST_LINES:]
    log = run.logs.get(rank) if rank is not None else None
    return tuple(_tail(log))[-LAST_LINES:] if log is not None else ()


def _tail(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()]


def _last_collectives(trace: Trace) -> Iterator[LastCollective]:
    errors: dict[int, str] = {}
    for instant in sorted(trace.instants_named(ERROR), key=lambda one: one.at_ns):
        errors.setdefault(instant.rank, str(instant.args.get("message", "")))
    moves = trace.spans.of_stage(Stage.COMMUNICATE)
    for rank in sorted({*trace.ranks, *errors}):
        tensor, step = _last(moves.of_rank(rank))
        yield LastCollective(rank, tensor, step, errors.get(rank, ""))


def _last(moves: SpanTable) -> tuple[str, int]:
    if not len(moves):
        return "", -1
    last = moves.take(np.array([int(moves.end_ns.argmax())]))
    return last.tensor_texts()[0] or last.name_texts()[0], int(last.step[0])


def _missing(trace: Trace, collectives: tuple[LastCollective, ...]) -> tuple[int, ...]:
    """Ranks that a stall names; else those without an error of their own, where others have one or left no part."""
    stalled = {
        rank
        for instant in trace.instants_named(STALL)
        for rank in instant.args.get("missing") or ()
        if isinstance(rank, int)
    }
    if stalled:
        return tuple(sorted(stalled))
    failed = {one.rank for one in collectives if one.error}
    return tuple(sorted(set(range(trace.size)) - failed)) if failed else ()
