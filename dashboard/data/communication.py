"""Where communication's time went, rank by rank, as means a step: from `ringtune.dashboard.data.analysis`.

Times are nanoseconds a step. *Busy* is what the wall clock saw of a phase: spans that overlap count once. Waiting for
late ranks, exposed communication, waiting while copying and waiting for the rest are the parts of the time callers were
blocked (`ringtune.timeline.analysis.phases`); overlapped communication lies outside of it. So none of the five overlap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringtune.dashboard.data.analysis import Analysis
from ringtune.dashboard.theme import PHASES
from ringtune.dashboard.units import number, percent, rate, size

SHOWN_PEERS = 5
"""The number of late ranks that are shown one by one; the others are summed."""


@dataclass(frozen=True)
class Exposed:
    """A rank's communication and waiting."""

    rank: int
    overlapped_ns: float
    late_ns: float
    exposed_ns: float
    copying_ns: float
    other_ns: float


@dataclass(frozen=True)
class RankPhases:
    """A rank's busy time by phase, in the order of `PHASES`."""

    rank: int
    busy_ns: dict[str, float]


@dataclass(frozen=True)
class Waits:
    """Why tensors that were ready did not move: control, and waiting for others, summed over tensors.

    Attributes:
        ranks: The ranks that waited.
        control_ns: By rank: the cost of agreement once all had submitted.
        peers: The ranks most waited for; -1 for all others.
        waited_ns: By peer, then by rank.
    """

    ranks: tuple[int, ...]
    control_ns: tuple[float, ...]
    peers: tuple[int, ...]
    waited_ns: tuple[tuple[float, ...], ...]


def steps_of(found: Analysis) -> int:
    """Return by how many steps sums are divided: at least one."""
    steps = found.document["summary"]["steps"]
    return max(1, int(steps["count"])) if steps else 1


def exposed(found: Analysis) -> list[Exposed]:
    """Return communication against waiting, for every rank whose trace says when callers waited."""
    steps, rows = steps_of(found), []
    for rank in found.document["summary"]["ranks"]:
        split = rank["exposure"]
        if split:
            names = ("overlapped_ns", "late_ns", "exposed_ns", "wait_copy_ns", "wait_other_ns")
            rows.append(Exposed(int(rank["rank"]), *(split[name] / steps for name in names)))
    return rows


def phases(found: Analysis) -> list[RankPhases]:
    """Return the phases of every rank's communication."""
    steps = steps_of(found)
    shown = [label for label in PHASES if label not in ("step", "range", "other")]
    return [
        RankPhases(
            int(rank["rank"]),
            {label: rank["stages"][label]["busy_ns"] / steps for label in shown if label in rank["stages"]},
        )
        for rank in found.document["summary"]["ranks"]
        if rank["stages"]
    ]


def waits(found: Analysis) -> Waits:
    """Return what kept tensors from moving: negotiated ones, and those of a step schedule, which name who came late."""
    steps, summary = steps_of(found), found.document["summary"]
    control = {int(one["rank"]): one["control_ns"] / steps for one in summary["negotiations"]}
    pairs: dict[tuple[int, int], float] = {}
    for one in [*found.document["waits"], *summary["peer_waits"]]:
        key = int(one["peer"]), int(one["rank"])
        pairs[key] = pairs.get(key, 0.0) + one["total_ns"] / steps
    ranks = tuple(sorted({rank for _, rank in pairs} | set(control)))
    total = {peer: sum(value for (late, _), value in pairs.items() if late == peer) for peer, _ in pairs}
    most = sorted(total, key=lambda peer: (-total[peer], peer))
    named, rest = most[:SHOWN_PEERS], most[SHOWN_PEERS:]
    columns = [tuple(pairs.get((peer, rank), 0.0) for rank in ranks) for peer in named]
    if rest:
        columns.append(tuple(sum(pairs.get((peer, rank), 0.0) for peer in rest) for rank in ranks))
    return Waits(
        ranks,
        tuple(control.get(rank, 0.0) for rank in ranks),
        (*named, *([-1] if rest else [])),
        tuple(columns),
    )


def numbers(found: Analysis) -> list[tuple[str, str, str]]:
    """Return the page's numbers as label, value and note."""
    summary: Mapping[str, Any] = found.document["summary"]
    fused, rows = summary["fusion"], exposed(found)
    late, visible = sum(row.late_ns for row in rows), sum(row.exposed_ns for row in rows)
    hidden = sum(row.overlapped_ns for row in rows)
    blocked = sum(row.late_ns + row.exposed_ns + row.copying_ns + row.other_ns for row in rows)
    cards = [("Bus bandwidth", rate(summary["bus_bytes_per_s"]), "of a rank, without waiting for late ranks")]
    if blocked > 0:
        most = "skew" if late > visible else "transfer"
        shares = f"{percent(late / blocked)} of the blocked time for late ranks, {percent(visible / blocked)} exposed"
        cards.append(("Dominated by", most, shares))
    if hidden + visible > 0:
        cards.append(("Overlapped", percent(hidden / (hidden + visible)), "of the communication"))
    if fused:
        fill = percent(fused["fill"]) if fused["fill"] is not None else "–"
        cards += [
            ("Batches a step", number(fused["batches_per_step"]), "of allreduces"),
            ("Tensors a batch", number(fused["tensors_per_batch"]), f"{size(fused['bytes_per_batch'])} on average"),
            ("Fusion buffer filled", fill, "by a batch, on average"),
        ]
    control, waited = _negotiated(found.document["waits"], summary["negotiations"])
    if control + waited > 0:
        cards.append(
            ("Waiting in negotiation", percent(waited / (control + waited)), "for the last rank; else control")
        )
    return cards


def _negotiated(pairs: Sequence[Mapping[str, Any]], split: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    return sum(float(one["control_ns"]) for one in split), sum(float(one["total_ns"]) for one in pairs)
