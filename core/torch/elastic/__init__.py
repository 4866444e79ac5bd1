"""Elastic training of torch models: `run`, `TorchState`, `ElasticSampler` (``hvd.elastic``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ringtune.common.elastic import run_fn
from ringtune.torch.basics import init, shutdown
from ringtune.torch.elastic.sampler import ElasticSampler
from ringtune.torch.elastic.state import TorchState

__all__ = ["ElasticSampler", "TorchState", "run"]

R = TypeVar("R")


def run(func: Callable[..., R]) -> Callable[..., R]:
    """Make a training function elastic.

    The function gets the state as its first argument. It is called again, with the state of the last commit, whenever
    a rank failed or hosts came or went; before that the process leaves the job and joins its next generation.

    Args:
        func: ``func(state, ...)``.

    Returns:
        A function with the same arguments and result.
    """
    return run_fn(func, _reset)


def _reset() -> None:
    shutdown()
    init()
