"""What PyTorch's profiler (Kineto) writes into its events, in ringtune's words: bytes of collectives, device marks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ringtune.timeline.spans import UNKNOWN

Event = Mapping[str, Any]

PROFILER_STEP = re.compile(r"^ProfilerStep#(\d{1,17})$")
GPU_PREFIX = "gpu "
"""Put before the names of annotations that Kineto copies onto the device's time line."""

ITEM_BYTES = {
    "Bool": 1, "Byte": 1, "Char": 1, "Float8_e4m3fn": 1, "Float8_e5m2": 1, "Half": 2, "BFloat16": 2, "Short": 2,
    "Int": 4, "Float": 4, "Long": 8, "Double": 8, "ComplexFloat": 8, "ComplexDouble": 16,
}  # fmt: skip
"""Bytes by the name of a scalar type, as ``dtype`` stands in NCCL's events."""


def step_number(name: str) -> int:
    """The number in ``ProfilerStep#N``; -1 for other names."""
    match = PROFILER_STEP.match(name)
    return int(match.group(1)) if match else UNKNOWN


def translated(event: Event) -> Event:
    """Return a complete event of Kineto with what ringtune knows spelled ringtune's way; others as they are."""
    if event.get("cat") == "gpu_user_annotation":
        return {**event, "name": f"{GPU_PREFIX}{event.get('name', '')}"}
    args = event.get("args")
    if not isinstance(args, dict) or "In msg nelems" not in args:
        return event
    size = ITEM_BYTES.get(args.get("dtype", ""), 0)
    # Gathered and reduce-scattered bytes count whole, as nccl-tests count: the larger side.
    items = [args.get(key) for key in ("In msg nelems", "Out msg nelems")]
    count = max((item for item in items if isinstance(item, int) and not isinstance(item, bool)), default=0)
    return {**event, "args": {"bytes": max(0, count) * size, "tensor": ""}}
