"""What PyTorch's profiler (Kineto) writes into its events, in ringtune's words: bytes of collectives, device marks."""

from __future__ import annotations

import math
import re
import zlib
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

C_BYTES = {
    "bool": 1, "unsigned char": 1, "signed char": 1, "short int": 2, "int": 4, "long int": 8, "float": 4, "double": 8,
    "c10::Half": 2, "c10::BFloat16": 2, "c10::complex<float>": 8, "c10::complex<double>": 16,
}  # fmt: skip
"""The same as ``Input type`` has them, which the profiler writes with its shapes."""

_THREAD = re.compile(r"^thread (\d+) \((.+)\)$")
_CALL = re.compile(r"^(?:gloo|mpi|ucc|nccl|ringtune):")


def step_number(name: str) -> int:
    """The number in ``ProfilerStep#N``; -1 for other names."""
    match = PROFILER_STEP.match(name)
    return int(match.group(1)) if match else UNKNOWN


def translated(event: Event) -> Event:
    """Return a complete event of Kineto with what ringtune knows spelled ringtune's way, and its thread or stream."""
    found, thread = _spelled(event), event.get("tid")
    if not isinstance(thread, int):
        return found
    args = found.get("args")
    thread_key = track_key(event["pid"], thread)
    return {**found, "args": {**(args if isinstance(args, dict) else {}), "thread": thread_key}}


def thread_label(name: str) -> str:
    """Return the name of a thread with its own part first: ``python 812`` for ``thread 812 (python)``."""
    return _THREAD.sub(r"\2 \1", name.strip())


def track_key(pid: object, tid: object) -> str:
    """Return what stands for a thread or a stream until all of the file, which may name it anywhere, has been read."""
    return f"{pid}/{tid}"


def _spelled(event: Event) -> Event:
    if event.get("cat") == "gpu_user_annotation":
        return {**event, "name": f"{GPU_PREFIX}{event.get('name', '')}"}
    args = event.get("args")
    if not isinstance(args, dict):
        return event
    if "Input Dims" in args and _CALL.match(str(event.get("name", ""))):
        return {**event, "args": {"bytes": _shaped(args), "tensor": ""}}
    if "In msg nelems" not in args:
        return event
    size = ITEM_BYTES.get(args.get("dtype", ""), 0)
    # Gathered and reduce-scattered bytes count whole, as nccl-tests count: the larger side.
    items = [args.get(key) for key in ("In msg nelems", "Out msg nelems")]
    count = max((item for item in items if isinstance(item, int) and not isinstance(item, bool)), default=0)
    return {**event, "args": {"bytes": max(0, count) * size, "tensor": "", **_identity(args)}}


def _identity(args: Mapping[str, Any]) -> dict[str, int]:
    """Group of a collective and a number of it that is equal on all ranks, as far as the event says them."""
    name, number = str(args.get("Process Group Name", "")), args.get("Seq", args.get("seq"))
    found = {"process_set": int(name)} if name.isdecimal() and len(name) < 10 else {}
    if isinstance(number, int) and number > 0 and args.get("Collective name") not in ("send", "recv"):
        found["batch"] = batch_code(f"{name} {args.get('Process Group Ranks', '')}", number)
    return found


def batch_code(group: str, number: int) -> int:
    """Return one number for the n-th collective of a group, equal for equal groups, whatever file it stands in."""
    return zlib.crc32(group.encode()) << 28 | number & (1 << 28) - 1


def _shaped(args: Mapping[str, Any]) -> int:
    """Bytes of a call's tensors by their shapes; 0 where these or a type are not known."""
    shapes, types = args["Input Dims"], args.get("Input type")
    if not isinstance(shapes, list) or not isinstance(types, list) or len(shapes) != len(types):
        return 0
    total = 0
    for shape, kind in zip(shapes, types, strict=True):
        size = C_BYTES.get(str(kind), 0)
        if not size or not isinstance(shape, list) or not all(isinstance(n, int) and 0 <= n < 2**40 for n in shape):
            return 0
        total += min(math.prod(shape) * size, 2**62)
    return min(total, 2**62)
