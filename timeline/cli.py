"""``ringtune timeline``: summary and merge."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click
import orjson
from rich.console import Console

from ringtune.errors import RingtuneError, UsageError
from ringtune.timeline.inputs import load
from ringtune.timeline.merge import MergeReport, merge, merge_run
from ringtune.timeline.summary import summarize
from ringtune.timeline.tables import summary_view

_PIPE_WIDTH = 140
_STEPS = re.compile(r"^(\d*):(\d*)$")


@click.group()
def timeline() -> None:
    """Merge and analyse what the ranks recorded."""


@timeline.command()
@click.argument("source", metavar="FILE|RUN_DIR", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option("--steps", metavar="FIRST:END", help="Only these steps, END not included; either may be left out.")
def summary(source: tuple[Path, ...], as_json: bool, steps: str | None) -> None:
    """Print where the time went.

    Takes a run folder, a merged file, one or several parts (rank-*.json), Horovod's own timeline, or any Chrome
    trace; plain or .gz.
    """
    chosen = _parse_steps(steps)
    trace = load(source[0] if len(source) == 1 else source)
    found = summarize(trace, chosen)
    if steps is not None and not found.span_count:
        raise RingtuneError(f"{source[0]}: no spans in the steps {steps}; look at the whole trace to see which it has")
    if as_json:
        sys.stdout.write(orjson.dumps(found.to_json(), option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        # In a file or a pipe nothing needs to fit a screen.
        console = Console() if sys.stdout.isatty() else Console(width=_PIPE_WIDTH)
        console.print(summary_view(found), highlight=False)


@timeline.command("merge")
@click.argument("source", metavar="RUN_DIR|PARTS…", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    metavar="OUT",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Merged file (.gz packs it); default: timeline.json in the run folder.",
)
def merge_command(source: tuple[Path, ...], output: Path | None) -> None:
    """Join the parts of all ranks into one trace.

    All on rank 0's clock, for Perfetto and for the summary. Takes a run folder, or parts (rank-*.json) in any order.
    """
    if len(source) == 1 and source[0].is_dir():
        report = merge_run(source[0], output)
    elif output is None:
        raise UsageError("name the merged file with -o OUT when the input is not a run folder")
    else:
        report = merge(source, output)
    _print_report(report)


def _print_report(report: MergeReport) -> None:
    ranks = len(report.parts)
    click.echo(f"{report.output}: {report.spans} spans of {ranks} {'rank' if ranks == 1 else 'ranks'}")
    for sentence in report.sentences():
        click.secho(f"! {sentence}", fg="yellow", err=True)


def _parse_steps(text: str | None) -> tuple[int | None, int | None] | None:
    if text is None:
        return None
    match = _STEPS.match(text)
    if match is None:
        raise UsageError(f"--steps {text}: expected FIRST:END, for example 10:20, :5 or 100:")
    first, end = (int(number) if number else None for number in match.groups())
    if first is not None and end is not None and end <= first:
        raise UsageError(f"--steps {text}: END must be larger than FIRST (END is not included)")
    return first, end
