"""Flags of ``ringtune run`` that do nothing but set a variable for the ranks; Horovod's names where it has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click

from ringtune.output_file import expanded
from ringtune.variables import DETAILS, LOG_LEVELS, TRANSPORTS

_MIB = 1 << 20
AT_LEAST_0 = click.IntRange(min=0)


@dataclass(frozen=True)
class Setting:
    """A flag that does nothing but set a variable for the ranks.

    Attributes:
        flags: Names of the flag; Horovod's first.
        variable: Name of the variable.
        type: Click's type of the value; None = a switch that sets 1.
        help: One line.
        factor: The variable is the value times this.
        is_file: The value is a path, made absolute because a rank may start in another folder.
    """

    flags: tuple[str, ...]
    variable: str
    type: Any
    help: str
    factor: int = 1
    is_file: bool = False

    @property
    def parameter(self) -> str:
        """Name under which click hands over the value."""
        return self.variable.lower()

    def text(self, value: Any) -> str:
        """Return the variable's text for a given value."""
        if self.is_file:
            return value if str(value).upper() == "DYNAMIC" else str(expanded(value).absolute())
        if self.type is None:
            return "1" if value else "0"
        return str(value * self.factor) if self.factor != 1 else str(value)


SETTINGS = (
    Setting(
        ("--metrics-port",),
        "RINGTUNE_METRICS_PORT",
        click.IntRange(0, 65535),
        "Rank 0 serves metrics of all ranks for Prometheus there.",
    ),
    Setting(("--metrics-host",), "RINGTUNE_METRICS_HOST", str, "Address for --metrics-port; default: 127.0.0.1."),
    Setting(("--timeline-filename", "--timeline"), "RINGTUNE_TIMELINE", str, "Record all ranks into FILE.", 1, True),
    Setting(
        ("--timeline-mark-cycles/--no-timeline-mark-cycles",),
        "RINGTUNE_TIMELINE_MARK_CYCLES",
        None,
        "Mark the runtime's cycles in the timeline.",
    ),
    Setting(("--timeline-steps",), "RINGTUNE_TIMELINE_STEPS", str, "Record only steps FIRST:END, several by commas."),
    Setting(
        ("--timeline-detail",),
        "RINGTUNE_TIMELINE_DETAIL",
        click.Choice(DETAILS),
        "Full: the pieces of every batch too.",
    ),
    Setting(("--timeline-gzip/--no-timeline-gzip",), "RINGTUNE_TIMELINE_GZIP", None, "Pack the timeline's parts."),
    Setting(
        ("--timeline-rotate-mb",),
        "RINGTUNE_TIMELINE_ROTATE_BYTES",
        AT_LEAST_0,
        "MiB after which a part goes on in another file.",
        _MIB,
    ),
    Setting(
        ("--fusion-threshold-mb",),
        "RINGTUNE_FUSION_THRESHOLD",
        AT_LEAST_0,
        "Most MiB reduced as one batch; 0 = no fusion.",
        _MIB,
    ),
    Setting(
        ("--hierarchical-allreduce/--no-hierarchical-allreduce",),
        "RINGTUNE_HIERARCHICAL_ALLREDUCE",
        None,
        "Reduce within hosts first.",
    ),
    Setting(
        ("--network-interfaces", "--network-interface"),
        "RINGTUNE_INTERFACE",
        str,
        "Network interfaces of links between hosts, by name; the first that a host has counts.",
    ),
    Setting(("--cycle-time-ms",), "RINGTUNE_CYCLE_TIME", click.FloatRange(min=0), "Pause between rounds, in ms."),
    Setting(("--cache-capacity",), "RINGTUNE_CACHE_CAPACITY", AT_LEAST_0, "Operations the response cache holds."),
    Setting(
        ("--num-nccl-streams",),
        "RINGTUNE_NUM_NCCL_STREAMS",
        click.IntRange(1, 8),
        "Streams of a GPU that batches by NCCL are dealt to.",
    ),
    Setting(("--transport",), "RINGTUNE_TRANSPORT", click.Choice(TRANSPORTS), "Kind of links between the ranks."),
    Setting(("--autotune/--no-autotune",), "RINGTUNE_AUTOTUNE", None, "Tune the knobs while the job trains."),
    Setting(("--autotune-log-file",), "RINGTUNE_AUTOTUNE_LOG", str, "Write every trial as CSV into FILE.", 1, True),
    Setting(
        ("--autotune-bayes-opt-max-samples", "--autotune-max-trials"),
        "RINGTUNE_AUTOTUNE_MAX_TRIALS",
        click.IntRange(min=1),
        "Most settings tried.",
    ),
    Setting(
        ("--autotune-steps-per-sample", "--autotune-steps-per-trial"),
        "RINGTUNE_AUTOTUNE_STEPS_PER_TRIAL",
        click.IntRange(min=1),
        "Steps measured in one trial.",
    ),
    Setting(
        ("--autotune-warmup-steps",), "RINGTUNE_AUTOTUNE_WARMUP_STEPS", AT_LEAST_0, "Steps before the first trial."
    ),
    Setting(
        ("--start-timeout",),
        "RINGTUNE_START_TIMEOUT",
        click.FloatRange(0.001),
        "Seconds the ranks wait for each other.",
    ),
    Setting(("--no-stall-check/--stall-check",), "RINGTUNE_STALL_CHECK_DISABLE", None, "Do not warn about stalls."),
    Setting(
        ("--stall-check-warning-time-seconds",),
        "RINGTUNE_STALL_CHECK_TIME_SECONDS",
        click.FloatRange(0.001),
        "Age at which a stalled operation is reported.",
    ),
    Setting(
        ("--stall-check-shutdown-time-seconds",),
        "RINGTUNE_STALL_SHUTDOWN_TIME_SECONDS",
        click.FloatRange(min=0),
        "Age at which a stalled operation ends the job; 0 = never.",
    ),
    Setting(
        ("--thread-affinity",), "RINGTUNE_THREAD_AFFINITY", str, "Core of the runtime's thread, one per local rank."
    ),
    Setting(("--log-level",), "RINGTUNE_LOG_LEVEL", click.Choice(LOG_LEVELS, case_sensitive=False), "Least severity."),
)


def settings_from(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that flags ask for; a flag that was not given sets nothing, so the user's own stays.

    Args:
        values: Click's parameters by name; those of `SETTINGS` are looked at.
    """
    return {
        setting.variable: setting.text(values[setting.parameter])
        for setting in SETTINGS
        if values.get(setting.parameter) is not None
    }


def with_settings(command: Any) -> Any:
    """Add the flags to a command."""
    for setting in reversed(SETTINGS):
        metavar = "FILE" if setting.is_file else None
        extra = {"is_flag": True} if setting.type is None else {"type": setting.type, "metavar": metavar}
        flags = (*setting.flags, setting.parameter)
        command = click.option(*flags, default=None, help=setting.help, **extra)(command)
    return command
