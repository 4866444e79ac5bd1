"""The state that a rank publishes for the metrics: one small document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from ringtune.errors import RingtuneError
from ringtune.meters.durations import Durations
from ringtune.meters.sample import Sample
from ringtune.meters.stalls import Stall, Waiting

if TYPE_CHECKING:
    from ringtune.session import Session


@dataclass(frozen=True)
class RankState:
    """A rank at one moment; sums run since its session began.

    Attributes:
        rank: Its rank.
        host: Name of its host.
        local_rank: Its rank among those of the host.
        size: Number of ranks.
        generation: Number of the set of ranks in an elastic job; 0 in a job with fixed ranks.
        step_counts: Steps by duration, in the buckets of `ringtune.meters.durations`.
        step_ns: Duration of all steps.
        counters: The runtime's sums, by the names of `ringtune.stats.StepStats`.
        traffic: Operations and bytes of each kind of operation.
        stalls: Stalls that this rank reported.
        stall: What this rank reported last of it.
        open_operations: Operations that were submitted and are not done.
        knobs: The runtime's setting and, as ``knobs_version``, its version.
        sample: Process and machine, by the names of `ringtune.meters.sample.Sample`.
        blocked: Of the newest steps number and blocked time in ns; each is told several times.
        exposed_ns: Of rank 0, exposed communication of the job.
        alerts: Of rank 0, for every kind of alert how often it was raised and whether it holds, 1 or 0.
        awaited: Of rank 0, while a stall is an alert: missing rank, its longest waiting operation, and since when, in
            Unix ns.
    """

    rank: int
    host: str
    local_rank: int
    size: int
    generation: int
    step_counts: Sequence[int]
    step_ns: int
    counters: Mapping[str, int]
    traffic: Mapping[str, Sequence[int]]
    stalls: int
    stall: Stall
    open_operations: int
    knobs: Mapping[str, int]
    sample: Mapping[str, Any]
    blocked: Sequence[Sequence[int]] = field(default_factory=list)
    exposed_ns: int = 0
    alerts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    awaited: Sequence[Sequence[Any]] = field(default_factory=list)

    def to_bytes(self) -> bytes:
        """Return the document as it travels."""
        return orjson.dumps(self)

    @classmethod
    def from_bytes(cls, document: bytes) -> RankState:
        """Read a document that another rank of the same version wrote.

        Raises:
            RingtuneError: It is none.
        """
        try:
            found = orjson.loads(document)
            stall = found.pop("stall")
            waiting = [Waiting(**one) for one in stall["waiting"]]
            return cls(**found, stall=Stall(stall["seen_ns"], waiting))
        except (ValueError, TypeError, KeyError) as error:
            raise RingtuneError(f"a rank's metrics cannot be read ({error}); do all ranks run one version?") from None


def observe(session: Session, durations: Durations, sample: Sample, blocked: Sequence[tuple[int, int]]) -> RankState:
    """Return the state of this rank. Any thread; does not wait for the one that trains."""
    return RankState(
        rank=session.rank,
        host=session.placement.host,
        local_rank=session.local_rank,
        size=session.size,
        generation=session.placement.generation or 0,
        step_counts=list(durations.counts),
        step_ns=durations.sum_ns,
        counters=session.counters(),
        traffic={name.lower(): values for name, values in session.traffic().items()},
        stalls=session.stalls,
        stall=Stall.reported(session),
        open_operations=session.open_operations,
        knobs=session.knob_values(),
        sample=orjson.loads(orjson.dumps(sample)),
        blocked=blocked,
    )
