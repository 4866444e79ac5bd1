"""Step times for the tuner: one sample a step, taken from all ranks where the runtime knows them."""

from __future__ import annotations

from dataclasses import dataclass

from ringtune.stats import StepStats

_REMEMBERED = 256


@dataclass(frozen=True)
class Sample:
    """Duration of one step.

    Attributes:
        knobs_version: Version of the knobs at the end of that step.
        ns: Duration in nanoseconds, of the slowest rank where known.
        bytes: Payload of this rank in the step just ended, in bytes.
        collectives: Its operations.
    """

    knobs_version: int
    ns: int
    bytes: int = 0
    collectives: int = 0


class StepFeed:
    """Turns step statistics into samples.

    The world's duration of a step arrives a few steps late and some steps may be missing; each is given the version
    that this rank had at that step, and is counted once. Without it the rank's own duration is used.
    """

    def __init__(self) -> None:
        self._knobs_versions: dict[int, int] = {}
        self._last = -1

    def add(self, stats: StepStats) -> Sample | None:
        """Return the step time that became known with this step, if any."""
        self._knobs_versions[stats.step] = stats.knobs_version
        if len(self._knobs_versions) > _REMEMBERED:
            del self._knobs_versions[min(self._knobs_versions)]
        if stats.world_step_ns > 0:
            if stats.world_step <= self._last:
                return None
            self._last = stats.world_step
            knobs_version = self._knobs_versions.get(stats.world_step, stats.knobs_version)
            return Sample(knobs_version, stats.world_step_ns, stats.bytes, stats.collectives)
        if self._last >= 0 or stats.wall_ns <= 0:
            return None
        return Sample(stats.knobs_version, stats.wall_ns, stats.bytes, stats.collectives)
