"""``ringtune run``: Horovod's names for the flags where it has them.

Options after the command belong to the command.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ringtune import runfolder
from ringtune.config import Config
from ringtune.errors import UsageError
from ringtune.launch.launcher import launch, run_name
from ringtune.launch.options import ElasticOptions, LaunchOptions
from ringtune.variables import LOG_LEVELS, TRANSPORTS

_MIB = 1 << 20
_AT_LEAST_0 = click.IntRange(min=0)


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
            return value if str(value).upper() == "DYNAMIC" else str(Path(value).absolute())
        if self.type is None:
            return "1" if value else "0"
        return str(value * self.factor) if self.factor != 1 else str(value)


SETTINGS = (
    Setting(("--timeline-filename", "--timeline"), "RINGTUNE_TIMELINE", str, "Record all ranks into FILE.", 1, True),
    Setting(
        ("--timeline-mark-cycles/--no-timeline-mark-cycles",),
        "RINGTUNE_TIMELINE_MARK_CYCLES",
        None,
        "Mark the runtime's cycles in the timeline.",
    ),
    Setting(
        ("--fusion-threshold-mb",),
        "RINGTUNE_FUSION_THRESHOLD",
        _AT_LEAST_0,
        "Most MiB reduced as one batch; 0 = no fusion.",
        _MIB,
    ),
    Setting(("--cycle-time-ms",), "RINGTUNE_CYCLE_TIME", click.FloatRange(min=0), "Pause between rounds, in ms."),
    Setting(("--cache-capacity",), "RINGTUNE_CACHE_CAPACITY", _AT_LEAST_0, "Operations the response cache holds."),
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
        ("--autotune-warmup-steps",), "RINGTUNE_AUTOTUNE_WARMUP_STEPS", _AT_LEAST_0, "Steps before the first trial."
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


def _with_settings(command: Any) -> Any:
    for setting in reversed(SETTINGS):
        metavar = "FILE" if setting.is_file else None
        extra = {"is_flag": True} if setting.type is None else {"type": setting.type, "metavar": metavar}
        flags = (*setting.flags, setting.parameter)
        command = click.option(*flags, default=None, help=setting.help, **extra)(command)
    return command


def _print_build(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from ringtune.check import check

        ctx.invoke(check)
        ctx.exit()


@click.command(context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]})
@click.option("-np", "--num-proc", type=int, metavar="N", help="Number of ranks; default: all slots of the hosts.")
@click.option("-H", "--hosts", metavar="HOST:SLOTS,...", help="Where the ranks run; default: this machine.")
@click.option("-hostfile", "--hostfile", type=click.Path(path_type=Path), help="File of lines `host slots=N`.")
@click.option("--min-np", "--min-num-proc", type=int, metavar="N", help="Elastic: least ranks; default: -np.")
@click.option("--max-np", "--max-num-proc", type=int, metavar="N", help="Elastic: most ranks; default: all slots.")
@click.option(
    "--host-discovery-script",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Elastic: prints the hosts there are now, `host:slots` by line.",
)
@click.option(
    "--slots-per-host",
    "--slots",
    type=click.IntRange(1),
    default=1,
    metavar="N",
    help="Elastic: slots of a host without number.",
)
@click.option(
    "--elastic-timeout", type=click.FloatRange(0.001), metavar="S", help="Elastic: wait for enough ranks; default 600."
)
@click.option("--reset-limit", type=_AT_LEAST_0, metavar="N", help="Elastic: how often the ranks may change.")
@click.option(
    "--blacklist-cooldown-range",
    type=(click.FloatRange(0), click.FloatRange(0)),
    metavar="MIN MAX",
    help="Elastic: seconds until a host where ranks failed gets new ones; default: never.",
)
@click.option("-p", "--ssh-port", type=click.IntRange(1, 65535), metavar="PORT", help="Port of ssh on other hosts.")
@click.option("-i", "--ssh-identity-file", type=click.Path(path_type=Path), help="Key for ssh.")
@click.option("--run-dir", type=click.Path(path_type=Path), help="Run folder; default: runs/<script>-<time>.")
@click.option("--no-run-dir", is_flag=True, help="Write no run folder.")
@click.option("--name", default="", help="Name of the run; default: the script's.")
@click.option("--output-filename", type=click.Path(path_type=Path), metavar="DIR", help="Keep output in DIR/rank.<n>/.")
@click.option("--logs", is_flag=True, help="Keep each rank's output in the run folder, under logs/.")
@click.option("--no-prefix", is_flag=True, help="Print the ranks' lines without [rank].")
@click.option(
    "-prefix-timestamp",
    "--prefix-timestamp",
    "--prefix-output-with-timestamp",
    is_flag=True,
    help="Print the time before each line.",
)
@click.option("--as-horovod", is_flag=True, help="`import horovod.torch` in COMMAND finds ringtune.")
@click.option("-v", "--verbose", is_flag=True, help="Say what is started where.")
@click.option(
    "-cb",
    "--check-build",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_build,
    help="Show what is built, and stop.",
)
@_with_settings
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="COMMAND...")
def run(command: tuple[str, ...], **values: Any) -> int:
    """Start COMMAND on several ranks and stay until all have ended.

    \b
    ringtune run -np 2 python train.py --epochs 3
    ringtune run -np 8 -H node1:4,node2:4 --timeline trace.json python train.py
    """  # noqa: D301 (\b is click's mark for text that is not to be wrapped)
    return launch(options_from(list(command), values))


def options_from(command: list[str], values: Mapping[str, Any]) -> LaunchOptions:
    """Turn click's parameters into options.

    Raises:
        UsageError: Flags that exclude each other.
    """
    if values["no_run_dir"] and values["run_dir"]:
        raise UsageError("give --run-dir or --no-run-dir, not both")
    if values["no_run_dir"] and values["logs"]:
        raise UsageError(
            "--logs keeps the output in the run folder, and --no-run-dir makes none; use --output-filename"
        )
    settings = settings_from(values)
    if values["as_horovod"]:
        rest = os.environ.get("PYTHONPATH")
        settings["PYTHONPATH"] = os.pathsep.join([str(as_horovod_folder()), *([rest] if rest else [])])
    name = values["name"] or (run_name(command) if command else "")
    run_dir = None if values["no_run_dir"] else values["run_dir"] or _default_run_dir(name)
    return LaunchOptions(
        command=command,
        num_proc=values["num_proc"],
        hosts=values["hosts"],
        hostfile=values["hostfile"],
        run_dir=run_dir,
        name=name,
        settings=settings,
        prefix_output=not values["no_prefix"],
        timestamp_output=values["prefix_timestamp"],
        output_folder=values["output_filename"],
        keep_logs=values["logs"],
        ssh_port=values["ssh_port"],
        ssh_identity_file=values["ssh_identity_file"],
        verbose=values["verbose"],
        elastic=_elastic_from(values),
    )


def as_horovod_folder() -> Path:
    """Return the folder whose ``horovod`` package gives way to ringtune."""
    return Path(__file__).parents[1] / "alias"


def _elastic_from(values: Mapping[str, Any]) -> ElasticOptions | None:
    """Return how the ranks may change; as in Horovod one of three flags makes a job elastic."""
    makes = ("min_np", "max_np", "host_discovery_script")
    needs = ("elastic_timeout", "reset_limit", "blacklist_cooldown_range")
    if all(values[name] is None for name in makes):
        given = [name for name in needs if values[name] is not None]
        if given:
            flag = given[0].replace("_", "-")
            raise UsageError(
                f"--{flag} is for elastic jobs: give --min-np, --max-np or --host-discovery-script as well"
            )
        return None
    timeout = values["elastic_timeout"]
    cooldown = values["blacklist_cooldown_range"]
    if cooldown is not None and cooldown[0] > cooldown[1]:
        raise UsageError(f"--blacklist-cooldown-range {cooldown[0]:g} {cooldown[1]:g}: the first must be the smaller")
    if timeout is None:
        timeout = Config.from_environ().elastic_timeout_ns / 1e9
    return ElasticOptions(
        min_np=values["min_np"],
        max_np=values["max_np"],
        script=values["host_discovery_script"],
        default_slots=values["slots_per_host"],
        reset_limit=values["reset_limit"],
        timeout_s=timeout,
        cooldown_s=cooldown,
    )


def _default_run_dir(name: str) -> Path:
    given = os.environ.get("RINGTUNE_RUN_DIR", "").strip()
    return Path(given) if given else runfolder.planned_folder(name)
