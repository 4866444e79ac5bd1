"""A sampler that keeps account of what has been processed, so that an epoch goes on when the ranks change."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sized
from typing import Any

from torch.utils.data import Sampler

from ringtune import session


class ElasticSampler(Sampler[int]):
    """Partitions what is left of an epoch over the ranks, and partitions it anew when they change.

    Args:
        dataset: The dataset; only its length counts.
        shuffle: Whether each epoch has an order of its own.
        seed: Seed of the order, the same on all ranks.

    Attributes:
        epoch: Number of the epoch.
        processed_num: Samples that all ranks together have processed in this epoch.
        num_replicas: Number of ranks.
        rank: This process's rank.
        remaining_indices: Indices of this epoch that have not been processed, in order.
        num_samples: Samples of this rank in the rest of the epoch.
        total_size: Samples of all ranks; the last ranks repeat some so that all have equally many.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.num_replicas = 0
        self.rank = 0
        self.remaining_indices: list[int] = []
        self.num_samples = 0
        self.total_size = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch: nothing of it has been processed. Call it at the end of an epoch, for the next."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Note a processed batch; every rank has processed one like it."""
        self.processed_num += batch_size * self.num_replicas

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where a state was saved, with the present ranks."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def state_dict(self) -> dict[str, Any]:
        """Return epoch and progress."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def reset(self) -> None:
        """Partition what is left of the epoch over the present ranks."""
        now = session.state.current
        self.num_replicas = now.size if now is not None else 1
        self.rank = now.rank if now is not None else 0
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)
        self.remaining_indices = indices[self.processed_num :]
        self.num_samples = math.ceil(len(self.remaining_indices) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        indices = list(self.remaining_indices)
        while indices and len(indices) < self.total_size:
            indices += indices[: self.total_size - len(indices)]
        return iter(indices[self.rank : self.total_size : self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples
