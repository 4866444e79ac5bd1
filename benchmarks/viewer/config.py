"""The orders of a command for its workers: plain dataclasses that travel as JSON, importable without torch."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class TraceRun:
    """What a rank does that times steps with the timeline on and off.

    Args:
        profiles: sizes in bytes of the tensors of a step, by case.
        rounds: bursts of each kind (off, on, off again) per case.
        seconds: of one burst.
        models: instead of tensors, models that DDP trains over Gloo, recorded as `ringtune record` does.
    """

    profiles: list[list[int]]
    rounds: int
    seconds: float
    models: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class LiveRun:
    """What a rank does that is watched by a dashboard.

    Args:
        past: small steps as fast as they go, before the steps that are watched.
        tensors: reduced in each of them.
        period_s: time from one watched step to the next; what is left of it is spent waiting, as if for data.
    """

    past: int
    tensors: int
    period_s: float
