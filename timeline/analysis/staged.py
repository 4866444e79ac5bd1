"""Tensors of GPUs: their way to the host, as the critical path follows it, and the ranks that wait for them.

Such a tensor is submitted, waits until the GPU has computed it, waits for the copies before it, and is copied; only
then do the other ranks learn of it. The moments are by the GPU's clock, which is off by a known error.

One that goes from GPU to GPU (*directly*) is agreed on while the GPU may still compute it; no caller waits for more
than the launch of its batch. There the program's streams wait for results, and what they did meanwhile is training.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from ringtune.timeline.distinct import distinct
from ringtune.timeline.spans import Ints, SpanTable, Trace
from ringtune.timeline.vocabulary import DEVICE_CLOCK, Stage

_PART = re.compile(r" \[\d+/\d+\]$")
"""What the runtime adds to the name of a later part of a large tensor."""


@dataclass(frozen=True)
class Staged:
    """One tensor's way to the host: submitted, there, and copied from this moment on."""

    submitted_ns: int
    ready_ns: int
    copied_ns: int


class StagedTensors:
    """Finds the way to the host of the tensor that a rank submitted last to a batch.

    Args:
        trace: Of any number of ranks; most traces have no tensors of GPUs.
    """

    def __init__(self, trace: Trace) -> None:
        spans = trace.spans
        waits, copies = spans.of_stage(Stage.WAIT_FOR_DATA), spans.of_stage(Stage.COPY_TO_HOST)
        self._waits = _by_tensor(waits)
        self._copies = _by_tensor(copies)
        self._errors = device_clock_errors(trace)
        self._last: dict[tuple[int, int], str] = {}
        if not self._copies:
            return
        asked = spans.of_stage(Stage.NEGOTIATE)
        asked = asked.take(np.argsort(asked.begin_ns, kind="stable"))
        for rank, batch, tensor in zip(asked.rank.tolist(), asked.batch.tolist(), asked.tensor_texts(), strict=True):
            self._last[rank, batch] = tensor

    def before(self, rank: int, batch: int, at_ns: int) -> Staged | None:
        """Return how the batch's last tensor came to be submitted at this moment; None if it was on the host."""
        key = (rank, _PART.sub("", self._last.get((rank, batch), "")))
        copies, waits = self._copies.get(key), self._waits.get(key)
        if copies is None or waits is None:
            return None
        error = self._errors.get(rank, 0)
        copy = int(np.searchsorted(copies[:, 1], at_ns + error, side="right")) - 1
        if copy < 0:
            return None
        wait = int(np.searchsorted(waits[:, 0], copies[copy, 0] + error, side="right")) - 1
        if wait < 0:
            return None
        return Staged(int(waits[wait, 0]), int(waits[wait, 1]), int(copies[copy, 0]))


def waiting(spans: SpanTable) -> SpanTable:
    """Return the spans in which ranks waited: callers; for tensors that went from GPU to GPU, streams."""
    rows = np.flatnonzero(spans.in_stage(Stage.DEVICE_QUEUE))
    queued = spans.tensor[rows[spans.batch[rows] > 0]]
    if not len(queued):
        return spans.of_stage(Stage.WAIT)
    directly = np.isin(spans.tensor, distinct(queued))
    stage = np.where(directly, np.uint8(Stage.DEVICE_WAIT), np.uint8(Stage.WAIT))
    return spans.take(spans.stage == stage)


def device_clock_errors(trace: Trace) -> dict[int, int]:
    """Return how many ns the times of GPUs may be off, by the rank that recorded them."""
    errors: dict[int, int] = {}
    for instant in trace.instants_named(DEVICE_CLOCK):
        error = instant.args.get("error_ns")
        if isinstance(error, int):
            errors[instant.rank] = max(error, errors.get(instant.rank, 0))
    return errors


def _by_tensor(spans: SpanTable) -> dict[tuple[int, str], Ints]:
    """Return (begin, end) of the spans in the order of time, by rank and tensor."""
    rows: dict[tuple[int, str], list[tuple[int, int]]] = {}
    ordered = spans.take(np.argsort(spans.begin_ns, kind="stable"))
    times = zip(ordered.begin_ns.tolist(), ordered.end_ns.tolist(), strict=True)
    for rank, tensor, time in zip(ordered.rank.tolist(), ordered.tensor_texts(), times, strict=True):
        rows.setdefault((rank, tensor), []).append(time)
    return {key: np.array(found, dtype=np.int64) for key, found in rows.items()}
