"""The orders of a command for its workers: plain dataclasses that travel as JSON, importable without torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LearnRun:
    """What a rank does that times the algorithms of allreduce.

    Args:
        sizes_bytes: tensor sizes.
        seconds: measured per size and algorithm.
    """

    sizes_bytes: list[int]
    seconds: float


@dataclass(frozen=True)
class HookRun:
    """What a rank does that times gradient hooks.

    Args:
        gradients: parameters, each with one gradient per pass.
        size_bytes: of each.
        passes: measured pairs of backward passes.
    """

    gradients: int
    size_bytes: int
    passes: int
