"""``ringtune.ray.ElasticRayExecutor``: Horovod's older name for an elastic `RayExecutor`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringtune.errors import InvalidArgument
from ringtune.ray.executor import RayExecutor
from ringtune.ray.settings import MiniSettings

_RENAMED = {"min_np": "min_num_proc", "max_np": "max_num_proc"}


@dataclass
class ElasticSettings(MiniSettings):
    """What an `ElasticRayExecutor` is started with; made by its `create_settings`.

    Attributes:
        min_num_proc: Least ranks.
        max_num_proc: Most ranks; None: as many as there is room for.
        reset_limit: How often the ranks are started anew; None: 3 times.
        elastic_timeout: Seconds to wait for room for `min_num_proc` ranks.
    """

    min_num_proc: int = 1
    max_num_proc: int | None = None
    reset_limit: int | None = None
    elastic_timeout: float = 600
    elastic: bool = True


class ElasticRayExecutor:
    """An elastic job of Ray's actors. Deprecated: ``RayExecutor(settings, min_workers=...)`` is the same.

    Args:
        settings: Of `create_settings`, or an object of Horovod's elastic settings.
        use_gpu: Whether a rank needs GPUs.
        cpus_per_slot: Cores of a rank.
        gpus_per_slot: GPUs of a rank; default: 1.
        env_vars: Further variables of the ranks.
        override_discovery: Must be True: Ray knows the nodes.

    Raises:
        ValueError: Arguments exclude each other.
    """

    @staticmethod
    def create_settings(
        min_num_proc: int = 1,
        max_num_proc: int | None = None,
        reset_limit: int | None = None,
        elastic_timeout: float = 600,
        timeout_s: float = 30,
        ssh_identity_file: str | None = None,
        nics: Sequence[str] | None = None,
        min_np: int | None = None,
        max_np: int | None = None,
        **kwargs: Any,
    ) -> ElasticSettings:
        """Return settings.

        Args:
            min_num_proc: See `ElasticSettings`, as for the following three.
            max_num_proc: Likewise.
            reset_limit: Likewise.
            elastic_timeout: Likewise.
            timeout_s: Seconds until all actors must have started.
            ssh_identity_file: Without effect: no ssh is used.
            nics: Network interfaces of links between hosts.
            min_np: Deprecated, use `min_num_proc`.
            max_np: Deprecated, use `max_num_proc`.
            kwargs: Further fields of `ElasticSettings`.
        """
        for old, value in (("min_np", min_np), ("max_np", max_np)):
            if value is not None:
                warnings.warn(
                    f"create_settings({old}=...) is deprecated, use {_RENAMED[old]}", DeprecationWarning, stacklevel=2
                )
        return ElasticSettings(
            min_num_proc=min_num_proc if min_np is None else min_np,
            max_num_proc=max_num_proc if max_np is None else max_np,
            reset_limit=reset_limit,
            elastic_timeout=elastic_timeout,
            timeout_s=timeout_s,
            ssh_identity_file=ssh_identity_file,
            nics=nics,
            **kwargs,
        )

    def __init__(
        self,
        settings: Any = None,
        use_gpu: bool = False,
        cpus_per_slot: float = 1,
        gpus_per_slot: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        override_discovery: bool = True,
    ) -> None:
        warnings.warn(
            "ElasticRayExecutor is deprecated: use RayExecutor(settings, min_workers=...)",
            DeprecationWarning,
            stacklevel=2,
        )
        if not override_discovery:
            raise InvalidArgument(
                "ElasticRayExecutor: override_discovery=False has no meaning here: Ray knows the nodes"
            )
        self._env = dict(env_vars or {})
        self._executor = RayExecutor(
            settings,
            cpus_per_worker=cpus_per_slot,
            use_gpu=use_gpu,
            gpus_per_worker=gpus_per_slot,
            min_workers=_first(settings, "min_num_proc", "min_np") or 1,
            max_workers=_first(settings, "max_num_proc", "max_np"),
            reset_limit=_first(settings, "reset_limit"),
            elastic_timeout=_first(settings, "elastic_timeout") or ElasticSettings.elastic_timeout,
        )

    def start(self) -> None:
        """Make ready; the actors start with each `run`.

        Raises:
            InvalidArgument: This process is not connected to a cluster, or the executor has started already.
        """
        self._executor.start(extra_env_vars=self._env)

    def run(self, worker_fn: Callable[..., Any], callbacks: Sequence[Callable[..., Any]] | None = None) -> list[Any]:
        """Call a function on every rank and return the results by rank; see `RayExecutor.run`."""
        return self._executor.run(worker_fn, callbacks=callbacks)


def _first(settings: Any, *names: str) -> Any:
    return next((value for name in names if (value := getattr(settings, name, None)) is not None), None)
