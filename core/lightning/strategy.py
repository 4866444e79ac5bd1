"""The strategy ``ringtune``: DistributedDataParallel, whose gradients ringtune's backend reduces."""

from __future__ import annotations

import os
from typing import Any

from lightning.pytorch.strategies import DDPStrategy

from ringtune.autoload import BACKEND
from ringtune.errors import ConfigError

NAME = "ringtune"


class RingtuneStrategy(DDPStrategy):  # type: ignore[misc]
    """Lightning's DDP on ringtune's backend, on the CPU and on GPUs.

    Args:
        arguments: Those of Lightning's ``DDPStrategy``.
    """

    strategy_name = NAME

    def __init__(self, *arguments: Any, **options: Any) -> None:
        options.setdefault("process_group_backend", BACKEND)
        super().__init__(*arguments, **options)

    @classmethod
    def register_strategies(cls, strategy_registry: Any) -> None:
        """Make the strategy known by its name, and where the backward pass may leave parameters out."""
        if NAME not in strategy_registry:
            strategy_registry.register(NAME, cls, description="DDP on ringtune's backend")
            strategy_registry.register(
                f"{NAME}_find_unused_parameters_true",
                cls,
                description="DDP on ringtune's backend, with find_unused_parameters=True",
                find_unused_parameters=True,
            )

    def setup_distributed(self) -> None:
        """Join the other processes.

        Raises:
            ConfigError: The launcher has started another number of processes than the Trainer has devices.
        """
        started, wanted = os.environ.get("WORLD_SIZE", ""), self.num_nodes * self.num_processes
        environment = self.cluster_environment
        externally = environment is not None and environment.creates_processes_externally
        if externally and started.isdigit() and int(started) != wanted and environment.world_size() == wanted:
            raise ConfigError(
                f"{started} ranks were started, but the Trainer has num_nodes={self.num_nodes} x "
                f"devices={self.num_processes}: set devices to the ranks of a host and num_nodes to the hosts"
            )
        super().setup_distributed()
