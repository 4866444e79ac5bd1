"""Settings of a `RayExecutor`, as Horovod's scripts make them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass
class MiniSettings:
    """What a `RayExecutor` is started with; made by `RayExecutor.create_settings`.

    Attributes:
        nics: Network interfaces of links between hosts.
        verbose: 2 and more: say what is started.
        key: Without effect, as are the following two: each job has a secret of its own, and no ssh is used.
        ssh_port: See `key`.
        ssh_identity_file: See `key`.
        timeout_s: Seconds until all actors must have started.
        placement_group_timeout_s: Seconds until the cluster must have room for them.
        elastic: Whether the job is elastic; set by the executor's arguments.
    """

    nics: Sequence[str] | None = None
    verbose: int = 1
    key: str | None = None
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    timeout_s: float = 300
    placement_group_timeout_s: float = 100
    elastic: bool = False

    @property
    def start_timeout(self) -> float:
        """Horovod's name of `timeout_s`."""
        return self.timeout_s


def read(settings: Any) -> MiniSettings:
    """Return what an object of settings says, whichever class of Horovod's it is of; None: the defaults."""
    found = MiniSettings()
    for name in ("nics", "verbose", "timeout_s", "placement_group_timeout_s"):
        value = getattr(settings, name, None)
        if isinstance(value, int | float) or (name == "nics" and value):
            setattr(found, name, value)
    if not hasattr(settings, "timeout_s"):
        limit = getattr(settings, "start_timeout", None)
        found.timeout_s = float(limit) if isinstance(limit, int | float) else found.timeout_s
    return found
