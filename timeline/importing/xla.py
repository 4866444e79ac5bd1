"""Traces of JAX and XLA: ``plugins/profile/*/HOST.trace.json.gz``, as ``jax.profiler`` writes them.

A process whose name is ``/device:KIND:n`` is a device. Of its tracks ``XLA Ops`` holds what it ran, ``Steps`` the
steps; where there are none, each run of the program that took longest (``XLA Modules``) is one. An asynchronous
collective is from the begin of its ``-start`` to the end of its ``-done``.
Source: the trace viewer's format of XProf (openxla/xprof, docs).
"""

from __future__ import annotations

import math
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import NoneType
from typing import Any

from ringtune.timeline.importing.devices import Span, device_trace
from ringtune.timeline.reading.columns import number
from ringtune.timeline.reading.stream import EventStream
from ringtune.timeline.spans import Trace
from ringtune.timeline.vocabulary import STEP_NAME, Stage

_DEVICE = re.compile(r"^/device:(?!CUSTOM)\w+:(\d+)")
_COLLECTIVE = re.compile(
    r"^(?P<kind>all-reduce|all-gather|reduce-scatter|(?:ragged-)?all-to-all|collective-permute|collective-broadcast)"
    r"(?:-(?P<half>start|done))?(?P<number>\.\d+)?$"
)
_NO_WORK = re.compile(r"^(?:while|conditional|call)(?:\.\d+)?$|^Mem(?:cpy|set)")
"""Operations that hold others, whose time is that of what they hold, and copies."""
_SHAPE = re.compile(r"\b(pred|(?:bf|f|s|u|c)(\d+)\w*)\[([\d,]*)\]")
_DIGITS = re.compile(r"(\d{1,15})\D*$")

Event = Mapping[str, Any]


def is_xla(file: Path, head: bytes) -> bool:
    """Whether JAX or XLA wrote a file that begins so."""
    return b'"/device:' in head or b'"/host:CPU' in head


def read_xla(file: Path) -> list[Trace]:
    """Read one host's trace: one for every device.

    Raises:
        TraceIoError: The file cannot be read or is no trace.
    """
    stream = EventStream(file)
    devices: dict[Any, int] = {}
    tracks: dict[Any, str] = {}
    events: defaultdict[Any, list[Event]] = defaultdict(list)
    for block in stream.blocks():
        for event in block:
            if not isinstance(event, dict) or not isinstance(event.get("args", {}), dict):
                continue
            if not all(isinstance(event.get(key), (int, str, NoneType)) for key in ("pid", "tid")):
                continue
            name = str(event.get("args", {}).get("name", ""))
            if event.get("ph") == "M" and event.get("pid") is not None:
                if event.get("name") == "process_name" and (found := _DEVICE.match(name)):
                    devices[event.get("pid")] = int(found.group(1))
                elif event.get("name") == "thread_name":
                    tracks[event.get("pid"), event.get("tid")] = name
            elif event.get("ph") == "X":
                ts, dur = number(event.get("ts")), number(event.get("dur", 0))
                if ts is not None and dur is not None:
                    events[event.get("pid"), event.get("tid")].append({**event, "ts": ts, "dur": dur})
    host = file.name.split(".trace.json")[0]
    traces = []
    for pid, _ in sorted(devices.items(), key=lambda found: found[1]):
        by_track = {tracks.get(key, ""): found for key, found in events.items() if key[0] == pid}
        spans = [*_steps(by_track), *_operations(by_track)]
        traces.append(device_trace(file, spans, host=host, truncated=stream.truncated))
    return traces


def _steps(by_track: Mapping[str, list[Event]]) -> Iterable[Span]:
    marked = [(event, _DIGITS.search(str(event.get("name", "")))) for event in by_track.get("Steps", ())]
    if marked:
        return [_span(STEP_NAME, Stage.STEP, event, step=int(found[1])) for event, found in marked if found]
    runs: defaultdict[str, list[Event]] = defaultdict(list)
    for event in by_track.get("XLA Modules", ()):
        runs[str(event.get("name", "")).partition("(")[0]].append(event)
    longest = max(runs.values(), key=lambda found: sum(event["dur"] for event in found), default=[])
    longest.sort(key=lambda event: event["ts"])
    return [_span(STEP_NAME, Stage.STEP, event, step=turn) for turn, event in enumerate(longest)]


def _operations(by_track: Mapping[str, list[Event]]) -> Iterable[Span]:
    """What the device ran; collectives from their start to their end."""
    ran = by_track.get("XLA Ops")
    if ran is None:
        ran = [event for track, found in by_track.items() if track.startswith("Stream") for event in found]
    opened: defaultdict[tuple[str, str], deque[Event]] = defaultdict(deque)
    for event in sorted(ran, key=lambda event: event["ts"]):
        name = str(event.get("name", ""))
        found = _COLLECTIVE.match(name)
        if found is None:
            inside = name.startswith("nccl")
            stage = Stage.OTHER if _NO_WORK.match(name) else Stage.COMMUNICATE if inside else Stage.KERNEL
            yield _span(name, stage, event)
            continue
        key = found["kind"], found["number"] or ""
        if found["half"] == "start":
            opened[key].append(event)
            continue
        begin = opened[key].popleft() if found["half"] == "done" and opened[key] else event
        whole = {**begin, "dur": event["ts"] + event["dur"] - begin["ts"]}
        yield _collective(found["kind"], found["number"] or "", whole)
    for (kind, turn), left in opened.items():
        for event in left:
            yield _collective(kind, turn, event)


def _collective(kind: str, turn: str, event: Event) -> Span:
    return _span(f"xla:{kind.replace('-', '_')}", Stage.COMMUNICATE, event, tensor=f"{kind}{turn}", bytes=_bytes(event))


def _span(name: str, stage: Stage, event: Event, **args: Any) -> Span:
    begin = float(event["ts"])
    return name, stage, begin, begin + float(event["dur"]), args


def _bytes(event: Event) -> int:
    """Bytes of a collective's result by its shape, ``f32[8,4]``; the largest of several, 0 where it is not said."""
    about = event.get("args", {})
    text = str(about.get("shape_with_layout") or str(about.get("long_name", "")).partition("=")[2].partition("(%")[0])
    sizes = [
        math.prod(int(side) for side in shape.split(",") if side) * (8 if kind == "pred" else int(bits)) // 8
        for kind, bits, shape in _SHAPE.findall(text)
    ]
    return min(max(sizes, default=0), 2**60 - 1)
