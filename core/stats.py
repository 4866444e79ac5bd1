"""What a training step cost: counted by the native runtime, one record a step and rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from ringtune.layout import current_keys


@dataclass(frozen=True)
class StepStats:
    """Statistics of one optimizer step on one rank; times are on the rank's monotonic clock.

    Attributes:
        step: Number of the step on this rank, from 0.
        knobs_version: Version of the knobs at the end of the step.
        begin_ns: Start of the step (end of the step before, or of ``init``).
        end_ns: End of the step.
        bytes: Payload of this rank that was reduced, gathered or broadcast, in bytes.
        collectives: Operations finished.
        batches: Batches they were fused into.
        negotiate_ns: Time from submit to agreement of all ranks, summed over operations.
        communicate_ns: Time of the batches on the links.
        copy_ns: Time of copies into and out of the fusion buffer.
        wait_ns: Time callers were blocked: by exposed communication or for a late rank.
        control_messages: Messages of the negotiation sent and received.
        control_bytes: Their size in bytes.
        world_step: Newest step that all ranks have reported, -1 before the first. Not in the step log.
        world_step_ns: The slowest rank's duration of that step. Not in the step log.
        detected: Nobody has marked the step: its operations have come again. Not in the step log.
    """

    step: int = 0
    knobs_version: int = 0
    begin_ns: int = 0
    end_ns: int = 0
    bytes: int = 0
    collectives: int = 0
    batches: int = 0
    negotiate_ns: int = 0
    communicate_ns: int = 0
    copy_ns: int = 0
    wait_ns: int = 0
    control_messages: int = 0
    control_bytes: int = 0
    world_step: int = -1
    world_step_ns: int = 0
    detected: bool = False

    @property
    def wall_ns(self) -> int:
        """Duration of the step in nanoseconds."""
        return self.end_ns - self.begin_ns

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> StepStats:
        """Build a record from the runtime's dictionary or a line of the step log; unknown names are ignored."""
        known = values if "knobs_version" in values else current_keys(values)
        return cls(**{name: known[name] for name in _NAMES if name in known})

    def as_dict(self) -> dict[str, int]:
        """Return the fields that stand in a line of the step log."""
        values = asdict(self)
        del values["world_step"], values["world_step_ns"], values["detected"]
        return values


_NAMES = tuple(field.name for field in fields(StepStats))
