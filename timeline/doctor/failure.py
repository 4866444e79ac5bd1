"""Why a run failed, or hangs, as far as its folder holds it: the rank at fault, and where every rank stood.

Whoever explains a run reads its texts as far as it trusts them, and gives them to `explain`: one verdict for all.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import ringtune.errors
from ringtune.timeline.runs.run import Run
from ringtune.timeline.spans import MOST_RANKS, Instant, SpanTable, Trace, empty_table
from ringtune.timeline.units import ranks_text, several, tensor_text
from ringtune.timeline.vocabulary import ERROR, STALL, Stage

LOG_LINES = 20
"""Last lines of what a rank printed that are looked at."""
LOG_BYTES, STACK_BYTES = 16 * 2**10, 64 * 2**10
"""What is read of the end of a rank's log and of its stacks."""
_MOST_LISTED, _LAST_LINES = 4, 8
"""Ranks that are listed above an analysis, and lines of one at fault."""
_INTERRUPTED = frozenset(128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM))
"""Exit codes of a job that somebody ended."""
_OWN_CODES, _KILLED = 127, 128 + signal.SIGKILL
"""The highest exit code with which a program ends itself; above, a signal ended it, as SIGKILL does."""
_PRINTED = "what it printed (ringtune run --logs keeps it)"
_NAME_THE_RUN = "Name the run folder, where there is one, instead of the file to see where each rank stood"
_OWN = str(Path(ringtune.errors.__file__).parent)
_FOREIGN = re.compile(r"/(?:site|dist)-packages/|/lib/python3|^<|/ringtune/")
_BLOCK = re.compile(r"^(?=# |Thread 0x|Current thread 0x|Traceback )", re.MULTILINE)
_FRAME = re.compile(r'^ *File "(?P<file>[^"]+)", line (?P<line>\d+),? in (?P<function>.+)$', re.MULTILINE)
_ERROR = re.compile(r"^(?:(?:\w+\.)*\w*(?:Error|Exception|Interrupt)|(?:\w+\.)+[A-Z]\w*)(?::\s|$)")
"""The last line of a traceback: a class that is called an error, or stands in a module."""
_CONSEQUENCE = re.compile(
    r"\b(?:PeerLost|ShutDown|Timeout|DistBackendError|HorovodInternalError|KeyboardInterrupt)\b"
    r"|Connection (?:closed|reset) by peer"
)
"""Errors by which ranks end because another one did, or did not come, or because somebody ended the job."""


@dataclass(frozen=True)
class RankEnd:
    """What the run folder holds of a rank's end; texts are empty and ``step`` is -1 where it holds nothing.

    Attributes:
        error: The last line of the error that ended it, else what the runtime said of its first failed operation.
        own: Whether that error is its own, and does not follow from what another rank did.
        collective: First tensor of the last collective that it finished.
        step: The step of that collective.
        stood: Where in the user's Python it stood.
        lines: Its last lines: of its standard error as the launcher kept it, else of its log, else its newest stack.
        recorded: Whether there is a timeline, which knows its collectives.
    """

    rank: int
    error: str = ""
    own: bool = False
    collective: str = ""
    step: int = -1
    stood: str = ""
    lines: tuple[str, ...] = ()
    recorded: bool = True

    def sentence(self) -> str:
        """Return it in words, for example ``rank 0 finished allreduce.bias of step 25; then: ...``."""
        step = f" of step {self.step}" if self.step >= 0 else ""
        done = f"finished {tensor_text(self.collective)}{step}" if self.collective else "finished no collective"
        said = [done] if self.recorded else []
        said += [f"{'then: ' if said else 'ended by '}{self.error}"] if self.error else []
        said += [f"stood in {self.stood}"] if self.stood else []
        return f"rank {self.rank} {'; '.join(said) or 'left no error and no stack'}"


@dataclass(frozen=True)
class Failure:
    """How a run failed, or why it hangs.

    Attributes:
        headline: One sentence: which rank, and what it did or did not; empty where the folder does not say.
        action: What to look at or to do first; empty where nothing is known.
        blamed: The ranks at fault.
        ranks: The ranks, those at fault first.
        first: Which rank the launcher saw end first, and how; empty where none did.
        hang: What dumps of a flight recorder say of it, in sentences.
    """

    headline: str
    action: str
    blamed: tuple[int, ...]
    ranks: tuple[RankEnd, ...]
    first: str = ""
    hang: tuple[str, ...] = ()

    def words(self) -> str:
        """Return the headline and the action."""
        return " ".join(filter(None, (self.headline, f"{self.action}." if self.action else "")))

    def lines(self) -> list[str]:
        """Return what to read below: which rank ended first, the last lines of one at fault, where the ranks stood."""
        found = [*self.hang, *([f"{self.first}: the first to end"] if self.first else [])]
        if self.blamed and (last := self.ranks[0].lines):
            found.append(f"rank {self.ranks[0].rank}, its last lines:")
            found += [f"  {line}" for line in last[-_LAST_LINES:]]
        found += [one.sentence() for one in self.ranks[:_MOST_LISTED]]
        if len(self.ranks) > _MOST_LISTED:
            found.append(f"and {several(len(self.ranks) - _MOST_LISTED, 'rank')} more: --json has all")
        return found


@dataclass(frozen=True)
class _Missing:
    """A collective that some ranks did not come to, as the last stall says."""

    tensor: str
    ranks: tuple[int, ...]
    waited_s: float


def _signal(code: int) -> str:
    """Return the signal that an exit code means, in brackets; empty for another code."""
    names = {128 + one.value: f" ({one.name})" for one in signal.Signals}
    return names.get(code, "")


@dataclass(frozen=True)
class _Launcher:
    """The rank that the launcher saw end first, how, and its last lines; -1 and empty where it saw none."""

    rank: int
    how: str
    lines: tuple[str, ...]
    code: int = 0

    @staticmethod
    def of(said: Mapping[str, Any], code: object) -> _Launcher:
        code, host, after_s = said.get("exit_code", code), said.get("host"), said.get("after_s")
        place = f" on {host}" if isinstance(host, str) and host else ""
        ended = f" ended with code {code}{_signal(code)}" if isinstance(code, int) else ""
        moment = f" after {after_s:.1f} s" if isinstance(after_s, int | float) else ""
        rank, lines = max(-1, _whole(said.get("rank"), -1)), _texts(said.get("last_lines"))
        return _Launcher(rank, place + ended + moment, lines, _whole(code, 0))


def failure(run: Run, trace: Trace | None) -> Failure | None:
    """Return how a run failed, or why it hangs; None for a run that ends well, or that somebody ended.

    Args:
        run: Its folder.
        trace: What its ranks recorded, where that can be read.
    """
    if run.status not in ("failed", "running"):
        return None
    stacks = {rank: _tail(path, STACK_BYTES) for rank, path in run.stacks.items()}
    printed = {rank: _tail(path, LOG_BYTES).splitlines() for rank, path in run.logs.items()}
    said = () if trace else reported({rank: _tail(path, STACK_BYTES) for rank, path in run.stalls.items()})
    spans, instants, size = (trace.spans, trace.instants, trace.size) if trace else (empty_table(), said, 0)
    size, running = min(max(run.size, size), MOST_RANKS), run.status == "running"
    found = explain(run.document, stacks, printed, spans, instants, size, running=running)
    return found if found is not None and found.headline else None


def reported(texts: Mapping[int, str]) -> tuple[Instant, ...]:
    """Return what ranks wrote of a stall as a timeline would hold it, the operation that waits longest first.

    Args:
        texts: Of ranks, what they wrote (``stacks/rank-NNNNN.json``); what makes no sense there is left out.
    """
    found = []
    for rank, text in texts.items():
        try:
            document = json.loads(text)
            at_ns = int(document["written_unix_ns"])
            for one in document["waiting"]:
                args = {"tensor": str(one["tensor"]), "missing": one["missing"]}
                found.append(
                    Instant(STALL, "stall", rank, at_ns, {**args, "age_ns": at_ns - int(one["since_unix_ns"])})
                )
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
            continue
    return tuple(sorted(found, key=lambda one: (not one.args["missing"], -one.args["age_ns"])))


def of_trace(trace: Trace) -> Failure | None:
    """Return how a trace without its run folder ends, if operations failed or stalled and none was finished since."""
    if not any(one.name in (ERROR, STALL) for one in trace.instants):
        return None
    failed, last, done = _failed_operations(trace.instants), _last(trace.spans), trace.spans.of_stage(Stage.COMMUNICATE)
    missing = _missing(trace.spans, trace.instants)
    errors = [one for one in trace.instants if one.name == ERROR]
    ends = [RankEnd(rank, failed.get(rank, ""), False, *last.get(rank, ("", -1))) for rank in range(trace.size)]
    if missing is not None:
        blamed, headline = missing.ranks, _absent(missing, {end.rank: end for end in ends}, running=False)
    elif errors and (not len(done) or int(done.end_ns.max()) < min(one.at_ns for one in errors)):
        first = min(errors, key=lambda one: (one.at_ns, one.rank))
        blamed, headline = (), f"The trace ends with failed operations: {failed[first.rank]}."
    else:
        return None
    return Failure(headline, _NAME_THE_RUN, blamed, tuple(sorted(ends, key=lambda end: end.rank not in blamed)))


def explain(
    document: Mapping[str, Any],
    stacks: Mapping[int, str],
    printed: Mapping[int, Sequence[str]],
    spans: SpanTable,
    instants: Sequence[Instant],
    size: int,
    *,
    running: bool,
) -> Failure | None:
    """Return how a run failed, or why a running one hangs; None for a running one that gets on.

    Args:
        document: Its ``run.json``.
        stacks: What ranks wrote of their stacks.
        printed: The last lines that ranks printed.
        spans: What they recorded, on the job's clock.
        instants: Rare events that they recorded, on the same clock.
        size: Ranks, from 0 on, of which all of this was read: one without an error among them has left none.
        running: Whether it runs.
    """
    said, imported, code = (document.get(key) for key in ("failure", "imported", "exit_code"))
    interrupted = not said and _whole(code, 0) in _INTERRUPTED
    seen = _Launcher.of(said if isinstance(said, Mapping) else {}, None if interrupted else code)
    missing = _missing(spans, instants)
    if running and not (any(stacks.values()) and (missing or len(stacks) == size)):
        return None
    failed, last = _failed_operations(instants), _last(spans)
    none = ("", -1) if len(spans) else None
    told = {**printed, **({seen.rank: seen.lines} if seen.lines else {})}
    ends = {
        rank: _end(rank, stacks.get(rank, ""), told.get(rank, []), failed.get(rank, ""), last.get(rank, none))
        for rank in sorted({*range(size), *stacks, *told, *last, *failed, seen.rank} - {-1})
    }
    silent = [end for end in ends.values() if not end.error and end.rank < size]
    if interrupted or len(silent) == len(ends):
        silent = []
    blamed, headline = _verdict(ends, silent, missing, seen, running=running)
    unknown = bool(headline) and not running
    action = _action([ends[rank] for rank in blamed if rank in ends], seen, printed, unknown=unknown)
    hang = _texts(imported.get("hang")) if isinstance(imported, Mapping) else ()
    if hang:
        headline, action = f"{hang[0]}: look at where it stands in Python below", ""
    ranks = tuple(sorted(ends.values(), key=lambda end: (end.rank not in blamed, end.rank)))
    first = f"rank {seen.rank}{seen.how}" if seen.rank >= 0 else ""
    return Failure(headline, action, blamed, ranks, first, hang)


def _end(rank: int, stacks: str, lines: Sequence[str], failed: str, last: tuple[str, int] | None) -> RankEnd:
    lines = [line for line in lines if line.strip()][-LOG_LINES:]
    error = _error(stacks.splitlines()) or _error(lines)
    own = bool(error) and _CONSEQUENCE.search(error) is None
    # With the line that says why it was written; of all threads the one that the signal met.
    newest = next((block for block in reversed(_BLOCK.split(stacks)) if _FRAME.search(block)), "")
    shown = tuple(lines or newest.rstrip().splitlines()[-LOG_LINES:])
    collective, step = last or ("", -1)
    return RankEnd(rank, error or failed, own, collective, step, _stood(newest), shown, last is not None)


def _verdict(
    ends: Mapping[int, RankEnd], silent: list[RankEnd], missing: _Missing | None, seen: _Launcher, *, running: bool
) -> tuple[tuple[int, ...], str]:
    """Return the ranks at fault, and the sentence that says so."""
    ended = f"Rank {seen.rank}{seen.how}"
    own = sorted((end for end in ends.values() if end.own), key=lambda end: (end.rank != seen.rank, end.rank))
    if own:
        others = f", and {len(own) - 1} more by errors of their own" if len(own) > 1 else ""
        begin = f"{ended}: " if own[0].rank == seen.rank else f"Rank {own[0].rank} ended by "
        return tuple(end.rank for end in own), f"{begin}{own[0].error}{others}."
    if missing is not None:
        return missing.ranks, _absent(missing, ends, running=running)
    if silent:
        # The others were told to end, and had the time to write where they stood.
        mute = [end for end in silent if end.rank == seen.rank] or [end for end in silent if not end.stood] or silent
        who = tuple(end.rank for end in mute)
        if mute[0].stood and seen.rank not in who:
            return who, f"{_ranks(who)} stood in {mute[0].stood} while the others waited."
        begin = f"{ended}, and" if seen.rank in who else _ranks(who)
        itself = seen.rank in who and 0 < seen.code <= _OWN_CODES
        how = "its program ended itself" if itself else "killed, or crashed outside Python"
        return who, f"{begin} left no error while the others lost it: {how}."
    if running:
        return (), "No rank finishes an operation."
    if seen.rank in ends:
        lines = ends[seen.rank].lines
        return (seen.rank,), f"{ended}{f': {lines[-1].strip()}' if lines else ''}."
    return (), f"The job{seen.how}, and nothing says which rank failed first." if seen.how else ""


def _absent(missing: _Missing, ends: Mapping[int, RankEnd], *, running: bool) -> str:
    """Return the sentence that says who did not come."""
    step = max((ends[rank].step for rank in missing.ranks if rank in ends), default=-1)
    after = f" after step {step:,}" if step >= 0 else ""
    verb = "do" if running and len(missing.ranks) > 1 else "does" if running else "did"
    sentence = f"{_ranks(missing.ranks)} {verb} not come to {missing.tensor}{after}"
    return f"{sentence}: the others waited {missing.waited_s:.0f} s."


def _action(blamed: Sequence[RankEnd], seen: _Launcher, kept: Container[int], *, unknown: bool) -> str:
    """Return what to do first.

    Args:
        blamed: The ranks at fault.
        seen: What the launcher saw.
        kept: The ranks of which what they printed is kept.
        unknown: Whether to look for the rank at fault where none is known.
    """
    if stood := next((end.stood for end in blamed if end.stood), ""):
        return f"Look at {stood}"
    if not blamed:
        return "Run it again with ringtune run --logs --timeline to see which" if unknown else ""
    if blamed[0].lines:
        return "Look at its last lines below"
    places, code = [], seen.code if blamed[0].rank == seen.rank else 0
    if 0 < code <= _OWN_CODES:
        places.append(f"for what exits with code {code} (sys.exit, os._exit, a library)")
    elif code == _KILLED:
        places.append("in its host's kernel log (dmesg) whether memory ran out")
    if blamed[0].rank not in kept or not places:
        places.append(f"at {_PRINTED}")
    return f"Look {' and '.join(places)}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"Rank {ranks[0]}" if len(ranks) == 1 else f"Ranks {ranks_text(tuple(ranks))}"


def _tail(path: Path, limit_bytes: int) -> str:
    if not path.is_file():  # opening a pipe would wait for its writer
        return ""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - limit_bytes))
            return file.read(limit_bytes).decode("utf-8", "replace")
    except OSError:
        return ""


def _failed_operations(instants: Sequence[Instant]) -> dict[int, str]:
    """Return what the runtime said of the first operation that failed on each rank."""
    named = sorted((one for one in instants if one.name == ERROR), key=lambda one: -one.at_ns)
    return {one.rank: str(one.args.get("message", "")) for one in named}


def _last(spans: SpanTable) -> dict[int, tuple[str, int]]:
    """Return the last collective that each rank finished, and its step."""
    moved = spans.of_stage(Stage.COMMUNICATE)
    moved = moved.take(np.argsort(-moved.end_ns, kind="stable"))
    ranks, newest = np.unique(moved.rank, return_index=True)
    last = moved.take(newest)
    names = [tensor or name for tensor, name in zip(last.tensor_texts(), last.name_texts(), strict=True)]
    return dict(zip(ranks.tolist(), zip(names, last.step.tolist(), strict=True), strict=True))


def _missing(spans: SpanTable, instants: Sequence[Instant]) -> _Missing | None:
    """Return the collective that the last stall names, if the rank that reported it finished none since."""
    last = max((one for one in instants if one.name == STALL), key=lambda one: one.at_ns, default=None)
    if last is None:
        return None
    done = spans.end_ns[spans.in_stage(Stage.COMMUNICATE) & (spans.rank == last.rank)]
    named = last.args.get("missing")
    ranks = tuple(rank for rank in named if _whole(rank, -1) >= 0) if isinstance(named, list | tuple) else ()
    if not ranks or (len(done) and done.max() > last.at_ns):
        return None
    return _Missing(str(last.args.get("tensor", "")), ranks, _whole(last.args.get("age_ns"), 0) / 1e9)


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()


def _whole(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _error(lines: Sequence[str]) -> str:
    """Return the line of the last error among lines, as Python prints it below a traceback."""
    return next((line.strip() for line in reversed(lines) if _ERROR.match(line.rstrip())), "")


def _stood(stack: str) -> str:
    """Return the innermost frame of the user's code in a stack, else the innermost of all."""
    frames = [(one["file"], one["line"], one["function"]) for one in _FRAME.finditer(stack)]
    if not frames:
        return ""
    if "most recent call first" not in stack:
        frames.reverse()
    users = [one for one in frames if not one[0].startswith(_OWN) and _FOREIGN.search(one[0]) is None]
    file, line, function = (users or frames)[0]
    return f"{Path(file).name} line {line}" + ("" if function == "<module>" else f" ({function})")
