"""How a run failed, or hangs: `ringtune.timeline.doctor.failure` with what may be read of an untrusted folder."""

from __future__ import annotations

from dataclasses import replace

from ringtune import layout
from ringtune.dashboard.data import machine
from ringtune.dashboard.data.files import Unreadable, listing, read_document, read_tail, text
from ringtune.dashboard.data.runs import RunInfo, rank_files
from ringtune.dashboard.data.timeline.index import TimelineIndex
from ringtune.timeline.doctor.failure import STACK_BYTES, Failure, RankEnd, explain, reported
from ringtune.timeline.spans import empty_table

RANK_LIMIT = 64
"""Ranks whose stacks and logs are read."""


def hangs(run: RunInfo) -> bool:
    """Whether a running job has written that a rank does not get on."""
    return run.status == "live" and bool(listing(run.path, run.path / layout.STACKS_FOLDER, ".txt"))


def data(run: RunInfo, index: TimelineIndex | None) -> Failure | None:
    """Return how a run failed, or why a running one hangs; None for a running one that gets on.

    Args:
        run: The run.
        index: Its timeline; None where none was recorded, or none can be read.
    """
    try:
        document = read_document(run.path, layout.run_file(run.path))
    except Unreadable:
        document = {}
    said = () if index else reported(_texts(run, ".json"))
    spans, instants, ranks = (index.recorded(), index.instants, index.ranks) if index else (empty_table(), said, ())
    size, running = min(max(run.ranks, max(ranks, default=-1) + 1), RANK_LIMIT), run.status == "live"
    found = explain(document, _texts(run, ".txt"), machine.last_words(run), spans, instants, size, running=running)
    if found is None:
        return None
    return replace(
        found,
        headline=text(found.headline),
        action=text(found.action),
        ranks=tuple(map(_shown, found.ranks)),
        first=text(found.first),
        hang=tuple(map(text, found.hang)),
    )


def _shown(end: RankEnd) -> RankEnd:
    error, collective, stood = map(text, (end.error, end.collective, end.stood))
    return replace(end, error=error, collective=collective, stood=stood, lines=tuple(map(text, end.lines)))


def _texts(run: RunInfo, suffix: str) -> dict[int, str]:
    """Return what the ranks wrote of their stacks (``.txt``), or of stalls (``.json``)."""
    found = {}
    for rank, path in sorted(rank_files(run.path, run.path / layout.STACKS_FOLDER, suffix).items())[:RANK_LIMIT]:
        try:
            content, _ = read_tail(run.path, path, STACK_BYTES)
        except Unreadable:
            continue
        if content.strip():
            found[rank] = content.decode("utf-8", "replace")
    return found
