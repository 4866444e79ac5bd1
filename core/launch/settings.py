"""Flags of ``ringtune run`` that do nothing but set a variable for the ranks; Horovod's names where it has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

import click

from ringtune.alias.horovod_variables import reading
from ringtune.knobs import TABLE, Row
from ringtune.output_file import expanded
from ringtune.output_variables import DETAILS, LOG_LEVELS
from ringtune.variables import TRANSPORTS, VARIABLES

_MIB = 1 << 20
AT_LEAST_0 = click.IntRange(min=0)


class _OfVariable(click.ParamType):  # type: ignore[type-arg]  # click 8.1 to 8.3 know no argument
    """Converts the value of a Horovod flag to the text of its variable; None where that keeps its default.

    Numbers that are negative, and words where a number belongs, are refused: `horovodrun` refuses them too.

    Args:
        name: Name of the variable, without a prefix.
        unit: The variable is the value times this; 0: the value is no number.
    """

    def __init__(self, name: str, unit: int = 1) -> None:
        self._variable = next(one for one in VARIABLES if one.name == name)
        self._unit = unit
        self.name = "number" if unit else "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | None:
        taken, said = reading(self._variable, self._scaled(value, param, ctx) if self._unit else str(value))
        if said:
            source = param.opts[0] if param is not None else self._variable.name.lower()
            click.echo(f"ringtune run: {source} {value} {said}", err=True)
        return taken

    def _scaled(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            number = Decimal(str(value))
        except InvalidOperation:
            self.fail(f"{value!r} is not a number", param, ctx)
        if not number.is_finite() or number < 0:
            self.fail(f"{value} is not in the range x>=0", param, ctx)
        return str(value) if self._unit == 1 else str(int(number * self._unit))


@dataclass(frozen=True)
class Setting:
    """A flag that does nothing but set a variable for the ranks.

    Attributes:
        flags: Names of the flag; Horovod's first.
        variable: Name of the variable.
        type: Click's type of the value; None = a switch that sets 1.
        help: One line.
        is_file: The value is a path, made absolute because a rank may start in another folder.
        several: The flag may be given several times; the values are joined by commas.
    """

    flags: tuple[str, ...]
    variable: str
    type: Any
    help: str
    is_file: bool = False
    several: bool = False

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
        if self.several:
            return ",".join(value)
        return str(value)


def _of_knob(row: Row) -> Setting:
    """Return the flag of a knob."""
    flag = row.flag or f"--{row.variable.lower().replace('_', '-')}"
    kind: Any = _OfVariable(row.variable, row.flag_unit)
    if row.kind in ("bool", "switch"):
        flag, kind = f"{flag}/--no-{flag.removeprefix('--')}", None
    elif row.kind == "choice":
        kind = click.Choice(row.choices)
    return Setting((flag,), f"RINGTUNE_{row.variable}", kind, row.flag_help or row.meaning)


SETTINGS = (
    Setting(
        ("--metrics-port",),
        "RINGTUNE_METRICS_PORT",
        click.IntRange(0, 65535),
        "Rank 0 serves metrics of all ranks for Prometheus there.",
    ),
    Setting(("--metrics-host",), "RINGTUNE_METRICS_HOST", str, "Address for --metrics-port; default: 127.0.0.1."),
    Setting(("--timeline-filename", "--timeline"), "RINGTUNE_TIMELINE", str, "Record all ranks into FILE.", True),
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
        _OfVariable("TIMELINE_ROTATE_BYTES", _MIB),
        "MiB after which a part goes on in another file.",
    ),
    *(_of_knob(row) for row in TABLE),
    Setting(
        ("--network-interfaces", "--network-interface"),
        "RINGTUNE_INTERFACE",
        str,
        "Network interfaces of links between hosts, by name; the first that a host has counts.",
        several=True,
    ),
    Setting(("--transport",), "RINGTUNE_TRANSPORT", click.Choice(TRANSPORTS), "Kind of links between the ranks."),
    Setting(("--autotune/--no-autotune",), "RINGTUNE_AUTOTUNE", None, "Tune the knobs while the job trains."),
    Setting(("--autotune-log-file",), "RINGTUNE_AUTOTUNE_LOG", str, "Write every trial as CSV into FILE.", True),
    Setting(
        ("--autotune-bayes-opt-max-samples", "--autotune-max-trials"),
        "RINGTUNE_AUTOTUNE_MAX_TRIALS",
        _OfVariable("AUTOTUNE_MAX_TRIALS"),
        "Most settings tried.",
    ),
    Setting(
        ("--autotune-steps-per-sample", "--autotune-steps-per-trial"),
        "RINGTUNE_AUTOTUNE_STEPS_PER_TRIAL",
        _OfVariable("AUTOTUNE_STEPS_PER_TRIAL"),
        "Steps measured in one trial.",
    ),
    Setting(
        ("--autotune-warmup-steps",), "RINGTUNE_AUTOTUNE_WARMUP_STEPS", AT_LEAST_0, "Steps before the first trial."
    ),
    Setting(
        ("--start-timeout",),
        "RINGTUNE_START_TIMEOUT",
        _OfVariable("START_TIMEOUT"),
        "Seconds the ranks wait for each other.",
    ),
    Setting(("--no-stall-check/--stall-check",), "RINGTUNE_STALL_CHECK_DISABLE", None, "Do not warn about stalls."),
    Setting(
        ("--stall-check-warning-time-seconds",),
        "RINGTUNE_STALL_CHECK_TIME_SECONDS",
        _OfVariable("STALL_CHECK_TIME_SECONDS"),
        "Age at which a stalled operation is reported.",
    ),
    Setting(
        ("--stall-check-shutdown-time-seconds",),
        "RINGTUNE_STALL_SHUTDOWN_TIME_SECONDS",
        _OfVariable("STALL_SHUTDOWN_TIME_SECONDS"),
        "Age at which a stalled operation ends the job; 0 = never.",
    ),
    Setting(
        ("--thread-affinity",),
        "RINGTUNE_THREAD_AFFINITY",
        _OfVariable("THREAD_AFFINITY", 0),
        "Core of the runtime's thread, one per local rank.",
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
        if values.get(setting.parameter) not in (None, ())
    }


def with_settings(command: Any) -> Any:
    """Add the flags to a command."""
    for setting in reversed(SETTINGS):
        metavar = "FILE" if setting.is_file else None
        extra = {"is_flag": True} if setting.type is None else {"type": setting.type, "metavar": metavar}
        flags = (*setting.flags, setting.parameter)
        extra |= {"multiple": True} if setting.several else {}
        command = click.option(*flags, default=None, help=setting.help, **extra)(command)
    return command
