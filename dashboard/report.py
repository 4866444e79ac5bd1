"""One run as one file: ``ringtune report RUN -o report.html``.

The file holds everything, plotly.js once, and forbids itself to load anything: it works offline and by mail.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs
from plotly.utils import PlotlyJSONEncoder

from ringtune.dashboard import theme
from ringtune.dashboard.data import communication, failure, machine, scaling, steps, system, tuning
from ringtune.dashboard.data.analysis import Analysis, analyse
from ringtune.dashboard.data.files import Unreadable
from ringtune.dashboard.data.lateness import late_map, late_ranks
from ringtune.dashboard.data.posterior import learned
from ringtune.dashboard.data.runs import RunInfo, read_run
from ringtune.dashboard.data.step_totals import StepSummary
from ringtune.dashboard.data.timeline import trace
from ringtune.dashboard.data.timeline.index import Query, TimelineIndex
from ringtune.dashboard.figures import scaling as scaling_figures
from ringtune.dashboard.figures import steps as step_figures
from ringtune.dashboard.figures import timeline as timeline_figures
from ringtune.dashboard.figures import tuning_plane, tuning_settings, tuning_trials
from ringtune.dashboard.figures.stragglers import late_heat
from ringtune.dashboard.pages import communication as communication_page
from ringtune.dashboard.pages import system as system_page
from ringtune.dashboard.pages.overview import machine_rows, run_facts
from ringtune.dashboard.pages.overview_failure import LISTED, PRINTED, RANK_HEAD, rank_cells
from ringtune.dashboard.pages.scaling import HEAD as SCALING_HEAD
from ringtune.dashboard.pages.scaling import table_rows as scaling_rows
from ringtune.dashboard.pages.stragglers_verdict import opening_words
from ringtune.dashboard.pages.stragglers_verdict import sentences as straggler_sentences
from ringtune.dashboard.pages.timeline_state import first_steps, note
from ringtune.dashboard.units import count, duration, moment, percent, plain, size
from ringtune.errors import UsageError
from ringtune.output_file import write_output
from ringtune.timeline.analysis.stragglers import CAUSES
from ringtune.timeline.doctor.failure import Failure
from ringtune.timeline.units import several

TIMELINE_RANKS = 8
STRAGGLER_RANKS = 16
ASSETS = Path(__file__).parent / "assets"
TEMPLATE = ASSETS / "report.template"


@dataclass(frozen=True)
class Section:
    """A part of the report: a title, sentences, figures by their titles, and a table of head and rows."""

    title: str
    words: tuple[str, ...] = ()
    figures: Mapping[str, go.Figure] = field(default_factory=dict)
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def write_report(run: Path, output: Path) -> int:
    """Write the report of a run and return its size in bytes. The file appears whole or not at all.

    Raises:
        UsageError: There is no such run.
        RingtuneError: The file cannot be written.
    """
    if not run.is_dir():
        raise UsageError(f"{run}: no such run folder. Give one of the folders under runs/")
    info = read_run(run.resolve().name, run.resolve())
    if info.status == "unreadable" and not info.created_unix_ns:
        raise UsageError(f"{run}: not a run folder that can be read: {info.ending}")
    content = page(info).encode()
    write_output(output, content)
    return len(content)


def page(run: RunInfo) -> str:
    """Return the report as HTML."""
    found = sections(run)
    figures = [figure for section in found for figure in section.figures.values()]
    body, first = [], 0
    for section in found:
        body.append(_section(section, first))
        first += len(section.figures)
    values = {
        "title": escape(f"{run.name} · ringtune report"),
        "name": escape(run.name),
        "status": escape(run.ending or run.status),
        "status_class": escape(run.status),
        "line": escape(" · ".join(_line(run))),
        "body": "\n".join(body),
        "made": escape(f"Made by ringtune {run.versions.get('ringtune', '')} on {moment(time.time_ns())}"),
        "figures": _script_json([_bare(figure) for figure in figures]),
        "templates": _script_json({scheme: theme.template(scheme).to_plotly_json() for scheme in ("light", "dark")}),
        "config": _script_json(theme.PLOT_CONFIG),
        "export": (ASSETS / "export.js").read_text(encoding="utf-8"),
        "plotly": get_plotlyjs().replace("</script", "<\\/script"),
    }
    text = TEMPLATE.read_text(encoding="utf-8")
    # One pass over the template's own marks: what is filled in is never searched for marks again.
    pieces = text.split("@@")
    return "".join(values[piece] if position % 2 else piece for position, piece in enumerate(pieces))


def _bare(figure: go.Figure) -> dict[str, Any]:
    """Return a figure without its template: the page brings one for each scheme."""
    parts = figure.to_plotly_json()
    layout = {key: value for key, value in parts["layout"].items() if key != "template"}
    return {"data": parts["data"], "layout": layout}


def _script_json(value: object) -> str:
    """Return JSON that may stand inside a script element, whatever texts it holds."""
    text = json.dumps(value, cls=PlotlyJSONEncoder)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").replace("\u2028", "\\u2028")


def _line(run: RunInfo) -> list[str]:
    parts = [
        f"{count(run.ranks)} ranks" if run.ranks else "",
        moment(run.created_unix_ns) if run.created_unix_ns else "",
    ]
    return [part for part in [*parts, *run.tags] if part]


def _section(section: Section, first: int) -> str:
    words = "".join(f"<p>{escape(sentence)}</p>" for sentence in section.words)
    plots = "".join(
        f'<h3>{escape(title)}</h3><div class="figure" id="figure-{number}"></div>'
        for number, title in enumerate(section.figures, first)
    )
    return f"<section><h2>{escape(section.title)}</h2>{words}{plots}{_table(section)}</section>"


def _table(section: Section) -> str:
    if not section.rows:
        return ""
    head = "".join(f"<th>{escape(word)}</th>" for word in section.head)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(plain(cell, 400))}</td>" for cell in row) + "</tr>" for row in section.rows
    )
    top = f"<thead><tr>{head}</tr></thead>" if head else ""
    return f'<div class="scroll"><table>{top}<tbody>{rows}</tbody></table></div>'


def sections(run: RunInfo) -> list[Section]:
    """Return the parts of the report that the run has something for."""
    reader = steps.StepReader(run.path).read()
    machines, past = machine.data(run), tuning.data(run)
    measured, sampled = scaling.data([run]), system.SampleReader(run.path).read(run.hosts)
    timeline, analysis, index, timeline_problems = _timeline(run)
    problems = [
        *run.problems,
        *reader.problems,
        *machines.problems,
        *past.problems,
        *sampled.problems,
        *measured.problems,
        *timeline_problems,
    ]
    failed = failure.data(run, index) if run.status in ("failed", "lost") or failure.hangs(run) else None
    first = opening_words(analysis, reader.summary) if failed is None else failed.words()
    more = _summary(run, reader.summary, tuning.words(past))
    found = [Section("Summary", tuple(one for one in (first, *more) if one))]
    if failed is not None:
        found.append(_failure(failed))
    if len(reader):
        found.append(_steps(reader))
    found += timeline
    if past:
        found.append(Section("Tuning", tuple(tuning.words(past)), _tuning(past)))
    if sampled.ranks:
        figures = system_page.drawn(sampled, "light")
        named = {title: figures[name] for name, title, _ in system_page.CARDS if len(figures[name].data)}
        found.append(Section("System", _numbers(system.numbers(sampled)), named))
    if measured.series:
        found.append(_scaling(measured.series))
    head = ("Ranks", "Host", "Processor", "Cores", "Memory", "Kernel", "Python")
    if machines.machines:
        found.append(Section("Machines", (), {}, head, tuple(map(tuple, machine_rows(machines)))))
    found.append(Section("Settings", (), {}, (), tuple(run_facts(run))))
    if problems:
        found.append(Section("What could not be read", tuple(plain(problem, 300) for problem in problems[:20])))
    return found


def _failure(found: Failure) -> Section:
    """Return how the ranks of a run that failed, or hangs, ended, those at fault first."""
    words = list(found.hang)
    for end in [end for end in found.ranks if end.lines and end.rank in found.blamed][:PRINTED]:
        words += [f"Rank {end.rank}, its last lines:", *end.lines]
    return Section(
        "How it ended", tuple(words), {}, RANK_HEAD, tuple(map(tuple, map(rank_cells, found.ranks[:LISTED])))
    )


def _numbers(found: Iterable[tuple[str, str, str]]) -> tuple[str]:
    """Return a page's numbers (label, value and note) as a sentence."""
    return ("; ".join(f"{label}: {value}" + (f" ({note})" if note else "") for label, value, note in found) + ".",)


def _summary(run: RunInfo, numbers: StepSummary | None, tuned: Sequence[str]) -> list[str]:
    ending = run.ending or "is still running"
    words = [f"{run.name} {ending if run.status != 'live' else 'is still running'}."]
    if numbers is None:
        return [*words, "No steps were recorded.", *tuned[:1]]
    words.append(
        f"{count(numbers.steps)} steps of {duration(numbers.median_ns)} (median; half of them between "
        f"{duration(numbers.low_ns)} and {duration(numbers.high_ns)}), each reducing {size(numbers.bytes_per_step)} "
        "on every rank."
    )
    overlapped = f" {percent(numbers.overlapped_share)} of the communication ran beside computation."
    hidden = overlapped if numbers.overlapped_share >= 0 else ""
    parts = f"{percent(numbers.exposed_share)} exposed communication, {percent(numbers.waiting_share)} for late ranks"
    words.append(f"Training was blocked for {percent(numbers.blocked_share)} of the time: {parts}.{hidden}")
    return [*words, *tuned[:1]]


def _steps(table: steps.Steps) -> Section:
    figures = {
        "Step time": step_figures.step_times(steps.lines(table)),
        "Where a step goes": step_figures.breakdown(table.parts),
        "Communication by phase": step_figures.phases(table.parts),
    }
    words = (
        "Step time of every rank; then where the mean step goes on each rank, and the phases of its communication "
        "(negotiation is summed over tensors that wait at the same time).",
    )
    return Section("Steps", words, figures)


def _timeline(run: RunInfo) -> tuple[list[Section], Analysis | None, TimelineIndex | None, list[str]]:
    """Return what the timeline shows: an extract and its analyses; these themselves; it; and what could not be read."""
    files = trace.sources(run.path)
    if not files:
        return [], None, None, []
    try:
        found, problems = trace.read_all(run.path, files)
    except Unreadable as error:
        return [], None, None, [str(error)]
    index = TimelineIndex.build(found, problems)
    if not len(index.spans):
        return [], None, None, list(problems)
    analysis = analyse(found)
    return [_extract(index), *_stragglers(analysis), _communication(analysis)], analysis, index, list(problems)


def _extract(index: TimelineIndex) -> Section:
    """Return the first steps after the warm-up, of the first ranks."""
    view = index.view(Query(first_steps(index), index.ranks[:TIMELINE_RANKS]))
    drawn = index.ranks[:TIMELINE_RANKS]
    shown = f"The first steps after the warm-up, ranks {drawn[0]} to {drawn[-1]} of {len(index.ranks)}. "
    words = (shown + note(index, view) + " Scroll to zoom, drag to pan.",)
    return Section("Timeline", words, {"What every rank did": timeline_figures.timeline(index, view)})


def _stragglers(found: Analysis) -> list[Section]:
    """Return who made the others wait; nothing where ranks cannot be compared."""
    if found.document["stragglers"] is None:
        return []
    words = straggler_sentences(found)
    rows = [
        (
            str(one.rank),
            one.host or "–",
            ", ".join(one.verdict) or "–",
            *(f"{duration(late)} in {several(steps, 'step')}" for steps, late, _ in one.causes.values()),
        )
        for one in sorted(late_ranks(found), key=lambda one: not one.verdict)[:STRAGGLER_RANKS]
    ]
    head = ("Rank", "Host", "Straggler by", *(f"Late by {cause}" for cause in CAUSES))
    figures = {"How late each rank was": late_heat(late_map(found))}
    return [Section("Stragglers", tuple(words), figures, head, tuple(rows))]


def _communication(found: Analysis) -> Section:
    figures = communication_page.drawn(found, "", "light")
    named = {title: figures[name] for name, title, _ in communication_page.CARDS}
    return Section("Communication", _numbers(communication.numbers(found)), named)


def _tuning(past: tuning.TuningHistory) -> dict[str, go.Figure]:
    known = learned(past)
    return {
        "Trials": tuning_trials.trials(past),
        "Settings tried": tuning_plane.plane(past, surface=known.surface),
        "Time lost so far": tuning_trials.lost(past),
        "Which knob matters": tuning_settings.importance(known.importance),
        "All settings": tuning_settings.parallel(past),
    }


def _scaling(series: tuple[scaling.ScalingSeries, ...]) -> Section:
    figures = {"Throughput": scaling_figures.rate(series), "Efficiency": scaling_figures.efficiency(series)}
    return Section("Scaling", (), figures, SCALING_HEAD, tuple(map(tuple, scaling_rows(series))))
