"""What PyTorch's profiler sees of a process group: a span for each operation, named as those of torch's own backends.

It covers the time that a thread waits for the operation; in a backward pass, where DDP starts many and its end waits
for all, the time from start to end. The profiler requires that one thread begins and ends a span, so
none can end when the runtime is done; ringtune's own timeline has such spans.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

_PREFIX = "ringtune:"
_NAMES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "reducescatter": "reduce_scatter",
}
"""Torch's names of the operations that the runtime calls otherwise."""

_SILENT: AbstractContextManager[Any] = nullcontext()
_enabled: Any = torch.autograd._profiler_enabled  # type: ignore[attr-defined]
_Record: Any = torch._C._profiler._RecordFunctionFast


def seen_by_profiler(kind: str, kept: Any, outputs: Sequence[torch.Tensor]) -> AbstractContextManager[Any]:
    """Return what records its body as one operation, if a profiler runs on this thread.

    Args:
        kind: The operation, in the runtime's word; empty: nothing is recorded.
        kept: What the runtime reads: a tensor, or a tuple that begins with it; the profiler notes its shape.
        outputs: Noted instead where `kept` is neither.
    """
    if not kind or not _enabled():
        return _SILENT
    first = kept[0] if isinstance(kept, tuple) and kept else kept
    noted = [first] if isinstance(first, torch.Tensor) else list(outputs)
    return _Record(f"{_PREFIX}{_NAMES.get(kind, kind)}", noted)  # type: ignore[no-any-return]


class OpenSpan:
    """A span that is begun here and ended later.

    Args:
        record: What `seen_by_profiler` has returned; it is entered.
    """

    def __init__(self, record: AbstractContextManager[Any]) -> None:
        self._record: AbstractContextManager[Any] | None = record
        self._thread = threading.get_ident()
        record.__enter__()

    def end(self) -> None:
        """End it, once; on another thread than its own this does nothing."""
        if self._record is not None and self._thread == threading.get_ident():
            record, self._record = self._record, None
            record.__exit__(None, None, None)
