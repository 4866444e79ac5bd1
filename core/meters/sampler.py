"""The thread that samples process and machine periodically."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from ringtune.meters.gpus import Gpus
from ringtune.meters.sample import Machine, Sample

_JOIN_TIMEOUT_S = 2.0
"""How long the end of a session waits for the last sample; a disk may hang."""


class Sink(Protocol):
    """Receives samples, on the sampler's thread."""

    def append(self, sample: Sample) -> None:
        """Take a sample. What it raises ends this sink, not the others."""

    def close(self) -> None:
        """Take note that no samples follow."""


class Sampler:
    """Samples from the first sink to `stop`, beginning and ending with one. Owns its thread and the sinks.

    Args:
        period_ns: Time between two samples.
        gpus: Whether GPUs are looked at too.
        report: Receives a sentence when a sink or the sampling ends because of an error.
    """

    def __init__(self, period_ns: int, *, gpus: bool, report: Callable[[str], None]) -> None:
        self._period_ns = period_ns
        self._with_gpus = gpus
        self._report = report
        self._sinks: list[Sink] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ringtune-sampler", daemon=True)

    def add(self, sink: Sink) -> None:
        """Give the samples to one more sink. The thread takes the first sample, so that no caller waits for it."""
        self._sinks.append(sink)
        if self._thread.ident is None:
            self._thread.start()

    def stop(self) -> None:
        """Take the last sample, close the sinks and end; idempotent."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_TIMEOUT_S)

    def _run(self) -> None:
        try:
            machine = Machine(Gpus.find() if self._with_gpus else None)
            self._give(machine.sample())
            # Samples lie on a grid of the wall clock, so that all ranks are disturbed at the same time and wait once.
            while not self._stop.wait((self._period_ns - time.time_ns() % self._period_ns) / 1e9):
                self._give(machine.sample())
            self._give(machine.sample())
        except Exception as error:  # an error of the kernel must not end training
            self._report(f"samples end here: {error or type(error).__name__}")
        for sink in self._sinks:
            sink.close()

    def _give(self, sample: Sample) -> None:
        for sink in tuple(self._sinks):
            try:
                sink.append(sample)
            except Exception as error:  # an error of the disk must not end training
                self._report(f"no more samples there: {error or type(error).__name__}")
                sink.close()
                self._sinks.remove(sink)
