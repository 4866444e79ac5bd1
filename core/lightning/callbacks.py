"""Callbacks that Lightning adds to every Trainer and Fabric by itself: names in the timeline and in the run's record.

Steps need no callback: an optimizer's step that has communicated ends one (`ringtune.torch.steps`).
"""

from __future__ import annotations

import time
from typing import Any

from lightning.pytorch.callbacks import Callback

from ringtune import runfolder, session
from ringtune.errors import RingtuneError


def make() -> list[Callback]:
    """Return what the Trainer gets; Lightning calls it (entry point ``lightning.pytorch.callbacks_factory``)."""
    return [RingtuneCallback()]


class RingtuneCallback(Callback):  # type: ignore[misc]
    """Marks epochs and validation in the timeline, and writes model and logger of the training into the run's record.

    It does nothing in a process without an open session.
    """

    def __init__(self) -> None:
        self._began_ns: dict[str, int] = {}

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Write what is trained into the run's record."""
        now = session.state.current
        if now is None or now.rank != 0 or now.run_folder is None:
            return
        labels = {"model": type(pl_module).__name__, "strategy": type(trainer.strategy).__name__}
        logger = trainer.logger
        if logger is not None and logger.name is not None:
            labels["experiment"] = f"{logger.name} {logger.version}"
        try:
            runfolder.update(now.run_folder, labels=labels)
        except RingtuneError as error:  # a full disk is no reason to end a training
            session.warn(f"the run's record does not name the training: {error}")

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """An epoch begins."""
        self._begin("epoch")

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """An epoch ends."""
        self._end("epoch", f"epoch {trainer.current_epoch}")

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """A validation begins."""
        self._begin("validation")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """A validation ends."""
        self._end("validation", "sanity check" if trainer.sanity_checking else "validation")

    def _begin(self, what: str) -> None:
        self._began_ns[what] = time.monotonic_ns()

    def _end(self, what: str, name: str) -> None:
        began_ns, now = self._began_ns.pop(what, None), session.state.current
        if began_ns is not None and now is not None and now.recording:
            now.record_range(name, began_ns, time.monotonic_ns())
