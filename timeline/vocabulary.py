"""The words of the timeline: stages, names, instants and arguments. This module is their one source.

`timeline/README.md` lists them for people, and a test compares the two; the native recorder (`native/trace/span.h`)
numbers its stages alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from ringtune import layout
from ringtune.knobs import TABLE, Row

FORMAT = 1
"""Version of the part's and the merged file's format."""

FLOW_CATEGORY, MESSAGE_CATEGORY = "batch", "message"
"""Categories of the arrows between the ranks of a batch, and from a send to its receive."""

GROUP_BATCHES = 1 << 29
"""From here on batches of groups have their numbers."""

FOREIGN_BATCHES = range(1 << 30, 1 << 31)
"""Numbers of batches that another library carried and `ringtune record` saw.

Ringtune's own have those below, groups beside the world from 2^29 on, and batches of step schedules those above.
"""

MESSAGES = range(-(1 << 30), 0)
"""Numbers in the place of a batch's of a send and its receive, which are no batch of a group; in parts as 32 bits."""


class Stage(IntEnum):
    """Where a span belongs; the number is its track (``tid``) in the trace. Wire values: never renumber."""

    NEGOTIATE = 0
    QUEUE = 1
    COPY_IN = 2
    COMMUNICATE = 3
    COPY_OUT = 4
    WAIT = 5
    STEP = 6
    RANGE = 7
    CYCLE = 8
    OTHER = 9
    """Spans of traces ringtune did not record and cannot place; the recorder never writes it."""
    KERNEL = 10
    """Work of a device other than communication, as other tools record it; the recorder never writes it."""
    AWAIT = 11
    PIECE = 12
    CALLBACK = 13
    COUNTER = 14
    WAIT_FOR_DATA = 15
    DEVICE_QUEUE = 16
    COPY_TO_HOST = 17
    COPY_TO_DEVICE = 18
    DEVICE_WAIT = 19

    @property
    def label(self) -> str:
        """The stage as the trace's ``cat`` spells it, for example ``copy_in``."""
        return _LABELS[self]


_LABELS = tuple(stage.name.lower() for stage in sorted(Stage))
"""By number; a name is looked up by a function."""

FOREIGN_STAGES = frozenset({Stage.OTHER, Stage.KERNEL})
"""Stages only traces of other tools have."""

DEVICE_STAGES = frozenset(
    {Stage.WAIT_FOR_DATA, Stage.DEVICE_QUEUE, Stage.COPY_TO_HOST, Stage.COPY_TO_DEVICE, Stage.DEVICE_WAIT}
)
"""Stages of operations on tensors in a GPU's memory, timed by it; so are ``communicate``, ``copy_in`` and
``copy_out`` that say ``device``."""

STAGE_LIMIT = max(Stage) + 1
"""Larger than every stage's number."""


def stage_labels() -> list[str]:
    """Labels by the stages' numbers; empty where there is none."""
    labels = {int(stage): stage.label for stage in Stage}
    return [labels.get(number, "") for number in range(STAGE_LIMIT)]


STAGE_OF_LABEL = {stage.label: stage for stage in Stage}

KINDS = (
    "ALLREDUCE",
    "ALLGATHER",
    "BROADCAST",
    "BARRIER",
    "ALLTOALL",
    "REDUCESCATTER",
    "JOIN",
    "ADD_PROCESS_SET",
    "REMOVE_PROCESS_SET",
    "REDUCE",
    "GATHER",
    "SCATTER",
    "SEND",
    "RECV",
)
"""Collectives, as they stand in ``NEGOTIATE_<KIND>`` and ``RING_<KIND>``; the index is the native wire value. The last
five are only those of other backends of torch.distributed, recorded from outside."""

NEGOTIATE_PREFIX = "NEGOTIATE_"
RING_PREFIX = "RING_"
QUEUE_NAME = "QUEUE"
COPY_IN_NAME = "MEMCPY_IN_FUSION_BUFFER"
COPY_OUT_NAME = "MEMCPY_OUT_FUSION_BUFFER"
WAIT_NAME = "WAIT"
STEP_NAME, STEP_PREFIX = "STEP", "step "
"""Steps in tables, and in traces of events, which have the number behind it."""

CYCLE_NAME = "CYCLE_START"
AWAIT_NAME = "AWAIT"
IN_FLIGHT_NAME, BUS_NAME = "IN_FLIGHT", "BUS_BANDWIDTH"
"""Counters: bytes and operations under way; bytes per second of the batch that has just ended."""

KNOBS, STALL, ERROR, CLOCK, JOIN = "KNOBS", "STALL", "ERROR", "CLOCK", "JOIN"
DEVICE_CLOCK, GENERATION = "DEVICE_CLOCK", "GENERATION"
ARRIVAL = "ARRIVAL"
"""Instant made from Horovod's rank ticks: the coordinator saw that rank's request for the tensor."""

PART_EVENT = "ringtune_part"
END_EVENT = "ringtune_end"
TENSORS_EVENT = "ringtune_tensors"
"""A list of tensors, by number: the negotiation of a whole batch is one event that names such a list, and so are its
copies into and out of the fusion buffer."""

GROUP_ARGUMENTS = ("tensors", "submitted", "queued_ns", "copied")
"""In place of tensor and bytes where one event of a part stands for all tensors of a batch
(`ringtune.timeline.reading.groups`)."""

FACTS = ("algorithm", "dtype", "wire", "process_set", "step_schedule", "peer", "device", "thread")
"""Arguments of a span beside tensor, bytes, batch, step and knobs_version, in the order in which they are written."""


@dataclass(frozen=True)
class SpanWord:
    """What is recorded in a stage."""

    stage: Stage
    name: str
    meaning: str
    arguments: tuple[str, ...]
    overlaps: bool = False
    """Whether many are open at once on one rank; the merged file writes these as async pairs."""


_ALWAYS = ("step", "knobs_version")
_OF_BATCH = ("batch", *_ALWAYS)
SPAN_WORDS = (
    SpanWord(
        Stage.NEGOTIATE,
        "NEGOTIATE_<KIND>",
        "submitted on this rank until all ranks agreed to run it",
        ("tensor", "bytes", "dtype", "wire", "process_set", "step_schedule", *_OF_BATCH),
        overlaps=True,
    ),
    SpanWord(
        Stage.QUEUE,
        QUEUE_NAME,
        "agreed until its batch starts",
        ("tensor", "bytes", "dtype", "wire", "process_set", "step_schedule", *_OF_BATCH),
        overlaps=True,
    ),
    SpanWord(
        Stage.COPY_IN,
        COPY_IN_NAME,
        "copied into the fusion buffer; with `device`: a batch packed there, timed by it",
        ("tensor", "bytes", "dtype", "wire", "process_set", "step_schedule", "device", *_OF_BATCH),
    ),
    SpanWord(
        Stage.COMMUNICATE,
        "RING_<KIND>",
        "the collective itself, one span a batch; the tensor is the first one's name, followed by `+N` for N more; "
        "with `device`: from GPU to GPU, timed by it",
        ("tensor", "bytes", "algorithm", "dtype", "wire", "process_set", "step_schedule", "device", *_OF_BATCH),
    ),
    SpanWord(
        Stage.COPY_OUT,
        COPY_OUT_NAME,
        "copied out of the fusion buffer; with `device`: a batch unpacked there, timed by it",
        ("tensor", "bytes", "dtype", "wire", "process_set", "step_schedule", "device", *_OF_BATCH),
    ),
    SpanWord(
        Stage.WAIT,
        WAIT_NAME,
        "a caller blocked in synchronize: by communication, or for a late rank",
        ("tensor", "bytes", *_ALWAYS),
    ),
    SpanWord(
        Stage.STEP,
        f"{STEP_PREFIX}<N>",
        "one optimizer step, end of step to end of step; the bytes are all it reduced",
        ("bytes", *_ALWAYS),
    ),
    SpanWord(Stage.RANGE, "the user's name", "a range named by the user or a framework hook", _ALWAYS),
    SpanWord(
        Stage.CYCLE,
        CYCLE_NAME,
        "instant: one cycle of the runtime (only with cycle marks on)",
        _ALWAYS,
    ),
    SpanWord(
        Stage.AWAIT,
        AWAIT_NAME,
        "a batch was ready on this rank, or needed data, and `peer` was late",
        ("dtype", "wire", "process_set", "step_schedule", "peer", *_OF_BATCH),
    ),
    SpanWord(
        Stage.PIECE,
        "PACK, REDUCE, SPREAD, EXCHANGE",
        "at full detail: a piece copied into shared memory, reduced over all slots or copied into the outputs; or one "
        "step over links",
        ("bytes", "dtype", "wire", "process_set", "step_schedule", *_OF_BATCH),
    ),
    SpanWord(
        Stage.CALLBACK,
        "CALLBACK",
        "the batch was done until the callbacks of its tensors had run",
        ("dtype", "wire", "process_set", "step_schedule", *_OF_BATCH),
    ),
    SpanWord(
        Stage.COUNTER,
        f"{IN_FLIGHT_NAME}, {BUS_NAME}",
        "counter: what was under way after a batch; how fast the batch was",
        ("bytes", "operations", "bytes_per_s"),
    ),
    SpanWord(
        Stage.WAIT_FOR_DATA,
        "WAIT_FOR_DATA",
        "submitted until the GPU had computed the tensor",
        ("tensor", "bytes", "dtype", "wire", "process_set", "device", *_OF_BATCH),
        overlaps=True,
    ),
    SpanWord(
        Stage.DEVICE_QUEUE,
        "DEVICE_QUEUE",
        "the tensor was computed until its copy to the host began, or its batch from GPU to GPU",
        ("tensor", "bytes", "dtype", "wire", "process_set", "device", *_OF_BATCH),
        overlaps=True,
    ),
    SpanWord(
        Stage.COPY_TO_HOST,
        "MEMCPY_IN_HOST_BUFFER",
        "a tensor of a GPU, or a part of it, copied into pinned memory",
        ("tensor", "bytes", "dtype", "wire", "process_set", "device", *_ALWAYS),
    ),
    SpanWord(
        Stage.COPY_TO_DEVICE,
        "MEMCPY_OUT_HOST_BUFFER",
        "the result, or a part of it, copied back",
        ("tensor", "bytes", "dtype", "wire", "process_set", "device", *_ALWAYS),
    ),
    SpanWord(
        Stage.DEVICE_WAIT,
        "DEVICE_WAIT",
        "a stream of the program waited for a result",
        ("tensor", "bytes", "dtype", "wire", "process_set", "device", *_ALWAYS),
        overlaps=True,
    ),
)

OVERLAPPING_STAGES = frozenset(word.stage for word in SPAN_WORDS if word.overlaps)


@dataclass(frozen=True)
class InstantWord:
    """A rare instant."""

    name: str
    category: str
    meaning: str
    arguments: tuple[str, ...]


INSTANT_WORDS = (
    InstantWord(
        KNOBS,
        "knobs",
        "this rank switched to a version of the knobs",
        ("knobs_version", *(row.name for row in TABLE)),
    ),
    InstantWord(STALL, "stall", "a tensor waits for ranks that have not submitted it", ("tensor", "missing", "age_ns")),
    InstantWord(ERROR, "error", "an operation failed on this rank", ("tensor", "message")),
    InstantWord(JOIN, "join", "all ranks had joined", ("last_rank",)),
    InstantWord(
        CLOCK, "clock", "rank 0's clock minus this rank's, half the best round trip as error", ("offset_ns", "error_ns")
    ),
    InstantWord(
        DEVICE_CLOCK,
        "clock",
        "the GPU's clock was read beside this host's; `error_ns` bounds the GPU's spans since the last such instant",
        ("device", "error_ns", "drift_ppb"),
    ),
    InstantWord(
        GENERATION,
        "generation",
        "an elastic job goes on with these ranks, each under the number of its worker",
        ("generation", "ranks", "first_step", "first_batch"),
    ),
)


@dataclass(frozen=True)
class ArgumentWord:
    """An argument of spans or instants."""

    name: str
    unit: str
    meaning: str


def _unit_of(row: Row) -> str:
    if row.kind in ("choice", "float"):
        return "text" if row.kind == "choice" else "ns"
    return "bytes" if row.unit == "bytes" else "number"


ARGUMENT_WORDS = (
    ArgumentWord("tensor", "text", "name of the tensor; left out when empty"),
    ArgumentWord(
        "bytes",
        "bytes",
        "payload of this rank's tensor; of a `communicate` span: of the batch, for an allgather of all ranks",
    ),
    ArgumentWord("batch", "number", "fused batch, equal on all its ranks; below 0: a message; left out when 0 (none)"),
    ArgumentWord("step", "number", "optimizer step; of a range or another library's collective that of its begin"),
    ArgumentWord("knobs_version", "number", "version of the knobs in force"),
    *(ArgumentWord(row.name, _unit_of(row), row.recorded or row.meaning) for row in TABLE),
    ArgumentWord("dtype", "text", "element type of the batch"),
    ArgumentWord("wire", "text", "element type as which the batch travelled, where it was cast"),
    ArgumentWord("process_set", "number", "process set of the batch; left out when 0 (all ranks)"),
    ArgumentWord("peer", "rank", "the rank that was waited for"),
    ArgumentWord("operations", "number", "operations that are submitted and not done"),
    ArgumentWord("bytes_per_s", "bytes/s", "bus bandwidth of one batch"),
    ArgumentWord("last_rank", "rank", "the rank that joined last"),
    ArgumentWord("missing", "list of ranks", "ranks that have not submitted the tensor"),
    ArgumentWord("age_ns", "ns", "how long the oldest rank has waited"),
    ArgumentWord("message", "text", "what went wrong"),
    ArgumentWord("offset_ns", "ns", "add it to this rank's clock to get rank 0's"),
    ArgumentWord(
        "error_ns", "ns", "the offset is right within plus or minus this; of DEVICE_CLOCK: the GPU's times are"
    ),
    ArgumentWord("device", "number", "GPU, by its number among those that the process sees"),
    ArgumentWord("thread", "text", "thread or stream of a span of another tool; it has a track of its own"),
    ArgumentWord("drift_ppb", "ns/s", "how much faster than the host's clock the GPU's ran"),
    ArgumentWord("generation", "number", "set of ranks of an elastic job, from 1"),
    ArgumentWord("ranks", "list of ranks", "all of a generation, by their rank in it"),
    ArgumentWord("first_step", "number", "step with which a generation begins"),
    ArgumentWord("first_batch", "number", "its batches have greater numbers, those before it have not"),
)


@dataclass(frozen=True)
class FileWord:
    """A file of the run folder; ``path`` is relative to it."""

    path: str
    writer: str
    content: str


_RANK_0 = layout.rank_stem(0)

FILE_WORDS = (
    FileWord(
        layout.RUN_FILE,
        "launcher or rank 0",
        "name, command, times, status, size, hosts, config, knobs, versions, labels, failure, failed_starts, "
        "generations",
    ),
    FileWord(f"{layout.MACHINE_FOLDER}/{_RANK_0}.json", "each rank", "host, cpu, cores, memory, kernel, python, pid"),
    FileWord(
        f"{layout.TIMELINE_FOLDER}/{_RANK_0}{layout.PART_SUFFIX}", "each rank", "that rank's part of the timeline"
    ),
    FileWord(
        layout.TIMELINE_FILE,
        "rank 0 at exit, or the launcher",
        "the merged timeline (or the file that the user named; its path is then the label `timeline`)",
    ),
    FileWord(f"{layout.STEPS_FOLDER}/{_RANK_0}.jsonl", "each rank", "one line a step: its statistics"),
    FileWord(
        f"{layout.SAMPLES_FOLDER}/{_RANK_0}.jsonl",
        "each rank",
        "one line a second: CPU, memory, network, GPUs; [fields](../core/README.md#samples-of-process-and-machine)",
    ),
    FileWord(f"{layout.TUNING_FOLDER}/{layout.JOURNAL_FILE}", "rank 0", "one line a tuner event: start, trial, result"),
    FileWord(f"{layout.TUNING_FOLDER}/{layout.STUDY_FILE}", "rank 0", "Optuna's study, when not stored elsewhere"),
    FileWord(f"{layout.SCALING_FOLDER}/<name>.json", "benchmarks", "a scaling record: rate and efficiency by ranks"),
    FileWord(f"{layout.LOGS_FOLDER}/{_RANK_0}.log", "launcher, when asked", "what the rank printed"),
    FileWord(f"{layout.STACKS_FOLDER}/{_RANK_0}.txt", "each rank that does not get on", "where in Python it stood"),
    FileWord(f"{layout.STACKS_FOLDER}/{_RANK_0}.json", "who reports a stall", "what waits, since when, for whom"),
)
