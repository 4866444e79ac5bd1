"""``ringtune timeline``: summary, merge, import, and the analyses of `ringtune.timeline.commands`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from ringtune.errors import UsageError
from ringtune.output_file import is_stdout
from ringtune.timeline.analysis.summary import summarize
from ringtune.timeline.commands import ANALYSES, analysis, every_option, read_counted, show_counted, sources
from ringtune.timeline.doctor.command import doctor_command
from ringtune.timeline.merging.merge import merge, merge_run
from ringtune.timeline.merging.report import MergeReport
from ringtune.timeline.tables import summary_view
from ringtune.timeline.units import parse_rate


@click.group()
def timeline() -> None:
    """Merge and analyse what the ranks recorded."""


@timeline.command()
@sources
@every_option
@analysis
@click.option("--link", metavar="RATE", help="Bandwidth of the link between ranks, for example 12.5GB/s or 100Gbit/s.")
def summary(
    source: tuple[Path, ...], every: bool, as_json: bool, steps: str | None, all_steps: bool, link: str | None
) -> None:
    """Print where the time went.

    Takes a run folder, a merged file, one or several parts (rank-*.spans), Horovod's own timeline, or any Chrome
    trace; plain or .gz.
    """
    what = read_counted(source, steps, all_steps)
    found = summarize(what.trace, link_bytes_per_s=parse_rate(link) if link else None)
    show_counted(
        what,
        found.to_json,
        lambda: summary_view(found, every=every),
        as_json=as_json,
        opening=None,
        summary=found,
    )


@timeline.command("merge")
@click.argument("source", metavar="RUN_DIR|FILES…", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    metavar="OUT",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Merged file (.gz packs it); default: timeline.json in the run folder.",
)
def merge_command(source: tuple[Path, ...], output: Path | None) -> None:
    """Join the parts of all ranks into one trace.

    All on rank 0's clock, for Perfetto and for the summary. Takes a run folder, parts (rank-*.spans) and traces of
    other tools (PyTorch's profiles: a file a rank), in any order.
    """
    if len(source) == 1 and source[0].is_dir():
        report = merge_run(source[0], output)
    elif output is None:
        raise UsageError("name the merged file with -o OUT when the input is not one run folder")
    else:
        report = merge(source, output, threads=os.cpu_count() or 1)
    _print_report(report)


@timeline.command("import")
@click.argument("paths", metavar="PATHS…", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", metavar="RUN", required=True, type=click.Path(path_type=Path), help="Run folder to make."
)
@click.option(
    "--allow-pickle",
    is_flag=True,
    help="Read pickled dumps of the flight recorder too; only data is taken from them, nothing is run.",
)
def import_command(paths: tuple[Path, ...], output: Path, allow_pickle: bool) -> None:
    """Make a run folder of traces that other tools recorded, for every command here and the dashboard.

    Takes files or folders of PyTorch's profiler (one or more a rank), JAX's traces and Nsight Systems' SQLite exports
    (every device is a rank), and dumps of torch.distributed's flight recorder (of a job that hung it says which rank
    did not come to which collective). Collectives are matched over the ranks, and from them follows how far the ranks'
    clocks are apart.
    """
    from ringtune.timeline.importing.imported import import_run

    made = import_run(paths, output, allow_pickle=allow_pickle)
    for sentence in made.sentences():
        click.echo(sentence)
    _warn(made.report)


def _print_report(report: MergeReport) -> None:
    ranks = len(report.parts)
    click.echo(
        f"{report.output}: {report.spans} spans of {ranks} {'rank' if ranks == 1 else 'ranks'}",
        err=is_stdout(report.output),
    )
    _warn(report)


def _warn(report: MergeReport) -> None:
    for sentence in report.sentences():
        click.secho(f"! {sentence}", fg="yellow", err=True)


for _command in (doctor_command, *ANALYSES):
    timeline.add_command(_command)
