"""Callbacks that Lightning adds to every Fabric by itself."""

from __future__ import annotations

import time
from typing import Any

from ringtune import session


def make() -> list[FabricCallback]:
    """Return what Fabric gets; Lightning calls it (entry point ``lightning.fabric.callbacks_factory``)."""
    return [FabricCallback()]


class FabricCallback:
    """Marks epochs in the timeline of scripts that call ``fabric.call("on_train_epoch_start")`` and ``..._end``."""

    def __init__(self) -> None:
        self._began_ns: int | None = None
        self._epochs = 0

    def on_train_epoch_start(self, *_: Any, **__: Any) -> None:
        """An epoch begins."""
        self._began_ns = time.monotonic_ns()

    def on_train_epoch_end(self, *_: Any, **__: Any) -> None:
        """An epoch ends."""
        now = session.state.current
        if self._began_ns is not None and now is not None and now.recording:
            now.record_range(f"epoch {self._epochs}", self._began_ns, time.monotonic_ns())
        self._began_ns, self._epochs = None, self._epochs + 1
