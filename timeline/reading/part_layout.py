"""The format of a part: what the recorder of a rank writes, as numpy reads it.

A file is a header of 96 bytes (`HEADER`) and records of 48 bytes (`RECORD`), little-endian, appended and never changed:
it is valid up to any byte, also after SIGKILL. What is torn at its end, a record or a batch, counts as not written. The
field ``stage`` says what a record is: a span where it is the number of a `ringtune.timeline.vocabulary.Stage`, else one
of the numbers below. Texts stand between the spans, before the first record that names them, so that a file that is
followed, packed, cut by size or sent needs no second one.

====== ========= ==================================================================================================
stage  what      fields
====== ========= ==================================================================================================
0-19   span      begin_ns, end_ns on the host's monotonic clock; bytes; name: text (of the tensor; of a range its name;
                 0 = none); batch (0 = none; from 3 x 2^30 on a message, below 0; of a counter: operations); step
                 (2^32 - 1 = not known); knobs_version; kind: collective + 16 x algorithm (255 = none); process_set;
                 dtype (255 = none); flags: 1 = of a step schedule, 2 x dtype that travelled (127 = the same); peer or
                 device (-1 = none)
``f7`` text      name: its number; bytes: its length; words: UTF-8
``f8`` end       begin_ns: spans recorded in this file; end_ns: spans dropped
``f9`` event     begin_ns: when; name, batch: texts of name and category; bytes: length of the arguments; words: JSON
``fa`` about     of the next record: name, batch: texts of its name and of its facts (inside of a JSON object), where
                 they are not what stage, kind and the other fields say; 0: they are
``fb`` tensors   name: number of the list; batch: how many tensors; words: 12 bytes a tensor, text (u32) and bytes (u64)
``fc`` copies in begin_ns, end_ns; bytes: number of a list; words: ns (u32) that the copy of each tensor took
``fd`` and out   the same
``fe`` batch     begin_ns: first submission; end_ns: agreement; bytes: number of a list; words: ns from agreement to
                 start (u64), ns (u32) from begin_ns to each tensor's submission
``ff`` words     36 bytes, of the record before
====== ========= ==================================================================================================
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ringtune.timeline.vocabulary import (
    AWAIT_NAME,
    BUS_NAME,
    COPY_IN_NAME,
    COPY_OUT_NAME,
    CYCLE_NAME,
    IN_FLIGHT_NAME,
    KINDS,
    MESSAGES,
    NEGOTIATE_PREFIX,
    QUEUE_NAME,
    RING_PREFIX,
    SPAN_WORDS,
    STEP_NAME,
    WAIT_NAME,
    Stage,
)

FIRST_MESSAGE = MESSAGES.start + (1 << 32)
"""From here on 32 bits of a batch are a number of `ringtune.timeline.vocabulary.MESSAGES`."""

MAGIC = b"\x89RTSPAN\n"
PART_FORMAT = 2
"""Version of the format; 1 was a JSON array of events."""

HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("format", "<u4"),
        ("record_bytes", "<u4"),
        ("unix_ns", "<i8"),
        ("monotonic_ns", "<i8"),
        ("rank", "<i4"),
        ("size", "<i4"),
        ("file", "<u4"),
        ("host", "<u4"),
        ("job", "<u4"),
        ("unused", "V44"),
    ]
)
RECORD = np.dtype(
    [
        ("begin_ns", "<i8"),
        ("end_ns", "<i8"),
        ("bytes", "<u8"),
        ("name", "<u4"),
        ("batch", "<u4"),
        ("step", "<u4"),
        ("knobs_version", "<u2"),
        ("stage", "u1"),
        ("kind", "u1"),
        ("process_set", "<u2"),
        ("dtype", "u1"),
        ("flags", "u1"),
        ("peer", "<i4"),
    ]
)
assert HEADER.itemsize == 96 and RECORD.itemsize == 48

Records = NDArray[np.void]

TEXT, END, EVENT, ABOUT, TENSORS, COPIES_IN, COPIES_OUT, BATCH, WORDS = range(0xF7, 0x100)
WORD_BYTES = 36
TENSOR = np.dtype([("name", "<u4"), ("bytes", "<u8")])
NO_STEP = 2**32 - 1
NO_KIND, NO_DTYPE, NO_WIRE = 255, 255, 127

DTYPES = (
    "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "bool", "uint16", "uint32",
    "uint64", "complex64", "complex128",
)  # fmt: skip
"""Element types by number."""
ALGORITHMS = {
    1: "ring", 2: "flat", 3: "recursive-doubling", 4: "halving-doubling", 5: "tree", 6: "hierarchical",
    13: "gpu-ring", 14: "nccl", 15: "shared-memory",
}  # fmt: skip
"""Algorithms of collectives by number; 0: not told."""
PIECES = ("PACK", "REDUCE", "SPREAD", "EXCHANGE")

_DEVICE_STAGES = frozenset({Stage.COPY_IN, Stage.COMMUNICATE, Stage.COPY_OUT})
_NAMES = {word.stage: word.name for word in SPAN_WORDS} | {
    Stage.QUEUE: QUEUE_NAME,
    Stage.COPY_IN: COPY_IN_NAME,
    Stage.COPY_OUT: COPY_OUT_NAME,
    Stage.WAIT: WAIT_NAME,
    Stage.STEP: STEP_NAME,
    Stage.CYCLE: CYCLE_NAME,
    Stage.AWAIT: AWAIT_NAME,
}


def name_of(stage: int, kind: int) -> str:
    """Return the name of a span that is not a range; a text that says so for numbers that mean nothing."""
    if stage in (Stage.NEGOTIATE, Stage.COMMUNICATE):
        number = kind & 15
        operation = KINDS[number] if number < len(KINDS) else "UNKNOWN"
        return (NEGOTIATE_PREFIX if stage == Stage.NEGOTIATE else RING_PREFIX) + operation
    if stage == Stage.COUNTER:
        return BUS_NAME if kind == 1 else IN_FLIGHT_NAME
    if stage == Stage.PIECE:
        return PIECES[kind] if kind < len(PIECES) else "UNKNOWN"
    return _NAMES.get(Stage(stage), "UNKNOWN") if stage in set(Stage) else "UNKNOWN"


def is_of_device(stage: int) -> bool:
    """Whether ``peer`` of such a span is the number of a GPU."""
    return Stage.WAIT_FOR_DATA <= stage <= Stage.DEVICE_WAIT or stage in _DEVICE_STAGES


def facts_of(stage_kind: int, type_flags: int, process_set: int, peer: int) -> dict[str, str | int]:
    """Return what fields of a span beside its numbers say, by the names of `ringtune.timeline.vocabulary.FACTS`.

    Args:
        stage_kind: ``stage + 256 x kind``.
        type_flags: ``dtype + 256 x flags``.
        process_set: As it stands.
        peer: As it stands.
    """
    stage, algorithm = stage_kind & 255, stage_kind >> 12
    dtype, schedule, wire = type_flags & 255, type_flags >> 8 & 1, type_flags >> 9
    found: dict[str, str | int] = {}
    if stage == Stage.COUNTER:
        return found
    if stage == Stage.COMMUNICATE and algorithm in ALGORITHMS:
        found["algorithm"] = ALGORITHMS[algorithm]
    found |= {key: DTYPES[code] for key, code in (("dtype", dtype), ("wire", wire)) if code < len(DTYPES)}
    found |= {"process_set": process_set} if process_set else {}
    found |= {"step_schedule": 1} if schedule else {}
    return found | ({"device" if is_of_device(stage) else "peer": peer} if peer >= 0 else {})
