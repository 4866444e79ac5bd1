"""Callbacks that keep the state of elastic training: `CommitStateCallback` and its like."""

from __future__ import annotations

from typing import Any


def make(base: type) -> tuple[type, type, type]:
    """Return the three classes on top of the ``Callback`` of one Keras."""

    class CommitStateCallback(base):  # type: ignore[misc]
        """Commits the state after every so many batches, and at the end of every epoch.

        Args:
            state: State.
            batches_per_commit: Batches between two commits.
        """

        def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
            super().__init__()
            self.state, self.batches_per_commit, self.batches_remaining = state, batches_per_commit, batches_per_commit

        def on_train_begin(self, logs: Any = None) -> None:
            """Begin to count."""
            self.batches_remaining = self.batches_per_commit

        def on_batch_end(self, batch: int, logs: Any = None) -> None:
            """Commit, if enough batches were done."""
            self.batches_remaining -= 1
            if self.batches_remaining == 0:
                self.batches_remaining = self.batches_per_commit
                self.state.commit()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            """Commit."""
            self.state.commit()

    class UpdateBatchStateCallback(base):  # type: ignore[misc]
        """Keeps ``state.batch``, the batches of this epoch that are done; stands before `CommitStateCallback`.

        After a reset the rest of the epoch is as much shorter.

        Args:
            state: State with the attribute ``batch``.
        """

        def __init__(self, state: Any) -> None:
            super().__init__()
            self.state, self.steps_per_epoch = state, None

        def on_train_begin(self, logs: Any = None) -> None:
            """Forget the length of an epoch, which may change with the ranks."""
            self.steps_per_epoch = None

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            """Shorten the epoch by what is done of it."""
            if self.params.get("steps"):
                if self.steps_per_epoch is None:
                    self.steps_per_epoch = self.params.get("steps")
                self.params["steps"] = self.steps_per_epoch - self.state.batch

        def on_batch_end(self, batch: int, logs: Any = None) -> None:
            """Take note of the batch."""
            self.state.batch = batch

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            """Begin a new epoch."""
            self.state.batch = 0

    class UpdateEpochStateCallback(base):  # type: ignore[misc]
        """Keeps ``state.epoch``, the epochs that are done, over resets too.

        Args:
            state: State with the attribute ``epoch``.
        """

        def __init__(self, state: Any) -> None:
            super().__init__()
            self.state, self.initial_epoch = state, state.epoch
            self._first: int | None = None

        def on_train_begin(self, logs: Any = None) -> None:
            """Take note of where this run of ``fit`` begins."""
            self.initial_epoch, self._first = self.state.epoch, None

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            """Take note of the first number: ``fit`` counts from its ``initial_epoch``."""
            self._first = epoch if self._first is None else self._first

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            """Count the epoch."""
            self.state.epoch = self.initial_epoch + epoch - (self._first or 0) + 1

    return CommitStateCallback, UpdateBatchStateCallback, UpdateEpochStateCallback
