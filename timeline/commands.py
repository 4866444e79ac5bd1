"""The analyses as commands of ``ringtune timeline``."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
import orjson
from rich.console import Console, Group, RenderableType
from rich.text import Text

from ringtune import layout
from ringtune.errors import RingtuneError, UsageError
from ringtune.output_file import is_stdout
from ringtune.standard_streams import screen_width
from ringtune.timeline.analysis.headline import headline
from ringtune.timeline.analysis.steps import Counted, counted, select_steps
from ringtune.timeline.analysis.summary import Summary, lacking
from ringtune.timeline.analysis.tables import stacked
from ringtune.timeline.doctor.failure import Failure, failure, of_trace
from ringtune.timeline.inputs import load
from ringtune.timeline.runs.run import Run
from ringtune.timeline.spans import Trace

_PIPE_WIDTH = 160
_STEPS = re.compile(r"^(\d*):(\d*)$")

StepRange = tuple[int | None, int | None]


def sources(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument for what is read: a run folder, files, or parts."""
    kind: click.Path = click.Path(path_type=Path)
    return click.argument("source", metavar="FILE|RUN_DIR", nargs=-1, required=True, type=kind)(command)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
steps_option = click.option(
    "--steps", metavar="FIRST:END", help="Only these steps, END not included; either may be left out."
)


all_steps_option = click.option("--all-steps", is_flag=True, help="Count the start-up's steps too.")


def analysis(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of an analysis: what is printed, and of which steps."""
    return json_option(steps_option(all_steps_option(command)))


every_option = click.option("--all", "every", is_flag=True, help="List all ranks, not only those that stand out.")


@dataclass(frozen=True)
class Found(Counted):
    """What the user named, and how its run failed, or why it hangs; None for one that ends well."""

    failure: Failure | None


def read_counted(source: tuple[Path, ...], steps: str | None, all_steps: bool) -> Found:
    """As `load_counted`; where a run that failed left nothing to load, the error says first how it failed.

    Raises:
        RingtuneError: Nothing is there, or not in these steps.
    """
    try:
        whole = _load(source)
    except RingtuneError as error:
        run = named_run(source)
        failed = failure(run, None) if run is not None else None
        if failed is None:
            raise
        more = f"`ringtune timeline doctor {source[0]}` says more"
        raise RingtuneError(f"{failed.headline.rstrip('.')}; {more}. {error}") from None
    return _counted(whole, source, steps, all_steps)


def load_counted(source: tuple[Path, ...], steps: str | None, all_steps: bool) -> Found:
    """Load what the user named without its start-up, unless the steps are chosen or all are asked for.

    Raises:
        RingtuneError: Nothing is there, or not in these steps.
    """
    return _counted(_load(source), source, steps, all_steps)


def _counted(whole: Trace, source: tuple[Path, ...], steps: str | None, all_steps: bool) -> Found:
    run = named_run(source)
    # Steps that are left out tell how it ended, too.
    failed = failure(run, whole) if run is not None else of_trace(whole)
    trace = _of_steps(whole, source, steps)
    what = Counted(trace, None) if all_steps or steps is not None else counted(trace)
    return Found(what.trace, what.startup, failed)


def named_run(source: tuple[Path, ...]) -> Run | None:
    """Return the run whose folder the user named; None where files or another folder were named."""
    return Run(source[0]) if len(source) == 1 and source[0].is_dir() and layout.is_run(source[0]) else None


def read_source(source: tuple[Path, ...], steps: str | None) -> Trace:
    """Load what the user named, cut to the steps.

    Raises:
        RingtuneError: Nothing is there, or not in these steps.
    """
    return _of_steps(_load(source), source, steps)


def _load(source: tuple[Path, ...]) -> Trace:
    return load(source[0] if len(source) == 1 else source)


def _of_steps(trace: Trace, source: tuple[Path, ...], steps: str | None) -> Trace:
    chosen = parse_steps(steps)
    if chosen is None:
        return trace
    trace = select_steps(trace, *chosen)
    if not len(trace.spans):
        raise RingtuneError(f"{source[0]}: no spans in the steps {steps}; look at the whole trace to see which it has")
    return trace


def parse_steps(text: str | None) -> StepRange | None:
    """Read ``FIRST:END``.

    Raises:
        UsageError: It is none.
    """
    if text is None:
        return None
    match = _STEPS.match(text)
    if match is None:
        raise UsageError(f"--steps {text}: expected FIRST:END, for example 10:20, :5 or 100:")
    first, end = (int(number) if number else None for number in match.groups())
    if first is not None and end is not None and end <= first:
        raise UsageError(f"--steps {text}: END must be larger than FIRST (END is not included)")
    return first, end


def show_counted(
    found: Found,
    data: Callable[[], dict[str, Any]],
    view: Callable[[], RenderableType],
    *,
    as_json: bool,
    opening: str | None,
    summary: Summary | None = None,
) -> None:
    """Print an analysis after how the run failed, else what cost the job most, and the steps that it leaves out.

    Args:
        found: What was analysed.
        data: What JSON holds.
        view: The tables.
        as_json: Print JSON.
        opening: The first sentence of a run that did not fail; None for what cost the job most.
        summary: Of the trace, where it is known.
    """
    failed, startup = found.failure, found.startup
    first, also = opening, [Text(opening)] if opening is not None and failed is not None else []
    if failed is not None:
        first = failed.words()
    elif first is None:
        first = headline(found.trace, summary=summary)

    def document() -> dict[str, Any]:
        return {
            "headline": first,
            "failure": None if failed is None else asdict(failed),
            "startup": None if startup is None else asdict(startup),
            **data(),
        }

    # The summary's own page says what is lacking, beside what else is wrong with the recording.
    show(document, lambda: Group(*opened(first, found, lacks=summary is None), *also, view()), as_json)


def opened(first: str, *found: Found, lacks: bool = True) -> list[RenderableType]:
    """Return the lines above the tables: the first sentence, how each run failed, what is left out and lacking."""
    lines = [Text(first, "bold")] if first else []
    for name, one in zip(("A: ", "B: ") if len(found) > 1 else ("",), found, strict=True):
        ended = one.failure.lines() if one.failure is not None else []
        lines += [Text(f"{name}{line}") for line in ended]
        if one.startup is not None:
            lines.append(Text(f"{name}{one.startup.sentence()}; --all-steps counts them", "dim"))
        lines += [Text(f"! {name}{line}", "yellow") for line in (lacking(one.trace).sentences() if lacks else [])]
    return [*lines]


def show(
    data: Callable[[], object], view: Callable[[], RenderableType], as_json: bool, *, widest: int | None = None
) -> None:
    """Print as JSON or as tables, these in lines of at most ``widest`` characters."""
    if as_json:
        sys.stdout.write(orjson.dumps(data(), option=orjson.OPT_INDENT_2, default=str).decode() + "\n")
        return
    console = Console(width=screen_width(_PIPE_WIDTH))
    if widest is not None and console.width > widest:
        console.width = widest
    for part in stacked(view(), console.width):
        console.print(part, highlight=False)


@click.command("critical-path")
@sources
@analysis
def critical_path_command(source: tuple[Path, ...], as_json: bool, steps: str | None, all_steps: bool) -> None:
    """Print the chain of causes, across ranks, that set each step's length."""
    from ringtune.timeline.analysis.critical_path import critical_path
    from ringtune.timeline.analysis.tables import critical_path_view

    what = read_counted(source, steps, all_steps)
    found = critical_path(what.trace)
    show_counted(what, found.to_json, lambda: critical_path_view(found), as_json=as_json, opening=None)


@click.command("stragglers")
@sources
@every_option
@analysis
def stragglers_command(
    source: tuple[Path, ...], every: bool, as_json: bool, steps: str | None, all_steps: bool
) -> None:
    """Print who made the others wait, when, why, and what it cost the job, worst first."""
    from ringtune.timeline.analysis.stragglers import stragglers
    from ringtune.timeline.analysis.tables import stragglers_view

    what = read_counted(source, steps, all_steps)
    found = stragglers(what.trace)
    first = found.sentences()[0]
    show_counted(what, found.to_json, lambda: stragglers_view(found, every=every), as_json=as_json, opening=first)


@click.command("efficiency")
@sources
@click.option(
    "--reference",
    metavar="FILE|RUN_DIR",
    type=click.Path(path_type=Path),
    help="The same training on fewer ranks (usually one), for computation scaling.",
)
@every_option
@analysis
def efficiency_command(
    source: tuple[Path, ...], reference: Path | None, every: bool, as_json: bool, steps: str | None, all_steps: bool
) -> None:
    """Print the factors that multiply exactly to the parallel efficiency."""
    from ringtune.timeline.analysis.efficiency import efficiency
    from ringtune.timeline.analysis.tables import efficiency_view

    base = read_counted((reference,), None, all_steps).trace if reference is not None else None
    what = read_counted(source, steps, all_steps)
    found = efficiency(what.trace, base)
    show_counted(what, found.to_json, lambda: efficiency_view(found, every=every), as_json=as_json, opening=None)


SLOWER = 3
"""Exit code of a comparison that was to fail if B is slower."""


def _percent(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%?", value.strip()) if value is not None else None
    if value is not None and match is None:
        raise click.BadParameter(f"{value}: expected a share of a step, for example 5%")
    return float(match[1]) if match else None


@click.command("diff")
@click.argument("first", metavar="A", type=click.Path(path_type=Path))
@click.argument("second", metavar="B", type=click.Path(path_type=Path))
@click.option("--tensors", default=20, show_default=True, type=click.IntRange(0), help="Tensors to list.")
@click.option(
    "--fail-if-slower",
    metavar="PERCENT",
    callback=_percent,
    help=f"End with {SLOWER} if a step of B is surely slower than one of A by more, for example 5%.",
)
@every_option
@analysis
def diff_command(
    first: Path,
    second: Path,
    tensors: int,
    fail_if_slower: float | None,
    every: bool,
    as_json: bool,
    steps: str | None,
    all_steps: bool,
) -> None:
    """Print what got slower or faster from A to B, with 95 % intervals, worst first.

    A and B are run folders or trace files. The start-up of both is left out; --steps chooses others.
    """
    from ringtune.timeline.analysis.comparison import compare
    from ringtune.timeline.analysis.headline import comparison_headline, surely_slower
    from ringtune.timeline.analysis.tables import comparison_view

    both = [read_counted((one,), steps, all_steps) for one in (first, second)]
    found = compare(both[0].trace, both[1].trace, tensors)
    found = replace(found, first=found.first or str(first), second=found.second or str(second))
    failed = [f"{name}: {one.failure.words()}" for name, one in zip("AB", both, strict=True) if one.failure is not None]
    opening = " ".join([*failed, comparison_headline(found)])

    def document() -> dict[str, Any]:
        return {
            "headline": opening,
            "failure": [None if one.failure is None else asdict(one.failure) for one in both],
            "startup": [None if one.startup is None else asdict(one.startup) for one in both],
            **found.to_json(),
        }

    show(document, lambda: Group(*opened(opening, *both), comparison_view(found, every=every)), as_json)
    if fail_if_slower is not None:
        sure, sentence = surely_slower(found, fail_if_slower)
        click.echo(f"ringtune: {sentence}", err=True)
        click.get_current_context().exit(SLOWER if sure else 0)


@click.command("query")
@click.argument("sql")
@sources
@json_option
@steps_option
def query_command(sql: str, source: tuple[Path, ...], as_json: bool, steps: str | None) -> None:
    """Run an SQL statement (DuckDB's dialect) over the tables spans, instants and parts.

    \b
    ringtune timeline query "select rank, stage, sum(duration_ns) from spans group by all" trace.json
    """  # noqa: D301 - click's mark, which a raw string does not have
    from ringtune.timeline.analysis.tables import answer_view
    from ringtune.timeline.database import query

    if os.path.exists(sql):  # Path.exists raises for a long statement
        raise UsageError(f"{sql} is a file: the SQL statement stands before it")
    answer = query(read_source(source, steps), sql)
    show(answer.to_json, lambda: answer_view(answer), as_json)


@click.command("export")
@sources
@click.option(
    "-o", "--parquet", required=True, metavar="OUT", type=click.Path(path_type=Path, dir_okay=False), help="The file."
)
@steps_option
def export_command(source: tuple[Path, ...], parquet: Path, steps: str | None) -> None:
    """Write the spans as a Parquet file, for pandas, polars, DuckDB and others."""
    from ringtune.timeline.database import export_parquet

    click.echo(f"{parquet}: {export_parquet(read_source(source, steps), parquet)} spans", err=is_stdout(parquet))


@click.command("open")
@click.argument("source", metavar="FILE|RUN_DIR", type=click.Path(path_type=Path))
@click.option(
    "--ui",
    metavar="ADDRESS",
    envvar="RINGTUNE_PERFETTO_UI",
    help="Perfetto's page, https://HOST; without it the dashboard's own viewer is used.",
)
@click.option("--keep", is_flag=True, help="Serve Perfetto's page until Ctrl-C, not only until it has the trace.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port; default: 9001 for Perfetto, 8050 for the dashboard.")
def open_command(source: Path, ui: str | None, keep: bool, port: int | None) -> None:
    """Look at a trace in a browser: in the dashboard (needs no network), or in Perfetto's page with --ui.

    Serves on 127.0.0.1: the dashboard until interrupted with Ctrl-C, Perfetto's page until it has the trace. The trace
    stays on this machine.
    """
    from ringtune import layout
    from ringtune.timeline.viewing import PERFETTO_PORT, TraceServer, show_in_dashboard

    if not ui:
        raise SystemExit(show_in_dashboard(source, 8050 if port is None else port))
    server = TraceServer(
        layout.timeline_file(source) if source.is_dir() else source, ui, PERFETTO_PORT if port is None else port
    )
    click.echo(f"{server.url}\n  open {server.link}\n  Stop with Ctrl-C.")
    with server.running(), suppress(KeyboardInterrupt):
        (threading.Event() if keep else server.fetched).wait()
        click.echo("The page has the trace.")


ANALYSES = (
    critical_path_command,
    stragglers_command,
    efficiency_command,
    diff_command,
    query_command,
    export_command,
    open_command,
)
