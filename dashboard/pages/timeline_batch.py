"""The table of a followed batch: when each rank submitted, agreed, began and ended."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc

from ringtune.dashboard.components import table
from ringtune.dashboard.data.timeline.collective import Followed, RankBatch
from ringtune.dashboard.units import duration, plain, size
from ringtune.timeline.units import numbered_text


def followed_card(found: Followed | None) -> list[Any]:
    """Return the table of a followed batch; nothing when none is followed."""
    if found is None:
        return []
    origin = min(one.begin_ns if one.submit_ns is None else one.submit_ns for one in found.ranks)
    rows = [_row(one, origin, found.last_rank) for one in found.ranks]
    head = ("Rank", "Submitted", "Agreed", "Began", "Ended", "Done", "")
    facts = [plain(found.label, 80), size(found.bytes), f"step {found.step}" if found.step >= 0 else ""]
    called = numbered_text(found.batch, found.label)
    title = f"{called[:1].upper()}{called[1:]} on {len(found.ranks)} ranks"
    close = dmc.Button("Close", id="timeline-unfollow", variant="subtle", size="compact-sm")
    words = dmc.Text(" · ".join(one for one in facts if one), size="sm", c="dimmed")
    top = dmc.Group([dmc.Title(title, order=4, className="rt-card-title"), words, close], gap="sm")
    verdict = ""
    if found.last_rank is not None and found.late_ns > 0:
        verdict = f"Rank {found.last_rank} submitted last, {duration(found.late_ns)} after the last but one."
    body = [top, dmc.Text(verdict, size="sm"), table(head, rows)] if verdict else [top, table(head, rows)]
    return [dmc.Card(dmc.Stack(body, gap="xs"), withBorder=True, radius="md", p="md", mt="md", id="timeline-batch")]


def _row(one: RankBatch, origin: int, last: int | None) -> tuple[str, ...]:
    moments = (one.submit_ns, one.agreed_ns, one.begin_ns, one.end_ns, one.done_ns)
    shown = ("–" if at is None else f"+{duration(at - origin)}" for at in moments)
    return (str(one.rank), *shown, "last to submit" if one.rank == last else "")
