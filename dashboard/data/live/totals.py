"""Totals over the newest steps of a running job, so that its communication figures follow step by step.

`RunningTotals` takes each step once, as it comes. `applied_to` adds the totals to the document of the analysis of the
earlier steps (`ringtune.dashboard.data.analysis`): times, bytes and counts are summed, shares and rates are recomputed
from the sums. Quantities that are no sums (bandwidths by size, fill of the buffer) stay as the analysis found them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ringtune.timeline.analysis.bandwidth import traffic
from ringtune.timeline.analysis.batches import rank_steps
from ringtune.timeline.analysis.fusion import Fusion, fusion
from ringtune.timeline.analysis.late_waits import late_waits
from ringtune.timeline.analysis.peer_wait import PeerWait, negotiation_peer_waits, negotiations, peer_waits
from ringtune.timeline.analysis.phases import Exposure, exposure, exposures, stage_times_of_ranks
from ringtune.timeline.spans import Ints, Trace
from ringtune.timeline.vocabulary import Stage

Sums = dict[str, float]

_WAITING = frozenset(stage.label for stage in (Stage.WAIT, Stage.NEGOTIATE, Stage.QUEUE))
_KNOWN = frozenset(stage.label for stage in (Stage.WAIT, Stage.STEP))
"""A rank with spans of both kinds records its waits (`ringtune.timeline.analysis.batches.rank_steps`)."""


class RunningTotals:
    """Totals over the steps that were added. Not safe to use from several threads at once."""

    def __init__(self) -> None:
        self.steps = 0
        self.spans = 0
        self._stages: dict[tuple[int, str], Sums] = {}
        self._exposures: dict[int, Sums] = {}
        self._kinds: dict[str, Sums] = {}
        self._pairs: dict[str, dict[tuple[int, int], float]] = {"waits": {}, "peer_waits": {}}
        self._control: dict[int, float] = {}
        self._fused: Sums = {}

    def add(self, trace: Trace, steps: int) -> None:
        """Take all spans of so many steps of all ranks."""
        spans = trace.spans
        self.steps += steps
        self.spans += len(spans)
        late = late_waits(trace)
        splits = exposures(spans, late)
        for rank, stages in stage_times_of_ranks(spans).items():
            for label, times in stages.items():
                _sum(self._stages.setdefault((rank, label), {}), vars(times))
            recorded = not _WAITING.isdisjoint(stages) and not _KNOWN.isdisjoint(stages)
            split = splits[rank] if recorded else self._split(trace, rank, late.of_rank(rank))
            if split is not None:
                _sum(self._exposures.setdefault(rank, {}), vars(split))
        for kind in traffic(late.moving, trace.size, fastest=False):
            if kind.bus_bytes_per_s is not None:
                moved = {"busy": float(kind.busy_ns), "moved": kind.bytes * kind.factor}
                _sum(self._kinds.setdefault(kind.kind, {}), moved)
        _sum(self._pairs["waits"], _by_pair(negotiation_peer_waits(spans)))
        _sum(self._pairs["peer_waits"], _by_pair(peer_waits(spans)))
        _sum(self._control, {one.rank: float(one.control_ns) for one in negotiations(spans)})
        _sum(self._fused, _fused(fusion(trace)))

    @staticmethod
    def _split(trace: Trace, rank: int, late: Ints) -> Exposure | None:
        """Return the exposure of a rank that did not record its waiting; None where nothing says when it waited."""
        mine = trace.spans.of_rank(rank)
        about = rank_steps(replace(trace, spans=mine), rank)
        return exposure(mine, about.waits, late) if about is not None and about.knows_waiting else None

    def applied_to(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return the document of an analysis with the totals added since."""
        if not self.steps:
            return dict(document)
        summary = dict(document["summary"])
        ranks = {int(rank["rank"]): rank for rank in summary["ranks"]}
        summary["ranks"] = [self._rank(rank) for rank in ranks.values()]
        summary["span_count"] += self.spans
        if summary["steps"]:
            summary["steps"] = {**summary["steps"], "count": summary["steps"]["count"] + self.steps}
        summary["bus_bytes_per_s"] = self._bus_rate(summary["traffic"])
        summary["fusion"] = self._fusion(summary["fusion"])
        summary["peer_waits"] = _with_pairs(summary["peer_waits"], self._pairs["peer_waits"])
        known = {int(one["rank"]): one["control_ns"] for one in summary["negotiations"]}
        _sum(known, self._control)
        summary["negotiations"] = [{"rank": rank, "control_ns": control} for rank, control in sorted(known.items())]
        return {**document, "summary": summary, "waits": _with_pairs(document["waits"], self._pairs["waits"])}

    def _rank(self, rank: Mapping[str, Any]) -> dict[str, Any]:
        number = int(rank["rank"])
        stages = {label: dict(times) for label, times in rank["stages"].items()}
        for (of, label), times in self._stages.items():
            if of == number:
                _sum(stages.setdefault(label, {}), times)
        split = dict(rank["exposure"] or {})
        _sum(split, self._exposures.get(number, {}))
        return {**rank, "stages": stages, "exposure": split or None}

    def _bus_rate(self, kinds: Iterable[Mapping[str, Any]]) -> float | None:
        total: Sums = {}
        for kind in kinds:
            if kind["bus_bytes_per_s"] is not None:
                _sum(total, {"busy": kind["busy_ns"], "moved": kind["bytes"] * kind["factor"]})
        for kind in self._kinds.values():
            _sum(total, kind)
        return total["moved"] / total["busy"] * 1e9 if total.get("busy") else None

    def _fusion(self, before: Mapping[str, Any] | None) -> dict[str, Any] | None:
        if before is None or not self._fused:
            return dict(before) if before else None
        total = _fused(Fusion(**before))
        _sum(total, self._fused)
        count = total["batches"]
        return {
            **before,
            "batches": int(count),
            "bytes": int(total["bytes"]),
            "batches_per_step": count / total["steps"] if total["steps"] else before["batches_per_step"],
            "tensors_per_batch": total["tensors"] / count,
            "bytes_per_batch": total["bytes"] / count,
            "fill": total["filled"] / total["filling"] if total["filling"] else None,
        }


def _fused(found: Fusion | None) -> Sums:
    """Return the sums behind the means of a fusion."""
    if found is None:
        return {}
    batches = float(found.batches)
    return {
        "batches": batches,
        "bytes": float(found.bytes),
        "steps": batches / found.batches_per_step if found.batches_per_step else 0.0,
        "tensors": found.tensors_per_batch * batches,
        "filled": (found.fill or 0.0) * batches,
        "filling": batches if found.fill is not None else 0.0,
    }


def _by_pair(found: Iterable[PeerWait]) -> dict[tuple[int, int], float]:
    return {(one.rank, one.peer): float(one.total_ns) for one in found}


def _with_pairs(before: Iterable[Mapping[str, Any]], more: Mapping[tuple[int, int], float]) -> list[dict[str, Any]]:
    pairs = {(int(one["rank"]), int(one["peer"])): one["total_ns"] for one in before}
    _sum(pairs, more)
    return [{"rank": rank, "peer": peer, "total_ns": total} for (rank, peer), total in pairs.items()]


def _sum(total: dict[Any, Any], more: Mapping[Any, float]) -> None:
    """Add numbers to those of the same name."""
    for name, value in more.items():
        total[name] = total.get(name, 0) + value
