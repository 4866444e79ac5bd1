"""The training that Lightning's `TorchEstimator` runs on every rank: a ``Trainer`` with ringtune's strategy."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.environments import ClusterEnvironment
from torch.utils.data import DataLoader, IterableDataset

from ringtune.lightning import RingtuneStrategy
from ringtune.spark.data import Columns, DataSet
from ringtune.spark.plan import Plan


def train(plan: Plan, data: DataSet, validation: DataSet | None) -> dict[str, Any]:
    """Train on this rank's share.

    Args:
        plan: The plan.
        data: Rows to train on.
        validation: Rows to validate with.

    Returns:
        On rank 0 the module's state and the history, else nothing.
    """
    given = cloudpickle.loads(plan.packed)
    module, transformation = given["model"], given["transformation_fn"]
    ranks = _Ranks()
    rank, size = ranks.global_rank(), ranks.world_size()

    def ready(columns: Columns) -> dict[str, torch.Tensor]:
        batch = plan.batch(transformation(columns) if transformation is not None else columns)
        more = {} if batch.weights is None else {plan.weight: batch.weights}
        named = dict(zip((*plan.features, *plan.labels), (*batch.inputs, *batch.labels), strict=True))
        return {name: torch.from_numpy(one) for name, one in (named | more).items()}

    share, batches = plan.share(data, rank, size), plan.batches_of(data, size)
    rows = _Rows(lambda: map(ready, share.batches(plan.batch_size, batches, plan.random(trainer.current_epoch, rank))))
    held_rows, held_batches = None, 0
    if validation is not None:
        held, held_batches = plan.share(validation, rank, size), plan.held_batches_of(validation, size)
        held_rows = DataLoader(_Rows(lambda: map(ready, held.once(plan.val_batch_size))), batch_size=None)
    keeper = _Keeper(plan, data, rank)
    on_gpu = plan.use_gpu and torch.cuda.is_available()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            **{
                "accelerator": "gpu" if on_gpu else "cpu",
                # To Lightning each rank is a node with one device, so hosts may have different numbers of ranks.
                "devices": [int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()] if on_gpu else 1,
                "num_nodes": size,
                "strategy": RingtuneStrategy(cluster_environment=ranks),
                "max_epochs": plan.epochs,
                "limit_train_batches": batches,
                "limit_val_batches": held_batches,
                "accumulate_grad_batches": plan.passes,
                "num_sanity_val_steps": 0,
                "use_distributed_sampler": False,
                "logger": given["logger"] or False,
                "profiler": given["profiler"],
                "log_every_n_steps": given["log_every_n_steps"],
                "enable_progress_bar": False,
                "enable_model_summary": False,
                "default_root_dir": folder,
                **given["trainer_args"],
                "callbacks": [*given["callbacks"], keeper],
            }
        )
        path = Path(folder) / "checkpoint"
        going_on = bool(plan.checkpoint) and data.store.exists(plan.checkpoint)
        if going_on:
            path.write_bytes(data.store.read(plan.checkpoint))
        trainer.fit(module, DataLoader(rows, batch_size=None), held_rows, ckpt_path=path if going_on else None)
    file = io.BytesIO()
    torch.save({name: one.cpu() for name, one in module.state_dict().items()}, file)
    return {} if rank else {"state": file.getvalue(), "history": keeper.history}


class _Rows(IterableDataset):  # type: ignore[type-arg]
    """Batches that are made anew for each epoch."""

    def __init__(self, begin: Callable[[], Iterator[Any]]) -> None:
        self._begin = begin

    def __iter__(self) -> Iterator[Any]:
        return self._begin()


class _Ranks(ClusterEnvironment):  # type: ignore[misc]
    """The ranks of the barrier stage, as `ringtune.engines.ranks` tells them."""

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        return os.environ["MASTER_ADDR"]

    @property
    def main_port(self) -> int:
        return int(os.environ["MASTER_PORT"])

    @staticmethod
    def detect() -> bool:
        return False

    def world_size(self) -> int:
        return int(os.environ["WORLD_SIZE"])

    def set_world_size(self, size: int) -> None:
        """Leave it as it is."""

    def global_rank(self) -> int:
        return int(os.environ["RANK"])

    def set_global_rank(self, rank: int) -> None:
        """Leave it as it is."""

    def local_rank(self) -> int:
        return 0

    def node_rank(self) -> int:
        return self.global_rank()


class _Keeper(Checkpoint):  # type: ignore[misc]
    """Notes what an epoch gave, averaged over the ranks; rank 0 writes the checkpoint. Lightning calls it last."""

    def __init__(self, plan: Plan, data: DataSet, rank: int) -> None:
        self._plan, self._data, self._rank = plan, data, rank
        self.history: list[dict[str, float]] = []

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """An epoch ends."""
        found = {name: float(value) for name, value in sorted(trainer.callback_metrics.items())}
        own = torch.tensor(list(found.values()), dtype=torch.float64)
        means = trainer.strategy.reduce(own, reduce_op="mean").tolist() if found else []
        self.history.append({"epoch": trainer.current_epoch, **dict(zip(found, means, strict=True))})
        if self._plan.verbose and self._rank == 0:
            print(", ".join(f"{name} {value:.5g}" for name, value in self.history[-1].items()), flush=True)
        if self._plan.checkpoint:
            path = Path(trainer.default_root_dir) / "checkpoint"
            trainer.save_checkpoint(path)
            if self._rank == 0:
                self._data.store.write(self._plan.checkpoint, path.read_bytes())

    def state_dict(self) -> dict[str, Any]:
        """Return what the checkpoint holds of this callback."""
        return {"history": self.history}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take it from a checkpoint."""
        self.history = list(state_dict["history"])
