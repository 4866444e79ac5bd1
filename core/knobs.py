"""Knobs: the settings of the native runtime that may change while training runs, and the table that describes them.

Checks, variables, flags, metrics, what the timeline and the tuner say of a knob and how the tuner turns it come from
the rows here; `each_knob` of ``native/fusion/knobs.h`` holds name, type and range for the runtime, and a test holds the
two against each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ringtune.algorithms import ALGORITHMS, SWITCH
from ringtune.errors import InvalidArgument
from ringtune.layout import current_keys
from ringtune.variable import Variable

_MIB = 1 << 20
_MS = 1_000_000
_SWITCH_TEXTS = ("auto", "1", "0")


@dataclass(frozen=True)
class Surroundings:
    """Where a job runs, as far as it decides which knobs have an effect.

    Attributes:
        hosts: Number of hosts; 1 where ranks that share memory use it.
        local: Ranks of a host.
        by_nccl: Asks whether tensors go from GPU to GPU by NCCL: a job shows that only after it has begun.
    """

    hosts: int = 1
    local: int = 1
    by_nccl: Callable[[], bool] = lambda: False


@dataclass(frozen=True)
class Scale:
    """A searched range, logarithmic.

    Attributes:
        low: Smallest value, included; at least 1.
        high: Largest value, included.
        grain: Values are rounded to multiples of it (never below low), so that settings stay readable.
    """

    low: int
    high: int
    grain: int


@dataclass(frozen=True)
class Row:
    """One knob.

    Attributes:
        name: Field of `Knobs`, with its unit.
        default: Its value when nothing is set.
        variable: Name of its variable, without ``RINGTUNE_``.
        meaning: One sentence, for the table of variables and the metric.
        label: What messages call it.
        metric: Its metric's name, without ``ringtune_``.
        low: Smallest value.
        high: Largest value, if there is one.
        kind: Kind of the variable (`ringtune.variable.Variable`); ``float`` is in milliseconds.
        unit: Unit of the variable's text.
        noun: What the number counts, for messages.
        choices: What values of a ``choice`` or ``switch`` stand for, by index.
        twin: Horovod's name of the variable, if it has one.
        gauge: The metric's sentence; default: the meaning.
        flag: Flag of `ringtune run`; default: made of the variable's name.
        flag_unit: The variable is the flag's number times this.
        flag_help: The flag's sentence; default: the meaning.
        recorded: What the timeline's documentation says of it; default: the meaning.
        scale: The range that the tuner searches.
        tried: Values that the tuner tries one by one, most promising first, where there is no scale.
        fits: Whether another value would have an effect for a setting there.
    """

    name: str
    default: int
    variable: str
    meaning: str
    label: str
    metric: str
    low: int = 0
    high: int | None = None
    kind: str = "int"
    unit: str = ""
    noun: str = ""
    choices: tuple[str, ...] = ()
    twin: str | None = None
    gauge: str = ""
    flag: str = ""
    flag_unit: int = 1
    flag_help: str = ""
    recorded: str = ""
    scale: Scale | None = None
    tried: tuple[int, ...] = ()
    fits: Callable[[Knobs, Surroundings], bool] = lambda knobs, place: True

    @property
    def as_variable(self) -> Variable:
        """The row of the table of variables."""
        ranged = self.kind in ("int", "float")
        return Variable(
            name=self.variable,
            field=self.name,
            kind=self.kind,
            default=self.of_variable(self.default),
            unit=self.unit,
            meaning=self.meaning,
            twin=self.twin,
            low=self.low if ranged else None,
            factor=_MS if self.kind == "float" else 1,
            choices=self.choices if self.kind == "choice" else (),
            high=self.high if ranged else None,
        )

    def of_variable(self, value: int) -> int | bool | str:
        """Return what the parsed variable holds for a value."""
        return self.choices[value] if self.choices else bool(value) if self.kind == "bool" else value

    def number(self, parsed: Any) -> int:
        """Return the value for what the parsed variable holds."""
        return self.choices.index(parsed) if self.choices else int(parsed)

    def text(self, value: int) -> str:
        """Return the variable's text for a value."""
        if self.kind == "switch":
            return _SWITCH_TEXTS[value]
        return f"{value / _MS:g}" if self.kind == "float" else self.choices[value] if self.choices else str(value)


def _knob(default: int, variable: str, meaning: str, **more: Any) -> Any:
    """Return a field of `Knobs` with its row; the arguments are those of `Row`."""
    return field(default=default, metadata={"variable": variable, "meaning": meaning, **more})


def by_levels(knobs: Knobs, place: Surroundings) -> bool:
    """Whether an allreduce goes by levels: within hosts first, unless the user or the search has said otherwise."""
    return place.local > 1 and place.hosts > 1 and SWITCH[knobs.hierarchical] != "off" and not knobs.algorithm


@dataclass(frozen=True)
class Knobs:
    """One setting of the runtime; all ranks carry the same one, numbered by its version.

    Attributes:
        fusion_bytes: Most bytes reduced as one batch, in bytes; 0 switches fusion off.
        cycle_time_ns: How long an incomplete batch may wait for more tensors, in nanoseconds; 0 = not at all.
        step_schedule: 1: repeated steps follow a learned schedule without control messages; 0: every step is
            negotiated.
        hierarchical: Reduce within hosts before across them: index in `ringtune.algorithms.SWITCH`; 0 = auto.
        algorithm: Index in `ringtune.algorithms.ALGORITHMS`; 0 = as the job's table says.
        segment_bytes: Size of one send inside a collective, in bytes; at least 1.
        cache_capacity: Operations remembered by the response cache; 0 switches it off.
        nccl_streams: Streams of a GPU that batches by NCCL are dealt to; from 1 to 8.
    """

    fusion_bytes: int = _knob(
        16 << 20,
        "FUSION_THRESHOLD",
        "Most bytes reduced as one batch; 0 switches fusion off.",
        label="fusion",
        metric="fusion_threshold_bytes",
        unit="bytes",
        twin="FUSION_THRESHOLD",
        flag="--fusion-threshold-mb",
        flag_unit=_MIB,
        flag_help="Most MiB reduced as one batch; 0 = no fusion.",
        recorded="size of the fusion buffer",
        scale=Scale(64 << 10, 256 << 20, 4 << 10),
    )
    cycle_time_ns: int = _knob(
        _MS,
        "CYCLE_TIME",
        "How long an incomplete batch waits for more tensors.",
        label="cycle",
        metric="cycle_time_seconds",
        kind="float",
        unit="ms",
        twin="CYCLE_TIME",
        flag="--cycle-time-ms",
        flag_help="How long an incomplete batch waits for more tensors, in ms.",
        recorded="shortest time between two cycles",
        scale=Scale(50_000, 50_000_000, 1_000),
    )
    step_schedule: int = _knob(
        1,
        "STEP_SCHEDULE",
        "Repeated steps need no control messages.",
        label="step schedule",
        metric="step_schedule_enabled",
        gauge="Whether repeated steps may follow a learned schedule: 1 or 0.",
        high=1,
        kind="bool",
        recorded="of KNOBS: 1 = repeated steps follow a learned schedule, 0 = every step is negotiated; of a span: 1 = "
        "its batch ran by the schedule, without a message of the negotiation",
        tried=(1, 0),
    )
    hierarchical: int = _knob(
        0,
        "HIERARCHICAL_ALLREDUCE",
        "Reduce within hosts first; auto: when hosts hold several ranks.",
        label="hierarchical",
        metric="hierarchical_mode",
        gauge="Reduce within hosts first: 0 auto, 1 yes, 2 no.",
        high=len(SWITCH) - 1,
        kind="switch",
        unit="auto or 1 or 0",
        choices=SWITCH,
        twin="HIERARCHICAL_ALLREDUCE",
        recorded="reduce within hosts first: 0 = auto, 1 = on, 2 = off",
        tried=(0, 2),
        fits=lambda knobs, place: place.hosts > 1 and place.local > 1,
    )
    algorithm: int = _knob(
        0,
        "ALGORITHM",
        "Algorithm of allreduce between ranks that share no memory; table: by size, ranks and links.",
        label="algorithm",
        metric="algorithm",
        gauge="Algorithm of allreduce: its index in the list of `RINGTUNE_ALGORITHM`, from 0.",
        high=len(ALGORITHMS) - 1,
        kind="choice",
        choices=ALGORITHMS,
        recorded="of a `communicate` span of an allreduce, or by NCCL: its name; of KNOBS: its number, 0 = by table",
        tried=tuple(ALGORITHMS.index(name) for name in ("table", "ring", "halving-doubling", "recursive-doubling")),
        fits=lambda knobs, place: place.hosts > 1 and not by_levels(knobs, place),
    )
    segment_bytes: int = _knob(
        128 << 10,
        "SEGMENT_BYTES",
        "Size of one send in a collective.",
        label="segment",
        metric="segment_size_bytes",
        low=1,
        unit="bytes",
        recorded="size of one send within a collective",
        tried=(128 << 10, 512 << 10, 32 << 10, 2 << 20),
        fits=lambda knobs, place: place.hosts > 1,
    )
    cache_capacity: int = _knob(
        8192,
        "CACHE_CAPACITY",
        "Operations the response cache remembers; 0 switches it off.",
        label="cache",
        metric="cache_capacity_operations",
        high=2**31 - 1,
        unit="operations",
        noun="tensors",
        twin="CACHE_CAPACITY",
        recorded="tensors the response cache remembers",
        tried=(8192, 0),
        fits=lambda knobs, place: not knobs.step_schedule,
    )
    nccl_streams: int = _knob(
        1,
        "NUM_NCCL_STREAMS",
        "Streams of a GPU that batches by NCCL are dealt to.",
        label="NCCL streams",
        metric="nccl_streams",
        low=1,
        high=8,
        unit="1 to 8",
        twin="NUM_NCCL_STREAMS",
        recorded="streams of a GPU that batches by NCCL are dealt to",
        tried=(2, 4, 1),
        fits=lambda knobs, place: place.by_nccl(),
    )

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            InvalidArgument: A value is out of its range.
        """
        for row in TABLE:
            value = getattr(self, row.name)
            if not isinstance(value, int) or value < row.low or (row.high is not None and value > row.high):
                bound = f">= {row.low}" if row.high is None else f"from {row.low} to {row.high}"
                raise InvalidArgument(f"knob {row.name}: got {value!r}, expected an integer {bound}")

    def as_dict(self) -> dict[str, int]:
        """Return the knobs as the native runtime and the run folder's documents hold them."""
        return dict(vars(self))

    @classmethod
    def from_dict(cls, values: Mapping[str, int], base: Knobs | None = None) -> Knobs:
        """Build knobs from a mapping; names that are no knobs (for example ``knobs_version``) are ignored.

        Old names (`ringtune.layout.OLD_KEYS`) are taken too.

        Args:
            values: Values by name, possibly only some of the knobs.
            base: Where missing values come from; default: `DEFAULTS`.
        """
        known = (base if base is not None else DEFAULTS).as_dict()
        known.update({name: int(value) for name, value in current_keys(values).items() if name in known})
        return cls(**known)


TABLE = tuple(Row(one.name, getattr(Knobs, one.name), **one.metadata) for one in fields(Knobs))
"""The knobs in the order in which messages name them."""

BY_NAME = {row.name: row for row in TABLE}

DEFAULTS = Knobs()
