"""Training on a Ray cluster: actors as ranks.

`RayExecutor` has Horovod's arguments and methods, static and elastic; `RingtuneConfig` is the backend of Ray Train's
`DataParallelTrainer`. ray is imported when one of them is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringtune.ray.elastic import ElasticRayExecutor
from ringtune.ray.executor import RayExecutor
from ringtune.ray.settings import MiniSettings

if TYPE_CHECKING:
    from ringtune.ray.train import RingtuneConfig

__all__ = ["ElasticRayExecutor", "MiniSettings", "RayExecutor", "RingtuneConfig"]


def __getattr__(name: str) -> Any:
    """Load what derives from a class of Ray Train's when it is first used."""
    if name == "RingtuneConfig":
        from ringtune.ray.train import RingtuneConfig

        return RingtuneConfig
    raise AttributeError(f"module 'ringtune.ray' has no attribute {name!r}")
