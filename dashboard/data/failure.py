"""How a run failed, or hangs: the rank at fault, the last collective of every rank, and where in Python each stood."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import ringtune.errors
from ringtune import layout
from ringtune.dashboard.data import machine
from ringtune.dashboard.data.files import Unreadable, integer, listing, read_tail, sequence, text
from ringtune.dashboard.data.runs import RunInfo, rank_files
from ringtune.dashboard.data.timeline.index import TimelineIndex
from ringtune.timeline.units import ranks_text
from ringtune.timeline.vocabulary import STALL, Stage

RANK_LIMIT = 64
"""Ranks whose stacks are read."""
_TAIL_BYTES = 64 * 2**10
_OWN = str(Path(ringtune.errors.__file__).parent)
_FOREIGN = re.compile(r"/(?:site|dist)-packages/|/lib/python3|^<|/ringtune/")
_BLOCK = re.compile(r"^(?=# |Thread 0x|Current thread 0x|Traceback )", re.MULTILINE)
_FRAME = re.compile(r'^ *File "(?P<file>[^"]+)", line (?P<line>\d+),? in (?P<function>.+)$', re.MULTILINE)
_ERROR = re.compile(r"^(?:(?:\w+\.)*\w*(?:Error|Exception|Interrupt)|(?:\w+\.)+[A-Z]\w*)(?::\s|$)")
"""The last line of a traceback: a class that is called an error, or stands in a module."""
_CONSEQUENCE = re.compile(
    r"\b(?:PeerLost|ShutDown|Timeout|DistBackendError|HorovodInternalError)\b|Connection (?:closed|reset) by peer"
)
"""Errors by which ranks end because another one did, or did not come."""


@dataclass(frozen=True)
class RankEnd:
    """What the run folder holds of a rank's end; texts are empty and ``step`` is -1 where it holds nothing.

    Attributes:
        error: The last line of the error that ended it.
        collective: The last collective that it finished.
        step: The step of that collective.
        stood: Where in the user's Python it stood.
        lines: The last lines that it printed, else its newest stack.
    """

    rank: int
    error: str = ""
    collective: str = ""
    step: int = -1
    stood: str = ""
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Failure:
    """How a run failed, or why it hangs.

    Attributes:
        headline: One sentence: which rank, and what it did or did not; empty where the folder does not say.
        action: What to look at first; empty where nothing is known.
        blamed: The ranks at fault.
        ranks: The ranks, those at fault first.
    """

    headline: str
    action: str
    blamed: tuple[int, ...]
    ranks: tuple[RankEnd, ...]


@dataclass(frozen=True)
class _Missing:
    """A collective that some ranks did not come to, as the last stall says."""

    tensor: str
    ranks: tuple[int, ...]
    waited_s: float


def hangs(run: RunInfo) -> bool:
    """Whether a running job has written that a rank does not get on."""
    return run.status == "live" and bool(listing(run.path, run.path / layout.STACKS_FOLDER, ".txt"))


def data(run: RunInfo, index: TimelineIndex | None) -> Failure | None:
    """Return how a run failed, or why a running one hangs; None for a run of which nothing like it is known.

    Args:
        run: The run.
        index: Its timeline; None where none was recorded, or none can be read.
    """
    stacks, printed, last = _stacks(run), machine.last_words(run), _last(index)
    missing = _missing(index)
    if run.status == "live" and not (any(stacks.values()) and (missing or len(stacks) == run.ranks)):
        return None
    ends = {
        rank: RankEnd(
            rank,
            _error(stacks.get(rank, "").splitlines()) or _error(printed.get(rank, ())),
            *last.get(rank, ("", -1)),
            _stood(stacks.get(rank, "")),
            tuple(printed.get(rank) or _newest(stacks.get(rank, "")).rstrip().splitlines()[-machine.LOG_LINES :]),
        )
        for rank in sorted({*range(min(run.ranks, RANK_LIMIT)), *stacks, *printed, *last})
    }
    if not any(end.error or end.collective or end.stood or end.lines for end in ends.values()):
        return None
    blamed, headline = _verdict(ends, missing, running=run.status == "live")
    ranks = tuple(sorted(ends.values(), key=lambda end: (end.rank not in blamed, end.rank)))
    action = next((f"Look at {end.stood}" for end in ranks if end.rank in blamed and end.stood), "")
    return Failure(headline, action, blamed, ranks)


def _verdict(ends: Mapping[int, RankEnd], missing: _Missing | None, *, running: bool) -> tuple[tuple[int, ...], str]:
    """Return the ranks at fault, and the sentence that says so."""
    own = [end for end in ends.values() if end.error and not _is_consequence(end.error)]
    if own:
        others = f", and {len(own) - 1} more by errors of their own" if len(own) > 1 else ""
        return tuple(end.rank for end in own), f"Rank {own[0].rank} ended by {own[0].error}{others}."
    if missing is not None:
        step = max((ends[rank].step for rank in missing.ranks if rank in ends), default=-1)
        after = f" after step {step:,}" if step >= 0 else ""
        verb = "do" if running and len(missing.ranks) > 1 else "does" if running else "did"
        sentence = f"{_ranks(missing.ranks)} {verb} not come to {missing.tensor}{after}"
        return missing.ranks, f"{sentence}: the others waited {missing.waited_s:.0f} s."
    silent = [end.rank for end in ends.values() if not end.error]
    if silent and len(silent) < len(ends):
        where = ends[silent[0]].stood
        words = f"stood in {where} while the others waited" if where else (
            "left no error while the others lost it: killed, or crashed outside Python"
        )  # fmt: skip
        return tuple(silent), f"{_ranks(silent)} {words}."
    if running:
        return (), "No rank finishes an operation."
    return (), ""


def _ranks(ranks: Sequence[int]) -> str:
    return f"Rank {ranks[0]}" if len(ranks) == 1 else f"Ranks {ranks_text(tuple(ranks))}"


def _is_consequence(error: str) -> bool:
    return _CONSEQUENCE.search(error) is not None


def _stacks(run: RunInfo) -> dict[int, str]:
    """Return what the ranks wrote of their stacks."""
    found = {}
    for rank, path in sorted(rank_files(run.path, run.path / layout.STACKS_FOLDER, ".txt").items())[:RANK_LIMIT]:
        try:
            content, _ = read_tail(run.path, path, _TAIL_BYTES)
        except Unreadable:
            continue
        if content.strip():
            found[rank] = content.decode("utf-8", "replace")
    return found


def _last(index: TimelineIndex | None) -> dict[int, tuple[str, int]]:
    """Return the last collective that each rank finished, and its step."""
    if index is None:
        return {}
    spans = index.recorded()
    moved = spans.take(spans.in_stage(Stage.COMMUNICATE))
    moved = moved.take(np.argsort(moved.end_ns, kind="stable"))
    ranks, newest = np.unique(moved.rank[::-1], return_index=True)
    found = {}
    for rank, at in zip(ranks.tolist(), (len(moved) - 1 - newest).tolist(), strict=True):
        tensor = moved.tensors[moved.tensor[at]] or moved.names[moved.name[at]]
        found[rank] = (text(tensor), int(moved.step[at]))
    return found


def _missing(index: TimelineIndex | None) -> _Missing | None:
    """Return the collective that the last stall names, if the rank that reported it finished none since."""
    stalls = [one for one in index.instants if one.name == STALL] if index is not None else []
    if index is None or not stalls:
        return None
    last = max(stalls, key=lambda one: one.at_ns)
    spans = index.recorded()
    done = spans.end_ns[spans.in_stage(Stage.COMMUNICATE) & (spans.rank == last.rank)]
    if len(done) and done.max() > last.at_ns:
        return None
    ranks = tuple(integer(rank, -1) for rank in sequence(last.args.get("missing")))
    known = tuple(rank for rank in ranks if rank >= 0)
    return _Missing(text(last.args.get("tensor")), known, integer(last.args.get("age_ns")) / 1e9) if known else None


def _error(lines: Sequence[str]) -> str:
    """Return the line of the last error among lines, as Python prints it below a traceback."""
    for line in reversed(lines):
        found = _ERROR.match(line.strip()) if not line.startswith(" ") else None
        if found:
            return text(line.strip())
    return ""


def _stood(stacks: str) -> str:
    """Return the innermost frame of the user's code in the newest stack, else the innermost of all."""
    frames = list(_frames(_newest(stacks)))
    if not frames:
        return ""
    file, line, function = next((one for one in frames if _is_users(one[0])), frames[0])
    where = f"{Path(file).name} line {line}"
    return text(where if function == "<module>" else f"{where} ({function})")


def _newest(stacks: str) -> str:
    """Return the newest stack with the line that says why it was written; of all threads the one that was met."""
    return next((block for block in reversed(_BLOCK.split(stacks)) if _FRAME.search(block)), "")


def _frames(block: str) -> Iterator[tuple[str, str, str]]:
    """Yield the frames of a stack from the innermost on: file, line, function."""
    found = [(one["file"], one["line"], one["function"]) for one in _FRAME.finditer(block)]
    yield from found if "most recent call first" in block else reversed(found)


def _is_users(file: str) -> bool:
    return not file.startswith(_OWN) and _FOREIGN.search(file) is None
