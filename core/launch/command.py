"""``ringtune run``: Horovod's names for the flags where it has them.

Options after the command belong to the command.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from ringtune import runfolder
from ringtune.command_table import print_version
from ringtune.config import Config
from ringtune.errors import UsageError
from ringtune.launch.config_file import settings_from_file
from ringtune.launch.horovod_flags import warn_ignored, with_ignored
from ringtune.launch.launcher import launch, run_name
from ringtune.launch.options import ElasticOptions, LaunchOptions
from ringtune.launch.settings import AT_LEAST_0, settings_from, with_settings


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
@click.option("--reset-limit", type=AT_LEAST_0, metavar="N", help="Elastic: how often the ranks may change.")
@click.option(
    "--blacklist-cooldown-range",
    type=(click.FloatRange(0), click.FloatRange(0)),
    metavar="MIN MAX",
    help="Elastic: seconds until a host where ranks failed gets new ones; default: never.",
)
@click.option("--restarts", type=AT_LEAST_0, metavar="N", help="Start a job again when it fails, up to N times.")
@click.option("-p", "--ssh-port", type=click.IntRange(1, 65535), metavar="PORT", help="Port of ssh on other hosts.")
@click.option("-i", "--ssh-identity-file", type=click.Path(path_type=Path), help="Key for ssh.")
@click.option("--run-dir", type=click.Path(path_type=Path), help="Run folder; default: runs/<script>-<time>.")
@click.option("--no-run-dir", is_flag=True, help="Write no run folder.")
@click.option("--name", default="", help="Name of the run; default: the script's.")
@click.option("--tag", "tags", multiple=True, metavar="WORD|NAME=VALUE", help="Tag of the run; may be repeated.")
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
@click.option("--verbose", is_flag=True, help="Say what is started where.")
@click.option(
    "--config-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="YAML with settings under horovodrun's keys; flags win.",
)
@click.option(
    "-v",
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=print_version,
    help="Show the version.",
)
@click.option(
    "-cb",
    "--check-build",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_build,
    help="Show what is built, and stop.",
)
@with_settings
@with_ignored
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
    if values["no_run_dir"] and values["tags"]:
        raise UsageError("--tag is written into the run folder, and --no-run-dir makes none")
    warn_ignored(values)
    settings = settings_from_file(values["config_file"]) if values["config_file"] else {}
    settings |= settings_from(values)
    if values["as_horovod"]:
        rest = os.environ.get("PYTHONPATH")
        settings["PYTHONPATH"] = os.pathsep.join([str(as_horovod_folder()), *([rest] if rest else [])])
    name = values["name"] or (run_name(command) if command else "")
    asked = values["run_dir"] or _folder_of_environment()
    run_dir = None if values["no_run_dir"] else asked or runfolder.planned_folder(name)
    return LaunchOptions(
        command=command,
        num_proc=values["num_proc"],
        hosts=values["hosts"],
        hostfile=values["hostfile"],
        run_dir=run_dir,
        run_dir_optional=not (asked or values["logs"] or values["tags"]),
        name=name,
        labels=tags_from(values["tags"]),
        settings=settings,
        prefix_output=not values["no_prefix"],
        timestamp_output=values["prefix_timestamp"],
        output_folder=values["output_filename"],
        keep_logs=values["logs"],
        ssh_port=values["ssh_port"],
        ssh_identity_file=values["ssh_identity_file"],
        verbose=values["verbose"],
        elastic=_elastic_from(values),
        restarts=values["restarts"] or 0,
    )


def tags_from(words: Iterable[str]) -> dict[str, str]:
    """Return tags by name.

    Raises:
        UsageError: A tag without a name, or with one that ringtune uses itself.
    """
    tags = {}
    for word in words:
        name, _, value = word.partition("=")
        if not name.strip() or name.strip() == "timeline":
            raise UsageError(f"--tag {word!r}: expected WORD or NAME=VALUE, with another name than 'timeline'")
        tags[name.strip()] = value.strip()
    return tags


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


def _folder_of_environment() -> Path | None:
    given = os.environ.get("RINGTUNE_RUN_DIR", "").strip()
    return Path(given) if given else None
