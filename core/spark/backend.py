"""`Backend`: what an estimator's training runs on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ringtune.spark import jobs


class Backend:
    """Runs a function on a number of ranks. Subclasses define it."""

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """Call a function on every rank and return the results by rank."""
        raise NotImplementedError

    def num_processes(self) -> int:
        """Return the number of ranks."""
        raise NotImplementedError


class SparkBackend(Backend):
    """Runs functions as barrier stages of the active SparkContext.

    Args:
        num_proc: Number of ranks; default: ``sc.defaultParallelism``.
        env: Further variables of the ranks.
        options: Further arguments of `ringtune.spark.run`.
    """

    def __init__(self, num_proc: int | None = None, env: Mapping[str, str] | None = None, **options: Any) -> None:
        self._num_proc = num_proc or int(jobs.active_context().defaultParallelism)
        self._env, self._options = dict(env or {}), options

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """Call a function on every rank and return the results by rank; see `ringtune.spark.run`."""
        together = {**self._env, **(env or {})}
        return jobs.run(fn, args, kwargs, num_proc=self._num_proc, env=together, **self._options)

    def num_processes(self) -> int:
        """Return the number of ranks."""
        return self._num_proc
