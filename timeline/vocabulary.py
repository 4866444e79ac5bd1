"""The words of the timeline: stages, names, instants and arguments. The one source of truth.

`timeline/README.md` shows these tables to people and a test holds the two together; the native recorder
(`native/trace/span.h`) numbers its stages alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from ringtune import layout

FORMAT = 1
"""Version of the part's and the merged file's format."""


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

    @property
    def label(self) -> str:
        """The stage as the trace's ``cat`` spells it, for example ``copy_in``."""
        return self.name.lower()


FOREIGN_STAGES = frozenset({Stage.OTHER, Stage.KERNEL})
"""Stages only traces of other tools have."""

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
)
"""Collectives, as they stand in ``NEGOTIATE_<KIND>`` and ``RING_<KIND>``; the index is the native wire value."""

NEGOTIATE_PREFIX = "NEGOTIATE_"
RING_PREFIX = "RING_"
QUEUE_NAME = "QUEUE"
COPY_IN_NAME = "MEMCPY_IN_FUSION_BUFFER"
COPY_OUT_NAME = "MEMCPY_OUT_FUSION_BUFFER"
WAIT_NAME = "WAIT"
STEP_NAME = "STEP"
CYCLE_NAME = "CYCLE_START"

KNOBS, STALL, ERROR, CLOCK = "KNOBS", "STALL", "ERROR", "CLOCK"
ARRIVAL = "ARRIVAL"
"""Instant made from Horovod's rank ticks: the coordinator saw that rank's request for the tensor."""

PART_EVENT = "ringtune_part"
END_EVENT = "ringtune_end"


@dataclass(frozen=True)
class SpanWord:
    """One row of the table of spans: what is recorded in a stage."""

    stage: Stage
    name: str
    meaning: str
    arguments: tuple[str, ...]
    overlaps: bool = False
    """Many at once on one rank: the merged file writes them as async pairs."""


SPAN_WORDS = (
    SpanWord(
        Stage.NEGOTIATE,
        "NEGOTIATE_<KIND>",
        "submitted on this rank until all ranks agreed to run it",
        ("tensor", "bytes", "batch", "step", "epoch"),
        overlaps=True,
    ),
    SpanWord(
        Stage.QUEUE,
        QUEUE_NAME,
        "agreed until its batch starts",
        ("tensor", "bytes", "batch", "step", "epoch"),
        overlaps=True,
    ),
    SpanWord(
        Stage.COPY_IN,
        COPY_IN_NAME,
        "copied into the fusion buffer",
        ("tensor", "bytes", "batch", "step", "epoch"),
    ),
    SpanWord(
        Stage.COMMUNICATE,
        "RING_<KIND>",
        "the collective itself, one span a batch; the tensor is the first one's name and ` +N` for N more",
        ("tensor", "bytes", "algorithm", "batch", "step", "epoch"),
    ),
    SpanWord(
        Stage.COPY_OUT,
        COPY_OUT_NAME,
        "copied out of the fusion buffer",
        ("tensor", "bytes", "batch", "step", "epoch"),
    ),
    SpanWord(
        Stage.WAIT,
        WAIT_NAME,
        "a caller blocked in synchronize: exposed communication",
        ("tensor", "bytes", "step", "epoch"),
    ),
    SpanWord(
        Stage.STEP,
        STEP_NAME,
        "one optimizer step, end of step to end of step; the bytes are all it reduced",
        ("bytes", "step", "epoch"),
    ),
    SpanWord(Stage.RANGE, "the user's name", "a range named by the user or a framework hook", ("step", "epoch")),
    SpanWord(
        Stage.CYCLE, CYCLE_NAME, "instant: one cycle of the runtime (only with cycle marks on)", ("step", "epoch")
    ),
)

OVERLAPPING_STAGES = frozenset(word.stage for word in SPAN_WORDS if word.overlaps)


@dataclass(frozen=True)
class InstantWord:
    """One row of the table of rare instants."""

    name: str
    category: str
    meaning: str
    arguments: tuple[str, ...]


INSTANT_WORDS = (
    InstantWord(
        KNOBS,
        "knobs",
        "this rank switched to a version of the knobs",
        (
            "epoch",
            "fusion_bytes",
            "cycle_time_ns",
            "segment_bytes",
            "cache_capacity",
            "algorithm",
            "hierarchical",
            "plan",
        ),
    ),
    InstantWord(STALL, "stall", "a tensor waits for ranks that have not submitted it", ("tensor", "missing", "age_ns")),
    InstantWord(ERROR, "error", "an operation failed on this rank", ("tensor", "message")),
    InstantWord(
        CLOCK, "clock", "rank 0's clock minus this rank's, half the best round trip as error", ("offset_ns", "error_ns")
    ),
)


@dataclass(frozen=True)
class ArgumentWord:
    """One row of the table of arguments."""

    name: str
    unit: str
    meaning: str


ARGUMENT_WORDS = (
    ArgumentWord("tensor", "text", "name of the tensor; left out when empty"),
    ArgumentWord(
        "bytes",
        "bytes",
        "payload of this rank's tensor; of a `communicate` span: of the batch, for an allgather of all ranks",
    ),
    ArgumentWord("batch", "number", "fused batch, equal on all ranks; left out when 0 (none)"),
    ArgumentWord("step", "number", "optimizer step in which it was recorded"),
    ArgumentWord("epoch", "number", "version of the knobs in force"),
    ArgumentWord("fusion_bytes", "bytes", "size of the fusion buffer"),
    ArgumentWord("cycle_time_ns", "ns", "shortest time between two cycles"),
    ArgumentWord("segment_bytes", "bytes", "size of one send within a collective"),
    ArgumentWord("cache_capacity", "number", "tensors the response cache remembers"),
    ArgumentWord(
        "algorithm", "text", "of a `communicate` span of an allreduce: how it went; of KNOBS: its number, 0 = by table"
    ),
    ArgumentWord("hierarchical", "number", "reduce within hosts first: 0 = auto, 1 = on, 2 = off"),
    ArgumentWord("plan", "number", "repeated steps follow a plan: 1 = yes, 0 = every step is negotiated"),
    ArgumentWord("missing", "list of ranks", "ranks that have not submitted the tensor"),
    ArgumentWord("age_ns", "ns", "how long the oldest rank has waited"),
    ArgumentWord("message", "text", "what went wrong"),
    ArgumentWord("offset_ns", "ns", "add it to this rank's clock to get rank 0's"),
    ArgumentWord("error_ns", "ns", "the offset is right within plus or minus this"),
)


@dataclass(frozen=True)
class FileWord:
    """One row of the table of the run folder; ``path`` is relative to it."""

    path: str
    writer: str
    content: str


_RANK_0 = layout.rank_stem(0)

FILE_WORDS = (
    FileWord(
        layout.RUN_FILE,
        "launcher or rank 0",
        "name, command, times, status, size, hosts, config, knobs, versions, labels",
    ),
    FileWord(f"{layout.MACHINE_FOLDER}/{_RANK_0}.json", "each rank", "host, cpu, cores, memory, kernel, python, pid"),
    FileWord(f"{layout.TIMELINE_FOLDER}/{_RANK_0}.json", "each rank", "that rank's part of the timeline"),
    FileWord(
        layout.TIMELINE_FILE,
        "rank 0 at exit, or the launcher",
        "the merged timeline (or the file the user named, then its path stands in the label `timeline`)",
    ),
    FileWord(f"{layout.STEPS_FOLDER}/{_RANK_0}.jsonl", "each rank", "one line a step: its statistics"),
    FileWord(f"{layout.TUNING_FOLDER}/{layout.JOURNAL_FILE}", "rank 0", "one line a tuner event: start, trial, result"),
    FileWord(f"{layout.TUNING_FOLDER}/{layout.STUDY_FILE}", "rank 0", "Optuna's study, when not stored elsewhere"),
    FileWord(f"{layout.SCALING_FOLDER}/<name>.json", "benchmarks", "a scaling record: rate and efficiency by ranks"),
    FileWord(f"{layout.LOGS_FOLDER}/{_RANK_0}.log", "launcher, when asked", "what the rank printed"),
)
